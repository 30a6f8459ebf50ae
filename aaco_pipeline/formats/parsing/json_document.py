"""A JSON document of a capture that is read whole: bounded in size and depth, and refused in one line.

Documents that are too large for that are read in pieces by `json_stream`.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.formats.parsing.compression import read_decompressed


def json_document(path: Path, limits: Limits | None = None, remedy: str = "copy the file again") -> Any:
    """What the JSON in a file means. CaptureError, with what to do, when it is damaged, too large or too deep."""
    limits = limits or Limits()
    most = min(limits.document_bytes, limits.file_bytes)
    content = read_decompressed(path, replace(limits, whole_bytes=most))
    try:
        return json.loads(content)
    except RecursionError as error:
        raise CaptureError(f"{path}: cannot be read as JSON: it is nested too deep; {remedy}") from error
    except ValueError as error:
        raise CaptureError(f"{path}: cannot be read as JSON: {error}; {remedy}") from error
