"""Workload folders of rocprof-compute (formerly Omniperf): counters of many passes, joined by that tool.

`pmc_perf.csv` contains the counters, either wide (one row per dispatch, one column per counter, per channel if its name
ends in `[n]`) or long (one row per dispatch and counter); `SQ_*.csv` are separate passes with accumulated counters.
`timestamps.csv`, `sysinfo.csv`, `roofline.csv` and `profiling_config.yaml` may accompany them.

The times in `pmc_perf.csv` are real only in some releases. Others average them over the passes, or set the start to 0
and the end to a median duration; some published folders were processed by a spreadsheet that truncated their digits.
Such times produce no dispatches and are kept in the detail `dispatch_durations`. Not read: the tool's own analysis and
plots.
"""

from pathlib import Path
from typing import Final

from aaco_pipeline.formats.capture_tables import CaptureTables, DetectedFormat, FormatRow, Limits
from aaco_pipeline.formats.parsing.csv_text import header_of
from aaco_pipeline.formats.parsing.regular_files import is_regular
from aaco_pipeline.formats.rocprof import is_wide

#: The table of counters, and the columns of its long form.
MAIN: Final = "pmc_perf.csv"
LONG: Final = frozenset(("dispatch_id", "kernel_name", "counter_name", "counter_value"))


def probe(path: Path) -> DetectedFormat | None:
    """Recognize a workload folder by the header of its `pmc_perf.csv`; None for anything else."""
    main = path / MAIN
    names = frozenset(header_of(main) or ()) if is_regular(main) else frozenset[str]()
    if names >= LONG and "gpu_id" in names:
        return DetectedFormat("rocprof-compute", "rocprof-compute workload (long counters)")
    if is_wide(names):
        return DetectedFormat("rocprof-compute", "rocprof-compute workload (wide counters)")
    return None


DOCUMENTATION: Final = FormatRow(
    "rocprof-compute workload folder, wide or long",
    "the header of its `pmc_perf.csv`",
    "counters, devices, measured ceilings",
)


def read(path: Path, limits: Limits | None = None) -> CaptureTables:
    """Read a workload folder.

    Tables: `processes`, `devices`, `kernels`, `dispatches` (only if the times are measured), `counters`,
    `clock_domains`, `environment`, `ceilings` (only if their device is certain). Details: `counter_dispatches` (see
    `aaco_pipeline.formats.parsing.counter_passes`; one row per dispatch and pass); `dispatch_durations` (`dispatch_id`,
    `source_dispatch_id`, `pass`, `duration_ns`, `times`) with the duration of each dispatch in `pmc_perf.csv`, whether
    its times are real or not; `dispatch_keys`; `timestamps` (that file's executions, in columns of `counter_dispatches`
    without numbers); `roofline` (that file, numbers as float64); `source_rows`. CaptureError for a folder that is not
    one or has damaged files.
    """
    from aaco_pipeline.formats.rocprof_compute import reading

    return reading.read(path, limits or Limits())
