"""The raw capture of an inference session, as this project's own runner leaves it.

Written by `aaco_pipeline.resources.measure.inference`; the profile beside its documents is read by
`aaco_pipeline.formats.ort_profile`, readings of host and GPUs by `telemetry`, scheduler events by `scheduler`. Metrics
over the iterations are `aaco_pipeline.analysis.sessions.metrics`. Versions 1 and 2 of the documents are read: the
loop of version 1 read CPU time and run-queue delay around each iteration, that of version 2 reads them in blocks.
"""

from pathlib import Path

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import DetectedFormat
from aaco_pipeline.formats.native.inference import (
    CLOCK_STEP_NS,
    FORMAT,
    FORMAT_VERSION,
    MODEL_FILE,
    OPTIMIZED_FILE,
    PROFILE_FILE,
    InferenceCapture,
    ProfilerPass,
)
from aaco_pipeline.formats.parsing.json_document import json_document

__all__ = [
    "CLOCK_STEP_NS",
    "FORMAT",
    "FORMAT_VERSION",
    "MODEL_FILE",
    "OPTIMIZED_FILE",
    "PROFILE_FILE",
    "InferenceCapture",
    "ProfilerPass",
    "probe",
    "read",
]


def probe(path: Path) -> DetectedFormat | None:
    """Recognize a raw capture's folder by its `capture.json`."""
    try:
        document = json_document(path / "capture.json")
    except CaptureError:
        return None
    if isinstance(document, dict) and document.get("format") == FORMAT:
        return DetectedFormat(FORMAT, f"inference session captured by {document.get('writer', 'aaco_pipeline')}")
    return None


def read(path: Path) -> InferenceCapture:
    """Read the documents of a raw capture. CaptureError names the file, the key and what is wrong with it."""
    from aaco_pipeline.formats.native.documents import read_documents

    return read_documents(path)
