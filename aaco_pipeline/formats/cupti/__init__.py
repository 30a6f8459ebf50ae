"""Streams of this project's CUPTI recorder: the GPU activity of one CUDA process, one file `*.cupti` per process.

Written by `aaco_pipeline/recording/profilers/injection.cpp`, whose C++ structs `stream` mirrors. A file is a header and
chunks of equal records, each appended whole, so that a killed process leaves it readable up to the last chunk; chunks
of many records are packed, to 16 bytes per launch with its call. Records may gain fields at the end, and unknown kinds
of chunks are skipped. The reader relies on these facts of CUPTI: a device is CUDA's own number within the process and a
UUID everywhere; a grid counts blocks; correlations are unique within the process, and all kernels of one graph launch
share the launch's; a wait names its context, not its device. NVIDIA's streams are streams; hardware queues are unknown
and null. Not read: CUPTI's own overhead, which is summed in evidence, and calls that were not enabled, which evidence
names.
"""

from pathlib import Path
from typing import Final

from aaco_pipeline.formats.capture_tables import CaptureTables, DetectedFormat, FormatRow, Limits
from aaco_pipeline.formats.parsing.compression import first_bytes

#: First bytes of every stream.
MAGIC: Final = b"AACOCUPT"


def probe(path: Path) -> DetectedFormat | None:
    """Recognize a stream by its first bytes; None for anything else."""
    if first_bytes(path, len(MAGIC)) == MAGIC:
        return DetectedFormat("cupti", "CUPTI stream of aaco record")
    return None


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
