"""The sentences for causes, selections and facts, and the waterfall from one iteration to the other."""

from typing import Any

import pytest

from aaco_pipeline.report.words.causes import cause_in_words, difference_in_words, selection_in_words, signed
from aaco_pipeline.report.words.difference import opening, waterfall
from aaco_pipeline.statistics.causes.decomposition import SCHEMA as CAUSE
from aaco_pipeline.statistics.causes.selection import SCHEMA as SELECTION

NONE = dict.fromkeys(CAUSE)


def cause(kind: str, delta: float, **more: Any) -> dict[str, Any]:
    return {**NONE, "kind": kind, "subject": "k", "short_subject": "k", "delta_ns": delta, "in_sum": True, **more}


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (
            cause("launches", 210_000, baseline_count=0.0, candidate_count=40.0, ci_low_ns=200_000, ci_high_ns=220_000),
            "40 more launches an iteration of k: +210 µs [+200 µs, +220 µs]",
        ),
        (
            cause("launches", -5_000, baseline_count=2.0, candidate_count=1.0),
            "1 fewer launch an iteration of k: −5 µs",
        ),
        (
            cause("duration", 4e6, baseline_count=4, candidate_count=4, baseline_ns=4e6, candidate_ns=8e6),
            "k takes 2 ms each in place of 1 ms: +4 ms",
        ),
        (cause("selection", 1e6), "Replaced, k: +1 ms"),
        (
            cause("copies", 1e6, count_part_ns=1e6, baseline_count=1, candidate_count=3),
            "2 more copies an iteration of k: +1 ms",
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
        (cause("hidden_host", 2e5), "Beside the sum, the host works longer, hidden behind the device: +200 µs"),
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


def test_other_hardware_is_said_before_anything_else() -> None:
    document = {
        "hardware_differs": ["device product: A → B (observed)"],
        "baseline": {"product": "A", "arch": "gfx942"},
        "candidate": {"product": "B", "arch": None},
        "workload_differs": [],
        "selections": [{"in_words": "Kernel: a → b"}],
    }
    assert opening(document) == [
        "Hardware differs: A (gfx942) → B.",
        "1 thing was selected differently:",
        "Kernel: a → b.",
    ]
    plain = {**document, "hardware_differs": [], "selections": []}
    assert opening(plain) == ["Nothing was selected differently, as far as both sessions tell."]


def test_without_a_split_there_is_no_waterfall() -> None:
    assert waterfall({"causes": [], "change": None}) == []
