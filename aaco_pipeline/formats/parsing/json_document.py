"""A JSON text of a capture, and a document that is read whole: bounded in size and depth, and refused in one line.

Documents that are too large for that are read in pieces by `json_stream`.
"""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.formats.parsing.compression import read_decompressed

_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")


def json_document(path: Path, limits: Limits | None = None, remedy: str = "copy the file again") -> Any:
    """What the JSON in a file means. CaptureError, with what to do, when it is damaged, too large or too deep."""
    limits = limits or Limits()
    most = min(limits.document_bytes, limits.file_bytes)
    content = read_decompressed(path, replace(limits, whole_bytes=most))
    try:
        return parsed(content.decode(json.detect_encoding(content), "replace"))
    except RecursionError as error:
        raise CaptureError(f"{path}: cannot be read as JSON: it is nested too deep; {remedy}") from error
    except ValueError as error:
        raise CaptureError(f"{path}: cannot be read as JSON: {error}; {remedy}") from error


def parsed(text: str, *, strict: bool = True) -> Any:
    """What a JSON text means; half a surrogate pair, which no UTF-8 can hold, becomes a question mark.

    ValueError when it is damaged, RecursionError when it is too deep; with `strict` also for control characters.
    """
    document = json.loads(text, strict=strict)
    if _SURROGATE.search(text):
        document = json.loads(json.dumps(document, ensure_ascii=False).encode("utf-8", "replace"))
    return document
