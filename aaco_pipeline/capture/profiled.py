"""What rocprofv3 recorded of a session that this project ran itself, put on the session's own axis.

The tool's files lie in the raw capture's folder `rocprofv3`; what else the capture holds is `inference_capture`.
"""

from functools import lru_cache
from pathlib import Path
from typing import Final

import polars as pl

from aaco_pipeline.capture.ingested import read_parts
from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import CaptureTables, Limits
from aaco_pipeline.formats.native import InferenceCapture, ProfilerPass
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.validation import to_contract

FOLDER: Final = "rocprofv3"


def base_pass(capture: InferenceCapture) -> ProfilerPass | None:
    """The session's kernel trace under rocprofv3, when one was asked for."""
    return next((one for one in capture.profiler_passes if one.kind == "base"), None)


def read(capture: InferenceCapture) -> CaptureTables:
    """All tables of the profiler passes, on the session's axis and with the session's process and device numbers.

    Processes follow the session's own (0 unprofiled, 1 the runtime's profile), devices follow the CPU, which is 0.
    Iterations are the base pass's, as its measured process timed them. CaptureError when the tool's files are damaged
    or the process read no boot clock, by which alone the tool's times have a place on the axis.
    """
    from aaco_pipeline.capture.merging import moved

    base = base_pass(capture)
    if base is None:
        raise CaptureError(f"{capture.folder}: holds no base pass of rocprofv3")
    clock = base.boot_clock
    if clock is None:
        raise CaptureError(f"{base.folder}: its process read no boot clock; the kernels have no place on the axis")
    reading = _assembled(capture.folder / FOLDER)
    clocks = reading.tables["clock_domains"].filter(pl.col("domain") == "boottime")
    zero_of_boot = -int(clocks.item(0, "offset_ns")) if clocks.height else 0
    by_ns = zero_of_boot + clock[0] - capture.axis_zero_monotonic_ns
    placed = moved(reading, by_ns, processes=capture.processes().height, devices=capture.devices().height)
    rows = {
        "domain": ["boottime"],
        "offset_ns": [clock[0] - capture.axis_zero_monotonic_ns],
        "uncertainty_ns": [clock[1]],
        "anchor": ["readings of CLOCK_BOOTTIME and CLOCK_MONOTONIC around the base pass, by the measured process"],
    }
    told = Evidence("device kernels", "present", None, FOLDER, placed.tables["dispatches"].height)
    tables = {**placed.tables, "clock_domains": to_contract("clock_domains", pl.DataFrame(rows))}
    return CaptureTables(tables, (*placed.evidence, told), placed.details)


@lru_cache(maxsize=1)
def _assembled(folder: Path) -> CaptureTables:
    from aaco_pipeline.capture.discovery import discover_runs  # every reader: only where a profiler ran

    runs = discover_runs(folder).runs
    if len(runs) != 1:
        raise CaptureError(f"{folder}: holds {len(runs)} runs, expected one; run the session again")
    reading, failed = read_parts(runs[0], Limits())
    return CaptureTables(reading.tables, (*reading.evidence, *failed), reading.details)
