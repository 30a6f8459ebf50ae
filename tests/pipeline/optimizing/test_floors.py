"""The least time of a call, from the harness' least work and what this machine was measured to reach."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aaco_pipeline.lake.calibrations import Calibration, Ceiling, machine_of, write_calibration
from aaco_pipeline.optimization.calls import Call, Launch
from aaco_pipeline.optimization.harness import Harness
from aaco_pipeline.pipeline.optimizing.floors import floor_ns

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
