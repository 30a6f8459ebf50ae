"""How the CSV tables of rocprofv3 are recognized by their headers, and which of them are of one run by their names.

Reading them is `aaco_pipeline.formats.rocprofv3_csv.reading`.
"""

import re
from pathlib import Path
from typing import Final

from aaco_pipeline.formats.capture_tables import DetectedFormat
from aaco_pipeline.formats.parsing.csv_header import header_of
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
