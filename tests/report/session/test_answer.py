"""The answer in sentences: at most three and seventy words, in grammar, and nothing that its rows do not say.

The answer's fields for programs, bounds on what is said of it, and documents without one.
"""

import re
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.answer.first_to_fix import ADVICE
from aaco_pipeline.analysis.answer.shares import SHARES
from aaco_pipeline.analysis.answer.terms import AT_ROOF, PACK
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.report.session import answer as words
from aaco_pipeline.report.session.answer import CLASSES, MOST_WORDS, paragraph
from aaco_pipeline.report.session.sentences import OUTDATED, answer, steadiness
from tests.report.made_up import ADVICE as ADVICE_made_up
from tests.report.made_up import ANSWER, KINDS_OF_WORK, TIME_SHARES

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


_NOTHING: Final[dict[str, Any]] = {"metrics": [], "top_kernels": []}


def document(side: str | None = None, **changed: Any) -> dict[str, Any]:
    """A document with an answer of which some columns are changed; `side` is that of its device's busy time."""
    row = {column.name: None for column in contract("answers").columns} | dict(ANSWER) | changed
    of_kind = {column.name: None for column in contract("kinds_of_work").columns}
    kinds = sorted((of_kind | kind for kind in KINDS_OF_WORK), key=lambda kind: -int(str(kind["time_ns"])))
    rows = {"answers": [row], "time_shares": list(TIME_SHARES), "kinds_of_work": kinds}
    return {**rows, "timeline": [{"device_id": 0, "busy_bound": side}], "provider": None}


def said_answer_fields(side: str | None = None, **changed: Any) -> str:
    text = words.paragraph(document(side, **changed))
    assert text is not None
    return text


def test_the_fields_are_a_contract() -> None:
    assert words.answer_fields(document()) == {
        "class": "device",
        "second_class": "launch",
        "reason": None,
        "shares": {"device": 0.5, "launch": 0.48, "sync": 0.02, "copy": 0.0},
        "reasons": [{"share": "launch", "reason": "contention", "share_ratio": 0.1}],
        "resource": None,
        "kinds": {"elementwise_and_copies": 0.6, "gemm": 0.4},
        "first_to_fix": {"kind": "elementwise_and_copies", "subject": "relu", "advice": ADVICE_made_up},
        "rate": {"value": 2.1e12, "unit": "byte/s", "dtype": None},
        "roof": {"resource": None, "ratio": None, "source": None, "peak_ratio": None},
        "saves_at_most": {"window_ns": 300, "repetition_ns": 150, "unprofiled_ns": None},
        "sharpen": [{"what": "the steady state", "command": "warm up"}],
        "window": {
            **{"device_id": 0, "start_ns": 0, "end_ns": 1100, "judged_ns": 1000, "beside_ns": 100, "repetitions": 2},
            **{"period_ns": 500, "unprofiled_period_ns": None, "rule": "2 repetitions of 3 activities"},
            "busy_ratio": 0.5,
        },
    }


def test_of_one_repetition_nothing_is_saved_each_time() -> None:
    fields = words.answer_fields(document(repetitions=1))
    assert fields is not None
    assert fields["saves_at_most"] == {"window_ns": 300, "repetition_ns": None, "unprofiled_ns": None}


def test_what_is_saved_without_a_profiler_is_beside_what_one_takes() -> None:
    fields = words.answer_fields(document(unprofiled_period_ns=400, saves_unprofiled_ns=100))
    assert fields is not None
    assert (fields["saves_at_most"]["unprofiled_ns"], fields["window"]["unprofiled_period_ns"]) == (100, 400)


def test_where_no_kernel_is_to_be_fixed_there_is_no_rate_and_no_roof() -> None:
    fields = words.answer_fields(document(kind=None))
    assert fields is not None
    assert (fields["rate"], fields["roof"]) == (None, None)


@pytest.mark.parametrize(
    ("name", "side", "told"),
    [
        ("device", "at_least", " at least 50 % of"),
        ("device", "at_most", " at most 50 % of"),
        ("launch", "at_least", "is idle at most 50 % of"),
        ("sync", "at_most", "is idle at least 50 % of"),
        ("contention", "at_least", "costs 50 % of"),
    ],
)
def test_a_bound_on_busy_time_is_one_on_what_is_said(name: str, side: str, told: str) -> None:
    assert told in said_answer_fields(side, **{"class": name})
    assert " at least " not in said_answer_fields(None, **{"class": name}).split(". ")[0]


