"""RPD databases of rocmProfileData (SQLite, possibly gzip-compressed), which call themselves rocpd, too.

Written by its tracer on top of roctracer (`runTracer.sh`, `rpd_tracer`); schema 2 is seen in a real file and in the
writer's source, later ones are read by the names of their columns as far as they are known. Facts of the format this
reader relies on: times are ns of one clock of the host; an operation is tied to the call that launched it by
`rocpd_api_ops`; `rocpd_kernelapi` has a launch as the program stated it, in workgroups but for
`hipExtModuleLaunchKernel` and `hipHccModuleLaunchKernel`, which state work-items; sizes of copies are cut to 32 bits.
Not taken: arguments of calls but for markers, clocks in `rocpd_monitor` (their devices are numbered otherwise), and
sizes of local memory (the launch's own part alone is stated).
"""

from pathlib import Path
from typing import Final

from aaco_pipeline.formats.capture_tables import CaptureTables, DetectedFormat, FormatRow, Limits
from aaco_pipeline.formats.parsing.sqlite_file import RPD_TABLES, table_names

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
    """Read one database; times are int64 ns of the tracer's own clock, which nothing ties to another.

    Tables: `processes`, `devices` (what operations name, by number alone), `clock_domains`, `kernels`, `dispatches`,
    `api_calls`, `memory_copies`, `markers`. Details: `dispatch_keys` (the operation's own number) and `source_rows`.
    Raises CaptureError for what is no such database, is cut or damaged, not yet finished, or over the limits.
    """
    from aaco_pipeline.formats.rpd import reading

    return reading.read(path, limits or Limits())
