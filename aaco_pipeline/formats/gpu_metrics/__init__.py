"""Dumps of the amdgpu driver's `gpu_metrics` tables: one per file, several in a row, or a folder of them.

Written by copying `/sys/class/drm/card*/device/gpu_metrics`, or by the project's own sampler. Versions 1.3 to 1.9 are
read; tables of APUs (2 and 3) are rejected by name. `aaco_pipeline.formats.gpu_metrics.layouts` describes the binary
layouts; `aaco_pipeline.resources.telemetry.gpu_metrics` samples during a run. A value with all bits set is not reported
by the device: null.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import CaptureTables, DetectedFormat, FormatRow, Limits
from aaco_pipeline.formats.parsing.regular_files import entries, is_folder, open_regular

FORMAT: Final = "amdgpu-gpu-metrics"
_LARGEST_TABLE: Final = 1 << 16
_CARD: Final = re.compile(r"card\d{1,4}(?!\d)")


def probe(path: Path) -> DetectedFormat | None:
    """Recognize a dump by the header of its first table, a folder by its first dump; None for anything else.

    Unreadable versions are recognized too, so that `read` can reject them by name.
    """
    try:
        if is_folder(path):
            first = next(dump_files(path), None)
            found = probe(first) if first is not None else None
            return found and DetectedFormat(FORMAT, f"folder of dumps: {found.detail}")
        with open_regular(path) as stream:
            head = stream.read(_LARGEST_TABLE)
    except (OSError, ValueError, CaptureError):
        return None
    if len(head) <= 4 or not (1 <= head[2] <= 3 and head[3] <= 32):  # size, format and content revision
        return None
    from aaco_pipeline.formats.gpu_metrics.layouts import dotted, header, is_table

    return DetectedFormat(FORMAT, f"gpu_metrics table of version {dotted(header(head)[1])}") if is_table(head) else None


def dump_files(folder: Path) -> Iterator[Path]:
    """List the files of a folder and of its card folders by name, including links and devices."""
    for entry in entries(folder):
        if not entry.is_folder:
            yield entry.path
        elif _CARD.match(entry.path.name):
            yield from (inner.path for inner in entries(entry.path) if not inner.is_folder)


def device_of(name: str) -> str | None:
    """Return the card that a file or folder is named after."""
    match = _CARD.match(name)
    return match[0] if match is not None else None


DOCUMENTATION: Final = FormatRow(
    "amdgpu `gpu_metrics` tables, 1.3 to 1.9", "size and version in their first bytes", "GPU samples"
)


def read(path: Path, limits: Limits | None = None) -> CaptureTables:
    """Read a dump or a folder of dumps; with several devices, names or folders begin with `card<n>`.

    Tables: `gpu_samples` in order of device and time, `devices`, `clock_domains`. Times are the tables' own:
    CLOCK_BOOTTIME as recorded by the driver, else the firmware's timestamp; a table with neither cannot be placed and
    is reported. Details: `fields_<version>` (device_id, time_ns and every field, 64-bit counters exact; values of
    several instances as arrays, those of partitions as `xcp_<field>`, partition by partition), `between_samples` as in
    `between`, and `source_rows`. CaptureError if it is not such a table, has an unknown version or the wrong size.
    """
    from aaco_pipeline.formats.gpu_metrics import reading

    return reading.read(path, limits or Limits())


def read_recorded(
    recordings: Any, axis_zero_ns: int, source: str, *, first_device_id: int = 0, limits: Limits | None = None
) -> CaptureTables:
    """Read the sampler's recordings like `read`, at the times of its readings less `axis_zero_ns`.

    Devices are numbered from `first_device_id`. Returns no `clock_domains`, because the caller knows the clock.
    CaptureError if the recordings do not have the sampler's format.
    """
    from aaco_pipeline.formats.gpu_metrics import reading

    return reading.read_recorded(recordings, axis_zero_ns, source, first_device_id, limits or Limits())
