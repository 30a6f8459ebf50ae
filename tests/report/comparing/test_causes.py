"""The sentences for causes, selections and facts, and the waterfall from one iteration to the other."""

from typing import Any

import pytest

from aaco_pipeline.report.comparing.causes import cause_in_words, difference_in_words, selection_in_words, signed
from aaco_pipeline.report.comparing.difference import opening, verdict, waterfall
from aaco_pipeline.statistics.causes.decomposition import SCHEMA as CAUSE
from aaco_pipeline.statistics.causes.selection import SCHEMA as SELECTION

NONE = dict.fromkeys(CAUSE)


def cause(kind: str, delta: float, **more: Any) -> dict[str, Any]:
    return {**NONE, "kind": kind, "subject": "k", "short_subject": "k", "delta_ns": delta, "in_sum": True, **more}


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (
            cause("launches", 210_000, baseline_count=0.0, candidate_count=40.0, ci_low_ns=200_000, ci_high_ns=220_000,
                  candidate_ns=150_000),
            "40 more launches an iteration of k: +210 µs [+200 µs, +220 µs]",
        ),
        (
            cause("launches", -5_000, baseline_count=2.0, candidate_count=1.0, baseline_ns=6e3, candidate_ns=3e3),
            "1 fewer launch an iteration of k: −5 µs",
        ),
        (
            cause("duration", 4e6, baseline_count=4, candidate_count=4, baseline_ns=4e6, candidate_ns=8e6),
            "k takes 2 ms each instead of 1 ms: +4 ms",
        ),
        (cause("selection", 1e6), "Replaced (with idle), k: +1 ms"),
        (cause("selection", 1e6, baseline_ns=2e6, candidate_ns=3e6), "Replaced, k: +1 ms"),
        (
            cause("copies", 1e6, count_part_ns=1e6, baseline_count=1, candidate_count=3, candidate_ns=1e6),
            "2 more copies an iteration of k: +1 ms",
        ),
        (
            cause("copies", -9e4, short_subject="fill", count_part_ns=-9e4, baseline_count=3, candidate_count=1,
                  baseline_ns=3e3, candidate_ns=1e3),
            "2 fewer memsets an iteration (with idle): −90 µs",
        ),
        (
            cause("launches", -9e4, baseline_count=3.01, candidate_count=3, baseline_ns=3e3, candidate_ns=3e3),
            "k (launches), launched about as often: −90 µs",
        ),
        (
            cause("host_calls", 2e6, baseline_count=0, candidate_count=68, baseline_ns=0.0, candidate_ns=2e6),
            "Not part of the sum: k on the host: 68 more calls an iteration, 0 ns → 2 ms: +2 ms",
        ),
        (
            cause("gaps", 9_000, subject="sync", baseline_count=1.0, candidate_count=9.0),
            "Device idle after a synchronization, 8 more synchronizations an iteration: +9 µs",
        ),
        (
            cause("gaps", 9_000, subject="host_wait"),
            "Device idle, waiting for the host to launch: +9 µs",
        ),
        (cause("overlap", 9_000), "Less overlap of device work: +9 µs"),
        (cause("overlap", -9_000), "More overlap of device work: −9 µs"),
        (
            cause("clock", 9_000, baseline_count=2_100.0, candidate_count=1_890.0),
            "Engine clock 2,100 → 1,890 MHz: +9 µs",
        ),
        (cause("hidden_host", 2e5), "Not part of the sum: the host works longer, hidden behind the device: +200 µs"),
        (cause("unexplained", 10), "Unexplained, idle time of unknown cause: +10 ns"),
    ],
)  # fmt: skip
def test_a_cause_is_one_sentence(row: dict[str, Any], told: str) -> None:
    assert cause_in_words(row) == told


def selection(**more: Any) -> dict[str, Any]:
    return {**dict.fromkeys(SELECTION), "from_value": "A", "to_value": "B", **more}


def test_a_selection_says_where_how_often_and_what_it_cost() -> None:
    row = selection(what="gemm_backend", operator="aten::mm", count=24.0, baseline_ns=1_200_000, candidate_ns=2_000_000)
    assert selection_in_words(row) == "GEMM backend at aten::mm: A → B, 24 an iteration, 1.2 ms → 2 ms"
    assert selection_in_words(selection(what="kernel", position=1_200)) == "Kernel at launch 1,200 of a step: A → B"
    assert selection_in_words(selection(what="cache")) == "Cache: A → B"


