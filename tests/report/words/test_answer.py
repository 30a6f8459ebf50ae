"""The answer in sentences: at most three and seventy words, in grammar, and nothing that its rows do not say."""

import re
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.answer.first_to_fix import ADVICE
from aaco_pipeline.analysis.answer.shares import SHARES
from aaco_pipeline.analysis.answer.terms import AT_ROOF, PACK
from aaco_pipeline.report.words.answer import CLASSES, MOST_WORDS, paragraph

Fields = dict[str, Any]
_ROW: Final[Fields] = {
    "class": "device",
    "second_class": None,
    "reason": None,
    "window_ns": 10_000_000,
    "window_rule": "5 marked iterations of 20 activities",
    "beside_ns": 0,
    "repetitions": 5,
    "period_ns": 2_000_000,
    "class_ratio": 0.9,
    "busy_ratio": 0.9,
    "kind": "gemm",
    "subject": "aten::mm",
    "saves_at_most_ns": 2_500_000,
    "advice": "Tune the matrix products (shapes, layout, library)",
    "sharpen": [],
    "sharpen_commands": [],
}
_KIND: Final[Fields] = {
    "kind": "gemm",
    "time_ns": 9_000_000,
    "share_ratio": 0.8,
    "operator": "aten::mm",
    "dtype": "bf16",
    "rate": 4.66e14,
    "rate_unit": "flop/s",
    "roof": "matrix",
    "roof_ratio": 0.36,
    "roof_source": "spec",
}


def said(kinds: list[Fields] | None = None, /, **row: Any) -> str:
    text = paragraph({"answers": [{**_ROW, **row}], "kinds_of_work": [_KIND] if kinds is None else kinds})
    assert text is not None
    return text


def sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.])\s+(?=[A-Z])", text)


def test_a_busy_device_is_told_with_its_kinds_and_what_an_iteration_saves() -> None:
    assert said() == (
        "The GPU is the limit: kernels run 90 % of 10 ms. Matrix products take 80 % of the kernel time (aten::mm at "
        "466 TFLOP/s, 36 % of the published bf16 matrix peak). Tune the matrix products (shapes, layout, library): "
        "that saves at most 500 µs an iteration (2.5 ms in all), 25 %."
    )


#: What an iteration takes without a profiler, and what is saved of it.
_WITHOUT: Final[Fields] = {"unprofiled_period_ns": 1_500_000, "saves_unprofiled_ns": 1_200_000}


def test_what_an_iteration_saves_without_the_profiler_goes_before_what_the_traced_one_does() -> None:
    row: Fields = {"class": "launch", "kind": None, "subject": "90 launches an iteration", "advice": ADVICE["launch"]}
    text = said(**row, **_WITHOUT)
    assert text == (
        "The GPU is idle 90 % of 5 traced iterations (10 ms) while the host launches under the profiler. There are 90 "
        "launches an iteration. Replay these launches as a graph, the kernels staying as they are: that saves at most "
        "1.2 ms of the 1.5 ms that an iteration takes without the profiler, 80 %."
    )
    assert "at most 500 µs an iteration (2.5 ms in all), 25 %." in said(**row, unprofiled_period_ns=1_500_000)
    near = said([{**_KIND, "roof_ratio": 0.85}], advice=AT_ROOF, **_WITHOUT)
    assert near.endswith("saves more than 1.2 ms of the 1.5 ms that an iteration takes without the profiler, 80 %.")


def test_a_saving_beyond_the_class_says_that_it_hides_more() -> None:
    row: Fields = {"class": "sync", "kind": None, "subject": None, "advice": ADVICE["sync"], "class_ratio": 0.5}
    assert "in one go: that saves, with what it holds up, at most" in said(**row, saves_at_most_ns=5_600_000)
    assert "in one go: that saves at most" in said(**row, saves_at_most_ns=5_400_000)
    assert "what it holds up" not in said(saves_at_most_ns=9_990_000)


def test_near_a_roof_only_less_work_saves_more_than_reaching_it() -> None:
    text = said([{**_KIND, "roof_ratio": 0.85}], advice=AT_ROOF)
    assert text.endswith("Near this peak, only less work or a narrower number format saves more than 500 µs an "
                         "iteration (2.5 ms in all), 25 %.")  # fmt: skip
    assert "at most" not in text


def test_without_a_roof_no_saving_is_claimed_of_what_cannot_go_away() -> None:
    bare = {**_KIND, "operator": None, "rate": None, "roof": None, "roof_ratio": None, "dtype": None}
    text = said([bare], subject="Cijk_kernel", saves_at_most_ns=None)
    assert text.endswith("library), Cijk_kernel first: no roof is known that says how much that saves.")


