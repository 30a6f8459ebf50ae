"""CSV tables of rocprofv3 (ROCm 6.2 to 7.x), and those that `rocpd convert` and `rocpd2csv` write.

What a file holds is decided by its header, whatever its name, without regard to case and order of columns. The tables
of one process's run share numbers of dispatches, agents and queues, so they are read together: `run_key` groups them.
The times are the host's boot clock. Columns that are not taken are told by name in evidence; the tables have no size
of copies.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from aaco_pipeline.formats.capture_tables import CaptureTables, DetectedFormat, FormatRow, Limits
from aaco_pipeline.formats.parsing.csv_text import header_of
from aaco_pipeline.formats.parsing.regular_files import is_regular

_DESCRIPTIONS: Final = {
    "kernel_trace": "kernel dispatches",
    "api_trace": "API calls and markers",
    "memory_copy": "memory copies",
    "memory_allocation": "memory allocations",
    "scratch_memory": "scratch memory",
    "counter_collection": "hardware counters",
    "agent_info": "devices",
    "statistics": "statistics",
    "pc_sampling": "program-counter samples",
}
#: What the tool puts behind the prefix of a run.
_KINDS: Final = (
    r"kernel_trace|(?:hip|hsa|marker|rccl|rocdecode|rocjpeg|kfd|ompt)(?:_(?:core|amd|runtime|compiler|compile))?"
    r"(?:_api)?_trace|memory_copy_trace|memory_allocation_trace|scratch_memory_trace|counter_collection|agent_info"
    r"|pc_sampling_host_trap|pc_sampling_stochastic"
    r"|(?:kernel|hip_api|hip|hsa_api|hsa|marker_api|rccl_api|rocdecode_api|rocjpeg_api|memory_copy|memory_allocation"
    r"|scratch_memory|domain)_stats"
)
_FILE: Final = re.compile(rf"(?:(?P<prefix>.+?)_)?(?P<kind>{_KINDS})\.csv(?:\.gz)?", re.IGNORECASE)


def probe(path: Path) -> DetectedFormat | None:
    """Recognize one table of rocprofv3 by its header; None for anything else. Reads a few KB."""
    kind = kind_of(frozenset(header_of(path) or ())) if is_regular(path) else None
    return None if kind is None else DetectedFormat("rocprofv3-csv", f"rocprofv3 {_DESCRIPTIONS[kind]} (CSV)")


def kind_of(names: frozenset[str]) -> str | None:
    """The kind of table that has these plain column names, or None for no table of rocprofv3."""
    if "gpu_id" in names:
        return None  # an older profiler's, or one that another tool made of its tables
    for kind, needed in _SIGNATURES:
        if names.issuperset(needed):
            return kind
    return None


_SIGNATURES: Final = (
    ("pc_sampling", ("sample_timestamp", "exec_mask")),
    ("counter_collection", ("counter_name", "counter_value")),
    ("memory_copy", ("direction", "correlation_id")),
    ("scratch_memory", ("operation", "alloc_flags")),
    ("memory_allocation", ("operation", "allocation_size")),
    ("memory_allocation", ("operation", "address")),
    ("api_trace", ("domain", "function")),
    ("statistics", ("name", "calls", "totaldurationns", "minns")),
    ("agent_info", ("node_id", "agent_type")),
    ("kernel_trace", ("kernel_name", "dispatch_id")),
)


def run_key(path: Path) -> str:
    """What all CSV files of one process's run have in common: the folder, and the name without its kind."""
    named = file_name(path.name)
    return str(path.parent / (named["prefix"] or "")) if named else str(path)


def file_name(name: str) -> re.Match[str] | None:
    """A file's name as the tool makes it: `prefix` of the run, and `kind` of the table."""
    return _FILE.fullmatch(name)


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
