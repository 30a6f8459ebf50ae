"""The limits of a recording's kernels in a sentence; kernels that no roof limits are left out."""

from typing import Any

import pytest

from aaco_pipeline.analysis.bottlenecks.kernel_signals import ROOF_LABELS
from aaco_pipeline.report.labels import LABELS, limits_in_words
from aaco_pipeline.report.session.answer import paragraph


def limit(share: float, label: str | None, efficiency: float | None = None, heaviest: float = 1.0) -> dict[str, Any]:
    """Make a label's limit: how near its heaviest kernel is to its roof, and its part of the share."""
    row = {"label": label, "share_ratio": share, "operator": "spmv", "efficiency_ratio": efficiency}
    return row | {"heaviest_ns": round(1e6 * share * heaviest)}


def test_every_roof_has_words() -> None:
    assert set(ROOF_LABELS) <= set(LABELS)


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        (
            [limit(0.6, "memory_dram", 0.91), limit(0.3, "compute_vector", 0.8), limit(0.1, None)],
            "DRAM traffic limits 60 % of the kernel time, vector arithmetic 30 %; the heaviest kernel, spmv, is at 91 "
            "% of its roof",
        ),
        ([limit(0.6, "memory_l2", 0.7, 0.5), limit(0.4, "latency", 0.2)], "L2 traffic limits 60 % of the kernel time"),
        ([limit(0.5, "memory_dram", 0.7), limit(0.5, None, heaviest=0.9)], "of the kernel time; the heaviest"),
        ([limit(0.51, None), limit(0.49, "memory_dram", 0.9)], None),
        ([limit(1.0, "occupancy", 0.3)], None),
        # A label of the reader's own rules has no words here.
        ([limit(1.0, "memory_of_mine", 0.9)], None),
        ([], None),
    ],
)
def test_limits_are_reported_where_roofs_limit_half_of_the_time(labels: list[dict[str, Any]], told: str | None) -> None:
    found = limits_in_words(labels)
    assert (found is None) == (told is None)
    assert told is None or told in str(found)
    # Of a kernel at no roof nothing is said.
    assert ("heaviest" in str(found)) == ("heaviest" in str(told))


@pytest.mark.parametrize(
    ("kind", "rate", "by_limits"), [("unnamed", 1e12, True), ("gemm", None, True), ("gemm", 1e12, False)]
)
def test_a_recording_of_counters_is_reported_by_what_limits_it(kind: str, rate: float | None, by_limits: bool) -> None:
    """Where no steady part is, and the heaviest kind of work has no name or no rate to tell."""
    row = {"class": "incomplete", "reason": "nothing repeats in 167 activities", "sharpen": [], "sharpen_commands": []}
    of_kind = {
        "kind": kind,
        "share_ratio": 1.0,
        "operator": "spmv",
        "rate": rate,
        "rate_unit": "flop/s",
        "dtype": "fp32",
    }
    of_kind |= {"roof": None, "roof_ratio": None, "roof_source": None, "peak_ratio": None}
    document = {"answers": [row], "kinds_of_work": [of_kind], "time_by_limit": [limit(1.0, "memory_dram", 0.9)]}
    text = str(paragraph(document))
    assert ("DRAM traffic limits 100 % of the kernel time" in text) == by_limits
    assert ("take" in text) != by_limits
