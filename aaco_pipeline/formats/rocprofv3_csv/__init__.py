"""CSV tables of rocprofv3 (ROCm 6.2 to 7.x), and those that `rocpd convert` and `rocpd2csv` write.

What a file holds is decided by its header, whatever its name, without regard to case and order of columns. The tables
of one process's run share numbers of dispatches, agents and queues, so they are read together: `run_key` groups them.
The times are the host's boot clock. Columns that are not taken are told by name in evidence; the tables have no size
of copies.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from aaco_pipeline.formats.capture_tables import CaptureTables, FormatRow, Limits
from aaco_pipeline.formats.rocprofv3_csv.signs import probe, run_key

__all__ = ["DOCUMENTATION", "probe", "read", "read_run", "run_key"]

DOCUMENTATION: Final = FormatRow(
    "rocprofv3 CSV, 6.2 to 7.x, and `rocpd convert`",
    "the header, in any case of letters",
    "as a rocpd database, and PC samples and printed statistics",
)


def read(path: Path, limits: Limits | None = None) -> CaptureTables:
    """Read one table; see `read_run`."""
    return read_run([path], limits)


def read_run(paths: Sequence[Path], limits: Limits | None = None) -> CaptureTables:
    """Read the tables of one process's run together, with common numbers of processes, devices, queues and kernels.

    Tables: those the files hold, of `processes`, `devices`, `clock_domains`, `kernels`, `dispatches`, `api_calls`,
    `markers`, `memory_copies`, `memory_allocations`, `counters`, `pc_samples`, `reported_statistics`. Details:
    `dispatch_keys`; `counter_dispatches` (see `aaco_pipeline.formats.parsing.counter_passes`); `queues` and `streams`
    (`queue_id`/`stream_id`, `process_id`, `source` = the capture's number as text); `source_rows`.

    Counters refer to the dispatches of the run's kernel trace where number and name agree; counted executions that no
    kernel trace of the run holds become dispatches if the file states their times. Raises CaptureError for a file that
    is no such table or lacks an essential column; a cut end is read up to the cut and told.
    """
    from aaco_pipeline.formats.rocprofv3_csv import reading

    return reading.read_run(paths, limits or Limits())