def test_a_fact_says_what_it_proves() -> None:
    row = {"category": "rocm", "key": "version", "baseline": "6", "candidate": "7", "evidence_grade": "observed"}
    assert difference_in_words(row) == "rocm version: 6 → 7 (observed)"


def test_a_difference_has_its_sign_and_none_is_a_dash() -> None:
    assert [signed(value) for value in (1_500.0, -1_500.0, None)] == ["+1.5 µs", "−1.5 µs", "–"]


def test_the_waterfall_ends_at_the_candidates_iteration_and_keeps_the_unexplained() -> None:
    causes = [cause("launches", 1_000.0 - at, baseline_count=0, candidate_count=1) for at in range(20)]
    causes += [cause("unexplained", -3.0), cause("hidden_host", 500.0, in_sum=False)]
    total = sum(row["delta_ns"] for row in causes if row["in_sum"])
    for row in causes:
        row["in_words"] = cause_in_words(row)
    rows = waterfall({"causes": causes, "change": {"baseline_ns": 5_000.0, "delta_ns": total}})
    assert rows[-1]["then_ns"] == pytest.approx(5_000 + total)
    assert [row["in_words"] for row in rows[-2:]] == [
        "8 smaller causes together",
        "Unexplained, idle time of unknown cause",
    ]
    assert len(rows) == 14


PLAIN: dict[str, Any] = {
    "hardware_differs": [], "workload_differs": [], "other_work": None, "not_split": {}, "selections": [],
}  # fmt: skip


def test_other_hardware_is_said_before_anything_else() -> None:
    document = {
        **PLAIN,
        "hardware_differs": ["device product: A → B (observed)"],
        "baseline": {"product": "A", "arch": "gfx942"},
        "candidate": {"product": "B", "arch": None},
        "selections": [
            {"in_words": "Precision: fp16 → bf16", "operator": None, "position": None},
            {"in_words": "Kernel: a → b", "operator": "aten::mm", "position": None},
        ],
    }
    assert opening(document) == [
        "Hardware differs: A (gfx942) → B.",
        "Precision: fp16 → bf16.",
        "Kernels or inputs differ at 1 place, as they do on other hardware: `--json`.",
    ]


def test_the_opening_says_what_cannot_be_compared() -> None:
    assert opening(PLAIN) == ["As far as both recordings show, nothing was selected differently."]
    assert opening({**PLAIN, "not_split": {"a": "no"}}) == ["What was selected cannot be compared: see below."]
    assert opening({**PLAIN, "other_work": "nothing in common"}) == ["The work differs: nothing in common."]


def described(idle_ns: float, **more: Any) -> dict[str, Any]:
    side = {"iteration_ns": 1e6, "latency_ns": 5e5, "step": "measured iterations"}
    return {
        "verdict_reason": "two", "latency_delta_pct": 20.0, "latency_from": "recorded iterations", "not_split": {},
        "baseline": side, "candidate": {**side, "iteration_ns": 1.2e6, "latency_ns": 6e5},
        "change": {"delta_ns": 2e5}, "causes": [cause("gaps", idle_ns, subject="host_wait")], **more,
    }  # fmt: skip


def test_a_recorders_time_is_reported_as_such() -> None:
    plain = "An iteration takes 1.2 ms instead of 1 ms (+20.0 %) under the recorder."
    assert verdict(described(5e4))[1] == plain
    doubt = verdict(described(1.5e5))[1]
    assert doubt.startswith(plain)
    assert "measure both without one" in doubt
    layers = described(
        0.0, baseline={"iteration_ns": 1e6, "latency_ns": None, "step": "repetitions of the steady part"}
    )
    assert verdict(layers)[1].startswith("A repetition takes 1.2 ms instead of 1 ms")
    unprofiled = verdict(described(0.0, latency_from="unprofiled iterations"))[1]
    assert unprofiled == (
        "An iteration takes 600 µs instead of 500 µs (+20.0 %), unprofiled. The rest compares the recorded ones: "
        "1.2 ms instead of 1 ms."
    )


def test_a_session_that_the_machine_disturbed_too_often_is_named_before_the_difference_is_believed() -> None:
    quiet = {"iteration_ns": 1e6, "latency_ns": None, "step": "marked iterations", "disturbed_ratio": 0.3}
    assert len(verdict(described(0.0, baseline=quiet))) == 2
    told = verdict(described(0.0, baseline={**quiet, "disturbed_ratio": 0.72}))[2]
    assert told.startswith("The machine disturbed 72 % of the baseline's iterations: measure it again")


def test_without_a_split_there_is_no_waterfall() -> None:
    assert waterfall({"causes": [], "change": None}) == []
