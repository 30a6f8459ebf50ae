"""The answer's fields for programs, bounds on what is said of it, and documents without one."""

from typing import Any, Final

import pytest

from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.report.words import answer as words
from aaco_pipeline.report.words.session import OUTDATED, answer, steadiness
from tests.report.made_up import ADVICE, ANSWER, KINDS_OF_WORK, TIME_SHARES

_NOTHING: Final[dict[str, Any]] = {"metrics": [], "top_kernels": []}


def document(side: str | None = None, **changed: Any) -> dict[str, Any]:
    """A document with an answer of which some columns are changed; `side` is that of its device's busy time."""
    row = {column.name: None for column in contract("answers").columns} | dict(ANSWER) | changed
    of_kind = {column.name: None for column in contract("kinds_of_work").columns}
    kinds = sorted((of_kind | kind for kind in KINDS_OF_WORK), key=lambda kind: -int(str(kind["time_ns"])))
    rows = {"answers": [row], "time_shares": list(TIME_SHARES), "kinds_of_work": kinds}
    return {**rows, "timeline": [{"device_id": 0, "busy_bound": side}], "provider": None}


def said(side: str | None = None, **changed: Any) -> str:
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
        "first_to_fix": {"kind": "elementwise_and_copies", "subject": "relu", "advice": ADVICE},
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
    assert told in said(side, **{"class": name})
    assert " at least " not in said(None, **{"class": name}).split(". ")[0]


def test_at_least_all_of_the_time_is_all_of_it() -> None:
    assert "at least" not in said("at_least", class_ratio=0.9999)


def test_a_bound_of_another_device_is_none_of_this_answers() -> None:
    elsewhere = {**document(), "timeline": [{"device_id": 7, "busy_bound": "at_least"}]}
    assert words.paragraph(elsewhere) == said()


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
