"""PyTorch Kineto's Chrome JSON, of ROCm and of CUDA, in any layout and possibly gzip-compressed.

Written by PyTorch's profiler; measured on traces of PyTorch 2.0 to 2.9. Keys come in any order: `deviceProperties` and
`schemaVersion` may follow the events. Facts of the format this reader relies on: `ts` and `dur` are microseconds with
up to three decimals; `ts` counts from `baseTimeNanoseconds`, or from the Unix epoch where the trace has no such key;
`grid` counts blocks; the category `cuda_runtime` (at first `Runtime`) holds the hip* calls of ROCm; device activities
name their device and stream in `args` and the call that launched them by `correlation`, and of a graph launch many
share one. Not taken: counters and instants of the viewer, the profiler's own overhead, and ranges that are written as
two events.
"""

import re
from pathlib import Path
from typing import Final

from aaco_pipeline.formats.capture_tables import CaptureTables, DetectedFormat, FormatRow, Limits
from aaco_pipeline.formats.parsing.compression import first_bytes

DOCUMENTATION: Final = FormatRow(
    "PyTorch (Kineto) trace of ROCm or CUDA, also gzip",
    "its first keys, or a kernel's arguments where they come late",
    "dispatches, calls, copies, operators, annotations, waits",
)
_PROBED_BYTES: Final = 64 << 10
_TELLING: Final = (b'"schemaVersion"', b'"baseTimeNanoseconds"', b'"deviceProperties"', b'"cpu_op"', b'"cuda_runtime"')
#: A kernel or copy with the arguments that Kineto gives it; other tools' Chrome traces name no stream and correlation.
_ACTIVITY: Final = re.compile(
    rb'"cat"\s*:\s*"(?:[Kk]ernel|gpu_memcpy|gpu_memset|Memcpy|Memset)"[^{}]{0,8192}"args"\s*:\s*\{'
    rb'(?=[^{}]{0,8192}"stream"\s*:)[^{}]{0,8192}"correlation"\s*:'
)


def probe(path: Path) -> DetectedFormat | None:
    """Recognize a trace by its first keys; None for anything else. Reads at most 64 KiB."""
    head = first_bytes(path, _PROBED_BYTES)
    is_trace = head.lstrip()[:1] in (b"{", b"[") and (b'"traceEvents"' in head or b'"ph"' in head)
    if is_trace and (any(word in head for word in _TELLING) or _ACTIVITY.search(head) is not None):
        return DetectedFormat("kineto", "PyTorch Kineto trace (Chrome JSON)")
    return None


def read(path: Path, limits: Limits | None = None) -> CaptureTables:
    """Read a trace; times are int64 ns of its own clock `kineto`, exact to the last digit of the text.

    Tables: `processes`, `devices`, `clock_domains`, `kernels`, `dispatches`, `api_calls`, `memory_copies`, `markers`
    (with a row for each operator that records a collective, beside its call), `synchronizations`, `environment`,
    `operator_inputs` (where the trace recorded the inputs of operators: `record_shapes=True`).
    Details: `source_rows`; `streams` (`stream_id`, `device_id`, `source_stream`); `launch_facts` (`dispatch_id`,
    `registers_per_thread`, `blocks_per_sm`, `warps_per_sm`, `estimated_occupancy_percent`) where the trace states them;
    `named_launches` (`call_id`, `kernel`, work-items of grid and workgroup) where calls state what they launch, as on
    ROCm; `forward_backward` (`flow_id`, `role` s or f, `thread_id`, `time_ns`) where operators of the backward pass are
    linked to those of the forward pass.

    A time with more than three decimals is rounded to the nearest nanosecond, half away from zero, start and duration
    each for itself. A trace that stops in the middle is read up to its last whole event and told as `partial`. Raises
    CaptureError for a file that is no trace, is damaged before its end, or goes beyond the limits.
    """
    from aaco_pipeline.formats.kineto import reading

    return reading.read(path, limits or Limits())
