"""Streams of this project's CUPTI recorder: the GPU activity of one CUDA process, one file `*.cupti` per process.

Written by `aaco_pipeline/recording/profilers/injection.cpp`; `stream` mirrors its C++ structs. A file is a header
followed by chunks of records of one size. Each chunk is appended in one piece, so after a kill the file is readable up
to the last complete chunk; chunks of many records are packed, to 16 bytes per launch including its call. Records may
gain fields at the end, and unknown kinds of chunks are skipped. The reader relies on these properties of CUPTI: a
device has CUDA's number within the process and a global UUID; a grid counts blocks; correlations are unique within the
process, and all kernels of one graph launch share the launch's correlation; a wait names its context, not its device.
NVIDIA's streams become streams; hardware queues are unknown and null. Not read: CUPTI's own overhead, which is totalled
in the evidence, and calls that were not enabled, which the evidence names.
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

    A truncated stream is read up to its last complete chunk and reported as `partial`; so are records dropped by CUPTI
    and activity after another tool took over CUPTI. CaptureError if it is not such a stream, has a later version,
    contradicts itself or exceeds the limits.
    """
    from aaco_pipeline.formats.cupti import reading

    return reading.read(path, limits or Limits())
