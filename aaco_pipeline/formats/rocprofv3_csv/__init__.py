"""CSV tables of rocprofv3 (ROCm 6.2 to 7.x), and those that `rocpd convert` and `rocpd2csv` write.

What a file holds is decided by its header, whatever its name, without regard to case and order of columns. The tables
of one process's run share numbers of dispatches, agents and queues, so they are read together: `run_key` groups them.
The times are the host's boot clock.
"""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import CaptureTables, DetectedFormat, Limits
from aaco_pipeline.formats.parsing.csv_text import header_of, read_text
from aaco_pipeline.formats.rocprofv3_csv import tables
from aaco_pipeline.formats.rocprofv3_csv.frames import ESSENTIAL

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
_PASS_FOLDER: Final = re.compile(r"pass_\d+", re.IGNORECASE)


def probe(path: Path) -> DetectedFormat | None:
    """Recognize one table of rocprofv3 by its header; None for anything else. Reads a few KB."""
    kind = kind_of(frozenset(header_of(path) or ())) if path.is_file() else None
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
    named = _FILE.fullmatch(path.name)
    return str(path.parent / (named["prefix"] or "")) if named else str(path)


def pass_name(path: Path) -> str:
    """The counter pass of a file: its folder `pass_n` if it lies in one, else the prefix of its name."""
    for folder in (path.parent, path.parent.parent, path.parent.parent.parent):
        if _PASS_FOLDER.fullmatch(folder.name):
            return folder.name
    named = _FILE.fullmatch(path.name)
    return (named["prefix"] or named["kind"]) if named else path.name.split(".")[0]


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
    bounds = limits or Limits()
    if not paths:
        raise CaptureError("no files of a rocprofv3 run given; name at least one")
    names = Counter(path.name for path in paths)
    labels = [path.name if names[path.name] == 1 else str(path) for path in paths]
    files = [_file(path, label, bounds) for path, label in zip(paths, labels, strict=True)]
    if sum(file.table.frame.height for file in files) > bounds.events:
        raise CaptureError(f"{paths[0]}: more than {bounds.events} rows in its run; raise the limit or capture less")
    return tables.assembled(files)


def _file(path: Path, label: str, limits: Limits) -> tables.SourceFile:
    table = read_text(path, limits)
    kind = kind_of(frozenset(table.frame.columns))
    if kind is None:
        raise CaptureError(f"{path}: not a table of rocprofv3; its columns are {', '.join(table.header[:8])}")
    table.require(f"a {kind} table of rocprofv3", *ESSENTIAL[kind])
    return tables.SourceFile(table, kind, pass_name(path), label)
