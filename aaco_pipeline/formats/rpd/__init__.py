"""RPD databases of rocmProfileData (SQLite, possibly gzip-compressed), which are also called rocpd.

Written by its tracer, which uses roctracer (`runTracer.sh`, `rpd_tracer`). Schema 2 is known from a real file and the
writer's source; later ones are read by their known column names. The reader relies on these properties: times are ns of
one host clock; `rocpd_api_ops` ties an operation to its launching call; `rocpd_kernelapi` has a launch as stated by the
program, in workgroups except for `hipExtModuleLaunchKernel` and `hipHccModuleLaunchKernel`, which state work-items;
copy sizes are truncated to 32 bits. Not read: call arguments except for markers, clocks in `rocpd_monitor` (whose
devices are numbered differently), and local memory sizes (only the launch's own part is stated).
"""

from pathlib import Path
from typing import Final

from aaco_pipeline.formats.capture_tables import CaptureTables, DetectedFormat, FormatRow, Limits
from aaco_pipeline.formats.rocpd import RPD_TABLES, table_names

DOCUMENTATION: Final = FormatRow(
    "RPD database of rocmProfileData (`.rpd`), also gzip",
    "its tables `rocpd_op` and `rocpd_api`",
    "dispatches, calls, copies, markers",
)


def probe(path: Path) -> DetectedFormat | None:
    """Recognize a database by its tables' names; None for anything else."""
    names = table_names(path)
    if names & RPD_TABLES and not any(name.startswith(("rocpd_kernel_dispatch", "rocpd_metadata_")) for name in names):
        return DetectedFormat("rpd", "RPD database of rocmProfileData (SQLite)")
    return None


def read(path: Path, limits: Limits | None = None) -> CaptureTables:
    """Read one database; times are int64 ns of the tracer's own clock, which is not tied to any other.

    Tables: `processes`, `devices` (named by operations, by number only), `clock_domains`, `kernels`, `dispatches`,
    `api_calls`, `memory_copies`, `markers`. Details: `dispatch_keys` (the operation's own number) and `source_rows`.
    CaptureError if it is not such a database, is truncated, damaged or unfinished, or exceeds the limits.
    """
    from aaco_pipeline.formats.rpd import reading

    return reading.read(path, limits or Limits())
