"""Dumps of the amdgpu driver's `gpu_metrics` tables: one table a file, several one after another, or a folder of them.

Written by whoever copies `/sys/class/drm/card*/device/gpu_metrics`, and by the project's own sampler. Versions 1.3 to
1.9 are read, the tables of APUs (2 and 3) are refused by name. The tables' layouts are
`aaco_pipeline.formats.gpu_metrics.layouts`; taking readings beside a run is
`aaco_pipeline.resources.telemetry.gpu_metrics`. A value that is all ones is one the device does not report: null.
"""

from pathlib import Path
from typing import Any, Final

from aaco_pipeline.formats.capture_tables import CaptureTables, FormatRow, Limits
from aaco_pipeline.formats.gpu_metrics.signs import probe

__all__ = ["DOCUMENTATION", "probe", "read", "read_recorded"]

DOCUMENTATION: Final = FormatRow(
    "amdgpu `gpu_metrics` tables, 1.3 to 1.9", "size and version in their first bytes", "GPU samples"
)


def read(path: Path, limits: Limits | None = None) -> CaptureTables:
    """A dump, or a folder of dumps whose names or folders begin with `card<n>` where they are of several devices.

    Tables: `gpu_samples` in order of device and time, `devices`, `clock_domains`. Times are the tables' own:
    CLOCK_BOOTTIME as the driver noted it, else the firmware's timestamp; a table with neither cannot be placed and is
    told. Details: `fields_<version>` (device_id, time_ns and every field, 64-bit counters exact; values of several
    instances as arrays, those of partitions as `xcp_<field>`, partition after partition), `between_samples` as in
    `between`, and `source_rows`. CaptureError for what is no such table, of an unknown version, or not of its size.
    """
    from aaco_pipeline.formats.gpu_metrics import reading

    return reading.read(path, limits or Limits())


def read_recorded(
    recordings: Any, axis_zero_ns: int, source: str, *, first_device_id: int = 0, limits: Limits | None = None
) -> CaptureTables:
    """What the sampler recorded: as `read`, at the times it took the readings, less `axis_zero_ns`.

    The devices are numbered from `first_device_id`. Gives no `clock_domains`: the caller knows the clock. CaptureError
    when the recordings are not what the sampler writes.
    """
    from aaco_pipeline.formats.gpu_metrics import reading

    return reading.read_recorded(recordings, axis_zero_ns, source, first_device_id, limits or Limits())
