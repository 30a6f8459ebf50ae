"""Streams of this project's own CUPTI recorder: what one CUDA process did on its GPUs, one file `*.cupti` a process.

Written by `aaco_pipeline/recording/profilers/injection.cpp`, which states the layouts as C++ structs; `layout` states
the same. A file is a header and chunks of equal records, each appended whole, so that what a kill leaves is readable up
to its last chunk; chunks of many records are packed (`packing`), which leaves 16 bytes of a launch with its call.
Fields may be added at the end of a record and kinds of chunks be new: both are passed over. Facts of CUPTI this reader
relies on: a device is CUDA's own number within the process and a UUID everywhere; a grid counts blocks; correlations
are unique within the process, and all kernels of one launch of a graph share the launch's; a wait names its context,
not its device. NVIDIA's streams are streams; it tells of no hardware queues, which are null.
Not taken: what CUPTI itself cost, which is summed in evidence, and calls that were not enabled, which it names.
"""

from pathlib import Path
from typing import Final

from aaco_pipeline.formats.capture_tables import CaptureTables, DetectedFormat, FormatRow, Limits
from aaco_pipeline.formats.parsing.compression import first_bytes

#: How every stream begins.
MAGIC: Final = b"AACOCUPT"


def probe(path: Path) -> DetectedFormat | None:
    """Recognize a stream by its first bytes; None for anything else."""
    if first_bytes(path, len(MAGIC)) == MAGIC:
        return DetectedFormat("cupti", "CUPTI stream of aaco record")
    return None


__all__ = ["DOCUMENTATION", "probe", "read"]

DOCUMENTATION: Final = FormatRow(
    "CUPTI streams of `aaco record` on NVIDIA, a file a process, also gzip",
    "their first eight bytes, `AACOCUPT`",
    "dispatches, calls, copies, fills, allocations, waits, NVTX ranges, devices, processes",
)


def read(path: Path, limits: Limits | None = None) -> CaptureTables:
    """Read one process's stream; times are int64 ns of the host's CLOCK_MONOTONIC.

    Tables: `processes`, `devices`, `clock_domains`, `environment`, `kernels`, `dispatches`, `api_calls`,
    `memory_copies` with fills, `memory_allocations`, `markers`, `synchronizations`. Details: `source_rows`; `streams`
    (`stream_id`, `device_id`, `source_stream`); `launch_facts` (`dispatch_id`, `registers_per_thread`).

    A stream that was cut is read up to its last whole chunk and told as `partial`, as are records that CUPTI dropped
    and what came after another tool took CUPTI over. Raises CaptureError for what is no such stream, is of a later
    version, contradicts itself, or goes beyond the limits.
    """
    from aaco_pipeline.formats.cupti import reading

    return reading.read(path, limits or Limits())
