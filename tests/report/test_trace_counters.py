"""Samples as counters, each device's by itself; a limit holds from the sample before the one that tells it."""

from collections.abc import Iterator
from typing import Any

import polars as pl

from aaco_pipeline.report.trace_counters import Samples
from tests.analysis.delays.recorded import table


def sampled(host: list[dict[str, Any]], devices: list[dict[str, Any]]) -> Samples:
    tables = {"system_samples": table("system_samples", host), "gpu_samples": table("gpu_samples", devices)}

    def batches(name: str, columns: tuple[str, ...]) -> Iterator[pl.DataFrame]:
        yield tables[name].select(columns)

    return Samples(batches)


def test_columns_with_values_are_counters_and_what_was_not_read_is_none() -> None:
    samples = sampled(
        [{"time_ns": 5, "run_delay_ns": 7}, {"time_ns": 6}],
        [{"time_ns": 3, "device_id": 1, "power_w": 120.0}, {"time_ns": 4, "device_id": 0, "gfx_clock_mhz": 900.0}],
    )
    assert samples.starts() == [5, 3]
    assert [(name, unit, values.rows()) for name, unit, values in samples.counters()] == [
        ("run_delay", "ns", [(5, 7.0)]),
        ("power of device 1", "W", [(3, 120.0)]),
        ("engine clock of device 0", "MHz", [(4, 900.0)]),
    ]


def test_a_limit_holds_since_the_devices_sample_before() -> None:
    told: list[dict[str, Any]] = [
        {"time_ns": 10, "device_id": 0, "throttle_reasons": ["power"]},
        {"time_ns": 15, "device_id": 1, "throttle_reasons": None},
        {"time_ns": 20, "device_id": 0, "throttle_reasons": []},
        {"time_ns": 30, "device_id": 0, "throttle_reasons": ["power", "thermal"]},
        {"time_ns": 35, "device_id": 1, "throttle_reasons": ["thermal"]},
    ]
    found = sampled([], told).held_down()
    assert found.select("device_id", "start_ns", "end_ns", "name").rows() == [
        (0, 10, 10, "power"),
        (0, 20, 30, "power, thermal"),
        (1, 15, 35, "thermal"),
    ]
