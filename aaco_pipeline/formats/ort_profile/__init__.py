"""ONNX Runtime's profile (a JSON array, one event per line, possibly gzip-compressed).

Written by ONNX Runtime with profiling enabled; verified with onnxruntime 1.31. Node events become dispatches, one
kernel per executed node; session events become API calls of the domain `onnxruntime`. The caller provides the clock's
offset on the session's axis; `aaco_pipeline.analysis` interprets the times. Not read: events before and after a node's
kernel, and other categories.

The reader relies on these properties: times are whole microseconds since the start of profiling; events are written
when they end, so within a thread the file is in order of end time; the child events of an operator with a body (If,
Loop, Scan) precede its own event; a run's `model_run` follows its nodes; recording stops at 1,000,000 events, which
newer runtimes report in a `profile_truncated` event.
"""

from pathlib import Path
from typing import Final

from aaco_pipeline.formats.capture_tables import CaptureTables, DetectedFormat, FormatRow, Limits
from aaco_pipeline.formats.parsing.compression import first_bytes

DOCUMENTATION: Final = FormatRow("ONNX Runtime profile", "its events", "kernels, runs")
#: The runtime's cap on events, at which it silently stops recording.
EVENT_CAP: Final = 1_000_000


def probe(path: Path) -> DetectedFormat | None:
    """Recognize a profile by its first event; None for anything else. Reads at most one kilobyte."""
    text = first_bytes(path, 1024).lstrip()
    if text.startswith(b"[") and b'"cat"' in text and b'"model_loading' in text:
        return DetectedFormat("onnxruntime-profile", "ONNX Runtime profile (JSON events)")
    return None


def read(path: Path, limits: Limits | None = None, *, axis_start_ns: int = 0, process_id: int = 0) -> CaptureTables:
    """Read a profile whose profiling began at `axis_start_ns` on the session's axis (0: its own axis).

    Tables: `kernels`, `dispatches` (with `iteration` = ordinal of the model run), `api_calls`. Detail `kernel_shapes`:
    `kernel_id` with the data types and shapes of its first execution (`input_dtypes`, `input_shapes`, `output_dtypes`,
    `output_shapes`, lists by position); detail `source_rows`. CaptureError for a file that is not a profile or is
    damaged before its end; a truncated file is read up to the cut and reported.
    """
    from aaco_pipeline.formats.ort_profile import reading

    return reading.read(path, limits or Limits(), axis_start_ns, process_id)