def test_at_least_all_of_the_time_is_all_of_it() -> None:
    assert "at least" not in said_answer_fields("at_least", class_ratio=0.9999)


def test_a_bound_of_another_device_is_none_of_this_answers() -> None:
    elsewhere = {**document(), "timeline": [{"device_id": 7, "busy_bound": "at_least"}]}
    assert words.paragraph(elsewhere) == said_answer_fields()


def test_without_the_tables_there_is_no_answer() -> None:
    without: list[dict[str, Any]] = [{}, {"answers": []}]
    for empty in without:
        assert words.paragraph(empty) is None
        assert words.answer_fields(empty) is None
        assert words.sharpening(empty) == []
    assert answer(dict(_NOTHING)) == "Nothing was measured yet."


def test_a_session_of_before_there_were_answers_says_what_brings_it_up_to_date() -> None:
    old = {"label": "launch", "score": 0.8, "runner_up": None, "evidence": [], "missing_signals": []}
    assert answer({**_NOTHING, "bottleneck": [old]}) == OUTDATED


def test_a_run_whose_level_held_while_others_took_its_cpus_did_not_simply_run_steadily() -> None:
    level = {"metric": "steady_state", "pass": "latency", "phase": None, "value": 1.0}
    distortion = {"metric": "profiler_distortion", "pass": None, "phase": None, "value": 12.8}
    share = {"share": "device", "reason": "contention", "share_ratio": 0.786}
    assert steadiness({"metrics": [level]}) == "It ran steadily"
    contended = {"metrics": [level], "time_shares": [share]}
    assert steadiness(contended) == "Its level held, but other work took its CPUs 78.6 % of the time"
    assert "profiling slowed it" in steadiness({"metrics": [level, distortion]})
    drifting = {"metrics": [{**level, "value": 0.0}], "time_shares": [share]}
    assert steadiness(drifting) == "It did not run steadily; other work took its CPUs 78.6 % of the time"


def test_where_only_the_beginning_was_at_another_level_its_end_is_told() -> None:
    level = {"metric": "steady_state", "pass": "latency", "phase": None, "value": 0.0}
    since = {"metric": "steady_from", "pass": "latency", "phase": None, "value": 63.0}
    runs = [{"run": 0, "pass": "latency"}, {"run": 1, "pass": "latency"}, {"run": 2, "pass": "trace"}]
    one = {"metrics": [level, since], "program_runs": [runs[0], runs[2]]}
    assert steadiness(one) == "It ran steadily from iteration 63 on"
    assert steadiness({**one, "program_runs": runs}) == "Each run came to one level, the last at iteration 63"
    assert steadiness({**one, "metrics": [level, {**since, "value": None}]}) == "It did not run steadily"


TAKEN: Final = "other work took its CPUs"
SLOWED: Final = "profiling slowed it"


@pytest.mark.parametrize("level", [None, 0.0, 0.99, 1.0])
@pytest.mark.parametrize("contended", [0.0, 0.0999, 0.1, 0.5])
@pytest.mark.parametrize("distortion", [None, 1.0, 1.99, 2.0, 12.8])
def test_pressure_distortion_and_drift_are_told_together(
    level: float | None, contended: float, distortion: float | None
) -> None:
    """Whatever else is told: each of the three from its edge on, and none before it."""
    metrics = [
        {"metric": "steady_state", "pass": "latency", "phase": None, "value": level},
        {"metric": "profiler_distortion", "pass": None, "phase": None, "value": distortion},
    ]
    # Two shares of which contention explains a half each.
    shares = [{"share": one, "reason": "contention", "share_ratio": contended / 2} for one in ("device", "launch")]
    text = steadiness({"metrics": metrics, "time_shares": shares})
    assert (TAKEN in text) == (contended >= 0.1)
    assert (SLOWED in text) == (distortion is not None and distortion >= 2.0)
    assert ("did not run steadily" in text) == (level is not None and level < 1)
    assert ("too briefly" in text) == (level is None)
    held = level == 1.0
    assert (text == "It ran steadily") == (held and TAKEN not in text and SLOWED not in text)
    assert ("Its level held, but" in text) == (held and (TAKEN in text or SLOWED in text))
