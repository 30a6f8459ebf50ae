"""The check that a document of our own is of the format, version and form that is read."""

from collections.abc import Mapping
from typing import Any

from aaco_pipeline.errors import CaptureError


def check_document(document: Mapping[str, Any], wanted: str, version: int, keys: tuple[str, ...], file: str) -> None:
    """CaptureError when the document is another one, of a newer version, or lacks one of `keys`."""
    found, found_version = document.get("format"), document.get("format_version")
    if found != wanted or not isinstance(found_version, int) or found_version > version:
        raise CaptureError(
            f"{file}: format {found} {found_version}, and this aaco_pipeline reads {wanted} up to {version}; "
            "upgrade aaco_pipeline"
        )
    missing = [key for key in keys if key not in document]
    if missing:
        raise CaptureError(f"{file}: {', '.join(missing)} is missing; the capture is incomplete")
