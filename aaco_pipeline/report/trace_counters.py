"""Samples of the host and of devices as counters of a trace, and the times that a device's clocks were held down."""

from collections.abc import Iterator, Sequence
from typing import Final

import polars as pl

from aaco_pipeline.report.trace_tables import Batches, whole

#: Columns of `system_samples` that are counters in the trace, with their unit there.
_OF_HOST: Final = {
    "cpu_ratio": "ratio",
    "cpu_pressure_ratio": "ratio",
    "load_1m": "processes",
    "clock_mhz": "MHz",
    "process_cpu_ns": "ns",
    "run_delay_ns": "ns",
    "rss_bytes": "bytes",
    "voluntary_switches": "switches",
    "involuntary_switches": "switches",
    "major_faults": "faults",
}
#: The same of `gpu_samples`, with their name.
_OF_DEVICE: Final = {
    "power_w": ("power", "W"),
    "gfx_clock_mhz": ("engine clock", "MHz"),
    "memory_clock_mhz": ("memory clock", "MHz"),
    "gfx_activity_ratio": ("engine activity", "ratio"),
    "memory_activity_ratio": ("memory activity", "ratio"),
    "temperature_hotspot_c": ("hotspot", "°C"),
    "memory_used_bytes": ("memory in use", "bytes"),
}


class Samples:
    """One session's samples, on the session's axis."""

    def __init__(self, batches: Batches) -> None:
        self._host = whole(batches, "system_samples", ("time_ns", *_OF_HOST))
        self._devices = whole(batches, "gpu_samples", ("time_ns", "device_id", *_OF_DEVICE, "throttle_reasons"))

    def starts(self) -> Sequence[object]:
        """When each of its frames begins, None for an empty one."""
        return [frame.get_column("time_ns").min() for frame in (self._host, self._devices)]

    def counters(self) -> Iterator[tuple[str, str, pl.DataFrame]]:
        """Each column that has values: its name, its unit, and time_ns and value."""
        for column, unit in _OF_HOST.items():
            yield from _counter(column.removesuffix("_ns"), unit, self._host, column)
        for (device,), own in self._devices.group_by("device_id", maintain_order=True):
            for column, (name, unit) in _OF_DEVICE.items():
                yield from _counter(f"{name} of device {device}", unit, own, column)

    def held_down(self) -> pl.DataFrame:
        """The times for which a limit held a device's clocks down, as a sample says of the time since the one before
        it: device_id, start_ns, end_ns, and name, which are the limits."""
        since = pl.col("time_ns").shift(1).over("device_id", order_by="time_ns").fill_null(pl.col("time_ns"))
        return (
            self._devices.with_columns(start_ns=since)
            .filter(pl.col("throttle_reasons").list.len() > 0)
            .select("device_id", "start_ns", end_ns="time_ns", name=pl.col("throttle_reasons").list.join(", "))
        )


def _counter(name: str, unit: str, samples: pl.DataFrame, column: str) -> Iterator[tuple[str, str, pl.DataFrame]]:
    values = samples.select("time_ns", value=pl.col(column).cast(pl.Float64)).drop_nulls()
    if values.height:
        yield name, unit, values
