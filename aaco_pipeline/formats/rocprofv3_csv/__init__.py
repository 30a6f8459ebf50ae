"""CSV tables of rocprofv3 (ROCm 6.2 to 7.x), and those written by `rocpd convert` and `rocpd2csv`.

A file's contents are determined by its header, not its name; case and order of columns do not matter. The tables of one
process's run share the numbers of dispatches, agents and queues, so they are read together: `run_key` groups them.
Times are on the host's boot clock. Evidence names unread columns; the tables do not state copy sizes.
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
#: Suffixes that the tool appends to a run's prefix.
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
    """Return the kind of table with these plain column names, or None if it is not rocprofv3's."""
    if "gpu_id" in names:
        return None  # from an older profiler, or converted by another tool
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
    """Return the key shared by all CSV files of one process's run: the folder, and the name without its kind."""
    named = file_name(path.name)
    return str(path.parent / (named["prefix"] or "")) if named else str(path)


def file_name(name: str) -> re.Match[str] | None:
    """Parse a file name written by the tool: `prefix` of the run, and `kind` of the table."""
    return _FILE.fullmatch(name)


DOCUMENTATION: Final = FormatRow(
    "rocprofv3 CSV, 6.2 to 7.x, and `rocpd convert`",
    "the header, in any case of letters",
    "as a rocpd database, and PC samples and printed statistics",
)


def read(path: Path, limits: Limits | None = None) -> CaptureTables:
    """Read one table; see `read_run`."""
    return read_run([path], limits)


def read_run(paths: Sequence[Path], limits: Limits | None = None) -> CaptureTables:
    """Read the tables of one process's run together, sharing numbers of processes, devices, queues and kernels.

    Tables, if present in the files: `processes`, `devices`, `clock_domains`, `kernels`, `dispatches`, `api_calls`,
    `markers`, `memory_copies`, `memory_allocations`, `counters`, `pc_samples`, `reported_statistics`. Details:
    `dispatch_keys`; `counter_dispatches` (see `aaco_pipeline.formats.parsing.counter_passes`); `queues` and `streams`
    (`queue_id`/`stream_id`, `process_id`, `source` = the capture's number as text); `source_rows`.

    Counters refer to the dispatches of the run's kernel trace if number and name agree; counted executions missing from
    the run's kernel traces become dispatches if the file states their times. CaptureError for a file that is not such a
    table or lacks an essential column; a truncated file is read up to the cut and reported.
    """
    from aaco_pipeline.formats.rocprofv3_csv import reading

    return reading.read_run(paths, limits or Limits())
