"""Figures from counters equal those of ROCm Compute Profiler on real captures, but for differences with a reason."""

import importlib.util
import os
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

from aaco_pipeline.analysis.roofline.counter_metrics import METRIC_FLAGS
from aaco_pipeline.hardware.counters import Family
from aaco_pipeline.hardware.counters.formulas import derived_metrics
from tests.places import ROOT

CAPTURES: Final = Path(os.environ.get("AACO_SHARED") or ROOT.parent / "shared") / "counters"
#: Figures of that tool that are compared, equal, and different on purpose, by capture.
EXPECTED: Final = {
    "mem_levels_HBM/MI200": (56, 56, 0),
    "mixbench/MI200": (274, 271, 3),
    "mixbench_SQ/MI200": (124, 119, 5),
    "vcopy/MI100": (190, 188, 2),
    "vcopy/MI200": (274, 271, 3),
    "vcopy/MI300A_A1": (258, 236, 22),
    "vcopy/MI300X_A1": (258, 236, 22),
    "vcopy/MI300X_A1_rocpd": (277, 275, 2),
    "vcopy/MI350": (283, 279, 4),
}
#: Captures that the tool cannot read, whose figures were computed from its formulas: how many are equal.
FROM_FORMULAS: Final = {"laplacian_k1/MI250X": 3, "llamacpp_decode/gfx1151": 9}


@cache
def oracle() -> ModuleType:
    specification = importlib.util.spec_from_file_location(
        "counter_oracle", ROOT / "benchmarks/accuracy/counter_oracle.py"
    )
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def folder(name: str) -> Path:
    if not (CAPTURES / name / "oracle.json").is_file():
        pytest.skip(f"the real capture {name} is not on this machine (AACO_SHARED)")
    return CAPTURES / name


@cache
def coverage(name: str) -> Any:
    return oracle().Comparison(folder(name)).run()


def test_every_capture_with_an_oracle_is_expected() -> None:
    folder("vcopy/MI200")
    names = {f"{path.parent.parent.name}/{path.parent.name}" for path in CAPTURES.glob("*/*/oracle.json")}
    assert names == {*EXPECTED, *FROM_FORMULAS}


@pytest.mark.parametrize("name", EXPECTED)
def test_no_figure_differs_without_a_reason(name: str) -> None:
    found = coverage(name)
    assert found.unexplained == {}
    assert (found.compared, found.equal, len(found.different)) == EXPECTED[name]
    assert {key.partition(".")[0] for key in found.not_reported} <= set(oracle().NOT_REPORTED)


@pytest.mark.parametrize("name", FROM_FORMULAS)
def test_captures_that_the_tool_cannot_read_agree_with_its_formulas(name: str) -> None:
    found = oracle().compared_with_formulas(folder(name))
    assert found.unexplained == {}
    assert found.equal == FROM_FORMULAS[name]


def test_every_difference_shows_in_a_capture() -> None:
    used = {difference for name in EXPECTED for difference in coverage(name).used}
    assert used == set(oracle().DIFFERENCES)


def test_every_equivalent_is_a_figure() -> None:
    named = oracle().equivalents()
    known = {figure.name for family in Family for figure in derived_metrics(family)}
    assert {one.metric for one in named.values()} <= known


def test_the_documentation_lists_every_difference() -> None:
    text = (ROOT / "docs" / "counters.md").read_text()
    for difference in oracle().DIFFERENCES:
        for key in difference.figures:
            assert key.partition("|")[2].replace("ai_", "AI ") in text, key
    for key, *_ in oracle().UNSEEN_DIFFERENCES:
        assert key.partition("|")[2].replace("ai_", "AI ") in text, key


def test_the_documentation_names_every_figure_and_flag() -> None:
    text = (ROOT / "docs" / "counters.md").read_text()
    named = {figure.name for family in Family for figure in derived_metrics(family)} | set(METRIC_FLAGS)
    assert {name for name in named if f"| `{name}` |" not in text} == set()


@pytest.mark.parametrize(("statistic", "factor"), [("Avg", 1 + 1e-5), ("Min", 0.5)])
def test_a_wrong_value_would_be_found(statistic: str, factor: float) -> None:
    comparison = oracle().Comparison(folder("vcopy/MI200"))
    (theirs,) = (one for one in comparison.oracle["metrics"] if one["id"] == "17.3.1")
    theirs[statistic] *= factor
    assert list(comparison.run().unexplained) == ["17.3|Req"]


def test_a_wrong_dispatch_would_be_found() -> None:
    comparison = oracle().Comparison(folder("vcopy/MI200"))
    comparison.rows[1]["17.1.2|Hit Rate|Avg|Pct"] = "35"
    assert list(comparison.run().unexplained) == ["17.1|Hit Rate"]


def test_a_difference_must_be_of_the_kind_described() -> None:
    comparison = oracle().Comparison(folder("vcopy/MI350"))
    comparison.ours["fabric_read_bandwidth"] = {
        row: 1.01 * value for row, value in comparison.ours["fabric_read_bandwidth"].items()
    }
    assert list(comparison.run().unexplained) == ["2.1|L2-Fabric Read BW"]