def test_a_repetition_that_nobody_marked_is_no_iteration_and_steady_is_said_beside_something() -> None:
    text = said(window_rule="36 repetitions of 14 activities", beside_ns=5)
    assert "500 µs a repetition (2.5 ms in all)" in text
    assert "of the steady 10 ms" in text
    assert "in all" not in said(repetitions=1)


def test_an_iteration_is_never_told_to_save_more_than_it_takes() -> None:
    """A window may hold the device work of more iterations than were marked: here of five, and two were."""
    assert "saves at most 500 µs an iteration (2.5 ms in all), 25 %" in said(repetitions=2)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("attention", "Attention takes"),
        ("normalization", "Normalization takes"),
        ("pool", "Pooling takes"),
        ("softmax", "Softmax takes"),
        ("gemm", "Matrix products take"),
        ("unnamed", "Kernels of no known kind take"),
    ],
)
def test_one_kind_takes_and_several_take(kind: str, told: str) -> None:
    assert f" {told} 80 % of the kernel time" in said([{**_KIND, "kind": kind}], kind=kind)
    assert f" {told} all of the kernel time" in said([{**_KIND, "kind": kind, "share_ratio": 0.9999}], kind=kind)


def test_a_rate_is_said_of_whose_it_is() -> None:
    assert "(aten::mm at 466 TFLOP/s, 36 %" in said()
    assert "(the heaviest kernel at 466 TFLOP/s, 36 %" in said([{**_KIND, "operator": None}])
    moved = {**_KIND, "dtype": None, "rate": 4.36e12, "rate_unit": "byte/s", "roof": "dram", "roof_source": "measured"}
    assert "at 4.36 TB/s, at least 36 % of the measured memory bandwidth)" in said([moved])
    assert "at 4.36 TB/s, 36 % of the measured memory bandwidth)" in said([{**moved, "operator": None}])
    # A share of a cache's rate is no share of the memory's.
    assert "at 4.36 TB/s)" in said([{**moved, "roof": "l2"}])


@pytest.mark.parametrize(
    ("name", "subject", "told"),
    [
        ("sync", "cudaStreamSynchronize, 599 times", "The longest waits are in cudaStreamSynchronize, 599 times."),
        ("host", "2 pauses of 1.5 ms an iteration", "There are 2 pauses of 1.5 ms an iteration."),
        ("host", "1 pause of 1.5 ms an iteration", "There is 1 pause of 1.5 ms an iteration."),
        ("allocation", "cudaFree, once an iteration", "Most of it is in cudaFree, once an iteration."),
        ("copy", "device to host at 1.91 GB/s", "The heaviest are device to host at 1.91 GB/s."),
        ("launch", "500 launches an iteration", "There are 500 launches an iteration."),
        ("launch", "1 launch an iteration", "There is 1 launch an iteration."),
        ("communication", "all_reduce of 17.6 MB: a late rank", "The heaviest is all_reduce of 17.6 MB: a late rank."),
    ],
)
def test_what_a_class_is_about_is_said_as_it_is(name: str, subject: str, told: str) -> None:
    row: Fields = {"class": name, "subject": subject, "kind": None, "advice": ADVICE[name]}
    assert told in said(**row)
    assert len(sentences(said(**{**row, "subject": None}))) == 2


def test_copies_in_pieces_are_counted_and_packed() -> None:
    subject = "64 copies of 4 KiB host to device an iteration"
    text = said(**{"class": "copy", "subject": subject, "kind": None, "advice": PACK})
    assert text.startswith(
        "Small copies and their calls, which no kernel hides, take 90 % of 10 ms. There are 64 copies"
    )
    assert f"There are {subject}. {PACK}: that saves at most" in text


def test_what_to_do_is_said_before_what_takes_time_beside_it() -> None:
    """Where both are too long, the other share goes, then what the class is about, and the advice last."""
    shares = [
        {"share": name, "reason": None, "share_ratio": ratio, "grade": "observed"}
        for name, ratio in [("sync", 0.6), ("launch", 0.3), ("device", 0.1)]
    ]
    row: Fields = {**_ROW, **_WITHOUT, "class": "sync", "kind": None, "advice": ADVICE["sync"]}

    def of(subject: str) -> str:
        return str(paragraph({"answers": [{**row, "subject": subject}], "kinds_of_work": [], "time_shares": shares}))

    named = of("cudaStreamSynchronize, 48 times an iteration")
    assert "another" not in named
    assert "The longest waits are in cudaStreamSynchronize, 48 times" in named
    assert ADVICE["sync"] in named
    long = of("a " * 30 + "call, once")
    assert "The longest waits" not in long
    assert ADVICE["sync"] in long


