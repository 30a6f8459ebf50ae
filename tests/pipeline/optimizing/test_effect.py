"""What a gain would do to a session: predicted where both are of one architecture, and else a reason in its place."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import to_contract
from aaco_pipeline.optimization.loop.whole import Gain
from aaco_pipeline.optimization.targets import TargetName
from aaco_pipeline.pipeline.optimizing import running
from aaco_pipeline.pipeline.optimizing.asking import Order
from aaco_pipeline.pipeline.optimizing.effect import predicted_effect
from aaco_pipeline.pipeline.optimizing.running import run
from aaco_pipeline.report.document.optimization import searches_of
from tests.pipeline.optimizing.stand_in import InProcess, costing
from tests.sessions import made_by

SESSION = "20250102T030405Z-0a1b2c3d"
GAIN = Gain("confirmation", 1.25, 1.2, 1.5)
MI300X = "AMD Instinct MI300X (gfx942)"


@pytest.fixture
def lake(empty_lake: TraceLake) -> TraceLake:
    return with_session(empty_lake)


def with_session(lake: TraceLake, *names: str, arch: str | None = "gfx942:sramecc+:xnack-") -> TraceLake:
    """A session of two measured iterations of 100 ns, 60 of them in `twice`, then 40 in another kernel."""
    names = names or ("twice(float const*, float*, int)", "other")
    iteration = {"pass": "trace", "phase": "measure"}
    tables: dict[str, list[dict[str, Any]]] = {
        "devices": [{"device_id": 0, "arch": arch}],
        "kernels": [
            {"kernel_id": at, "name": name, "short_name": name, "role": "main", "family_source": "none"}
            for at, name in enumerate(names)
        ],
        "kernel_stats": [
            {"kernel_id": at, "dispatch_count": 2, "total_ns": total, "share_ratio": total / 200}
            | dict.fromkeys(("mean_ns", "min_ns", "p50_ns", "p99_ns", "max_ns"), total // 2)
            for at, total in enumerate((120, 80))
        ],
        "dispatches": [
            {
                **{"dispatch_id": at, "process_id": 0, "device_id": 0, "stream_id": 0, "kernel_id": at % 2},
                **{"iteration": at // 2, "start_ns": start, "end_ns": end, "below_resolution": False},
            }
            for at, (start, end) in enumerate([(0, 60), (60, 100), (100, 160), (160, 200)])
        ],
        "iterations": [
            {**iteration, "iteration": at, "start_ns": 100 * at, "end_ns": 100 * (at + 1)} for at in range(2)
        ],
    }
    for name, rows in tables.items():
        lake.publish(SESSION, name, {name: to_contract(name, pl.DataFrame(rows, infer_schema_length=None))})
    return lake


def test_a_gain_on_the_sessions_architecture_predicts_with_the_gains_interval(lake: TraceLake) -> None:
    found = predicted_effect(lake, SESSION, "twice", GAIN, MI300X)
    assert found["effect_scope"] == "iteration" and found["effect_reason"] is None
    assert found["critical_share_ratio"] == pytest.approx(0.6)
    assert found["shorter_ratio"] == pytest.approx(0.12)
    assert (found["shorter_low_ratio"], found["shorter_high_ratio"]) == pytest.approx((0.1, 0.2))


@pytest.mark.parametrize(
    ("applies_to", "told"),
    [
        ("cpu", "measured on cpu-emulation, which says nothing of the session's gfx942"),
        ("NVIDIA H200 (sm_90)", "measured on sm_90, and the session ran on gfx942"),
        ("AMD Instinct MI250X (gfx90a)", "measured on gfx90a, and the session ran on gfx942"),
    ],
)
def test_a_gain_elsewhere_predicts_nothing_and_the_share_is_still_told(
    lake: TraceLake, applies_to: str, told: str
) -> None:
    found = predicted_effect(lake, SESSION, "twice", GAIN, applies_to)
    assert told in found["effect_reason"]
    assert [found[name] for name in ("shorter_ratio", "shorter_low_ratio", "shorter_high_ratio")] == [None] * 3
    assert found["critical_share_ratio"] == pytest.approx(0.6)


def test_a_session_that_names_no_architecture_is_of_none(empty_lake: TraceLake) -> None:
    found = predicted_effect(with_session(empty_lake, arch=None), SESSION, "twice", GAIN, MI300X)
    assert found["shorter_ratio"] is None and "names no architecture" in found["effect_reason"]


def test_a_name_that_several_kernels_have_is_not_chosen_from(empty_lake: TraceLake) -> None:
    lake = with_session(empty_lake, "void twice<4>(float*)", "void twice<8>(float*)")
    found = predicted_effect(lake, SESSION, "twice", GAIN, MI300X)
    assert found["critical_share_ratio"] is None and "has 2 kernels called twice" in found["effect_reason"]
    assert "has no kernel thrice" in predicted_effect(lake, SESSION, "thrice", GAIN, MI300X)["effect_reason"]


def test_without_a_gain_only_the_share_is_known(lake: TraceLake) -> None:
    found = predicted_effect(lake, SESSION, "twice", None, MI300X)
    assert found["critical_share_ratio"] == pytest.approx(0.6) and found["shorter_ratio"] is None


@dataclass(frozen=True)
class Amd(InProcess):
    """As if it ran on an AMD GPU."""

    name: TargetName = "amd"
    executed_on: str = MI300X


def searched(lake: TraceLake, source: Path) -> dict[str, Any]:
    ended = run(source.parent, lake, Order(source, kernel="twice", session=SESSION), lambda line: None)
    return lake.read("optimizations", ended.name).row(0, named=True)


def test_a_search_for_a_session_leaves_the_effect_in_the_lake(
    lake: TraceLake, source: Path, offering: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    offering(costing(8000))
    row = searched(lake, source)
    assert row["critical_share_ratio"] == pytest.approx(0.6)
    assert row["shorter_ratio"] is None and "cpu-emulation" in row["effect_reason"]
    monkeypatch.setattr(running, "choose_target", lambda choice: Amd())
    row = searched(lake, source)
    assert row["shorter_ratio"] == pytest.approx(0.12, rel=0.02) and row["effect_reason"] is None
    assert row["shorter_low_ratio"] <= row["shorter_ratio"] <= row["shorter_high_ratio"]
    last, first = searches_of(lake, SESSION, "twice(float const*, float*, int)")
    assert (last["executed_on"], last["attempts"], last["accepted"]) == (MI300X, 1, 1)
    assert last["shorter_ratio"] == row["shorter_ratio"] and first["executed_on"] == "cpu-emulation"
    assert searches_of(lake, SESSION, "other") == [] and searches_of(lake, "another", "twice") == []
    headline = made_by(lake, SESSION, "optimization_loop").headline
    assert (headline["attempts"], headline["last_search"]) == (2, last["optimization_id"])
    assert headline["last_search_speedup_ratio"] == pytest.approx(1.25, rel=0.02)
