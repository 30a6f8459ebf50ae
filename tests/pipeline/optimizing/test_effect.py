"""What a gain would do to a session: predicted where both are of one architecture, and else a reason in its place.

The least time of a call, from the harness' least work and what this machine was measured to reach.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from aaco_pipeline.lake.calibrations import Calibration, Ceiling, machine_of, write_calibration
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import to_contract
from aaco_pipeline.optimization.harness import Harness
from aaco_pipeline.optimization.loop.search import Gain
from aaco_pipeline.optimization.targets import Call, Launch, TargetName
from aaco_pipeline.pipeline.optimizing import search
from aaco_pipeline.pipeline.optimizing.asking import Order
from aaco_pipeline.pipeline.optimizing.search import floor_ns, predicted_effect, run
from aaco_pipeline.report.optimization.document import searches_of
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
    monkeypatch.setattr(search, "choose_target", lambda choice: Amd())
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


FACTS: list[dict[str, Any]] = [{"category": "cpu", "key": "model", "value": "a processor"}]


def harness(flops: float, moved: float) -> Harness:
    """A harness whose kernel does so many operations and moves so many bytes."""

    def call(size: Any, distribution: str, rng: np.random.Generator) -> Call:
        return Call(Launch((1, 1, 1), (1, 1, 1)), (), {})

    return Harness("k", (1,), 1, call, lambda call: {}, lambda size: (flops, moved))


@pytest.fixture
def calibrated(tmp_path: Path) -> Path:
    """A lake that knows this machine to do 10 operations and move 4 bytes a nanosecond at best."""
    ceilings = (
        Ceiling("vector", "float32", 10e9, "flop/s", "measured"),
        Ceiling("vector", "float64", 5e9, "flop/s", "measured"),
        Ceiling("dram", None, 1e9, "byte/s", "measured"),
        Ceiling("l1", None, 4e9, "byte/s", "measured"),
    )
    machine = machine_of({(one["category"], one["key"]): one["value"] for one in FACTS})
    write_calibration(tmp_path, Calibration(machine, 1, "2026-01-01T00:00:00Z", ceilings))
    return tmp_path


def test_the_floor_is_the_longer_of_both_at_the_best_rate_of_each(calibrated: Path) -> None:
    found = [floor_ns(calibrated, harness(flops, 40), "cpu", FACTS)[0] for flops in (1000, 10)]
    assert found == pytest.approx([100, 10])


def test_without_measured_rates_there_is_none_and_why(calibrated: Path, tmp_path: Path) -> None:
    floor, why = floor_ns(tmp_path / "other", harness(1, 1), "cpu", FACTS)
    assert floor is None and why is not None and "aaco calibrate --threads 1" in why
    floor, why = floor_ns(calibrated, harness(1, 1), "cuda", FACTS)
    assert floor is None and why is not None and "cuda" in why