def test_another_share_is_said_where_it_is_large() -> None:
    shares = [
        {"share": name, "reason": None, "share_ratio": ratio, "grade": "observed"}
        for name, ratio in [("device", 0.6), ("launch", 0.3), ("host", 0.1)]
    ]
    document: Fields = {"answers": [{**_ROW, "class_ratio": 0.6}], "kinds_of_work": [_KIND], "time_shares": shares}
    assert "Kernels run 60 % of 10 ms, the largest share; launching under the profiler takes another 30 %." in str(
        paragraph(document)
    )
    shares[1] |= {"share_ratio": 0.14}
    assert "another" not in str(paragraph(document))
    document["answers"][0] |= {"class": "launch", "advice": ADVICE["launch"], "kind": None, "subject": None}
    assert "another" not in str(paragraph(document)), "that a device which is idle works otherwise need not be said"


def test_a_late_rank_is_told_beside_any_class() -> None:
    late = "rank 3 is late by 80 µs a collective (median), because it runs more kernels: the others wait for it"
    assert f"kernels run 90 % of 10 ms; {late}." in said(reason=late)
    row: Fields = {"class": "imbalance", "subject": None, "kind": None, "advice": ADVICE["imbalance"], "reason": late}
    assert f"of 10 ms. R{late[1:]}." in said(**row)


def test_a_wait_that_no_record_shows_is_most_likely_one() -> None:
    share = {"share": "sync", "reason": None, "share_ratio": 0.9, "grade": "inferred"}
    row = {**_ROW, "class": "sync", "kind": None, "subject": None, "advice": ADVICE["sync"]}
    document = {"answers": [row], "kinds_of_work": [], "time_shares": [share]}
    assert "most likely because the host waits for it" in str(paragraph(document))
    document["time_shares"] = [{**share, "grade": "observed"}]
    assert "most likely" not in str(paragraph(document))


def test_a_recording_without_an_answer_says_why_what_ran_and_what_to_record() -> None:
    text = said(
        **{"class": "incomplete"},
        reason="too short: 5 activities",
        sharpen=["the steady state"],
        sharpen_commands=["record after warm-up: schedule(warmup=3)"],
    )
    assert text == (
        "This recording is incomplete: too short (5 activities). Of what was recorded, matrix products take 80 % of "
        "the kernel time (aten::mm at 466 TFLOP/s, 36 % of the published bf16 matrix peak). To see the steady state: "
        "record after warm-up, schedule(warmup=3)."
    )
    assert paragraph({"answers": []}) is None


NAMES: Final = st.sampled_from(
    ["aten::mm", "a" * 300, "void at::native::kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3>>"]
)
KINDS: Final = st.lists(
    st.builds(
        lambda **fields: {**_KIND, **fields},
        kind=st.sampled_from(["gemm", "elementwise_and_copies", "attention", "unnamed", "communication", "kv_cache"]),
        share_ratio=st.floats(0, 1),
        operator=st.none() | NAMES,
        rate=st.none() | st.floats(0, 1e16),
        rate_unit=st.sampled_from(["flop/s", "byte/s"]),
        roof=st.sampled_from([None, "matrix", "vector", "dram", "l2"]),
        roof_ratio=st.none() | st.floats(0, 1),
    ),
    max_size=4,
    unique_by=lambda kind: kind["kind"],
)
ROWS: Final = st.fixed_dictionaries(
    {
        "class": st.sampled_from(sorted(CLASSES)),
        "second_class": st.none() | st.sampled_from(sorted(SHARES)),
        "window_ns": st.integers(1, 10**12),
        "beside_ns": st.integers(0, 10**9),
        "repetitions": st.none() | st.integers(1, 10**6),
        "period_ns": st.none() | st.integers(1, 10**9),
        "window_rule": st.sampled_from(["3 marked iterations of 10 activities", "7 repetitions of 2 activities"]),
        "class_ratio": st.none() | st.floats(0, 1),
        "saves_at_most_ns": st.none() | st.integers(0, 10**12),
        "unprofiled_period_ns": st.just(10**9),
        "saves_unprofiled_ns": st.none() | st.integers(0, 10**9),
        "subject": st.none() | NAMES,
        "kind": st.none() | st.sampled_from(["gemm", "attention"]),
        "advice": st.none() | st.sampled_from([*ADVICE.values(), AT_ROOF]),
        "reason": st.sampled_from(["nothing repeats", "too short: " + "many words " * 20]),
        "sharpen": st.just(["the missing stream"]),
        "sharpen_commands": st.sampled_from([["rocprofv3 -- COMMAND"], ["word " * 80]]),
    }
)


@given(ROWS, KINDS)
def test_no_paragraph_is_longer_than_three_sentences_and_seventy_words(row: Fields, kinds: list[Fields]) -> None:
    text = said(kinds, **row)
    assert len(text.split()) <= MOST_WORDS
    assert len(sentences(text)) <= 3
    assert all(one[0].isupper() and one.endswith(".") for one in sentences(text))
    assert "  " not in text and "None" not in text and ".." not in text
