"""Read a JSON document completely and check its content; errors name the file, the key and the problem.

`json_stream` reads large JSON piece by piece.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import polars as pl
from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.formats.parsing.compression import read_decompressed
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.validation import to_contract

_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")


def json_document(path: Path, limits: Limits | None = None, remedy: str = "copy the file again") -> Any:
    """Parse a JSON file. CaptureError, with a remedy, if it is damaged, too large or too deep."""
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
    """Parse a JSON text; unpaired surrogates, which UTF-8 cannot represent, become question marks.

    ValueError if it is damaged, RecursionError if it is too deep; `strict` also rejects control characters.
    """
    document = json.loads(text, strict=strict)
    if _SURROGATE.search(text):
        document = json.loads(json.dumps(document, ensure_ascii=False).encode("utf-8", "replace"))
    return document


_MOST: Final = 2**60
#: A count, or a time since boot; sums of a few fit in 64 bits.
Whole = Annotated[int, Field(ge=-_MOST, le=_MOST)]
#: A wall-clock time, in ns.
Realtime = Annotated[int, Field(ge=0, le=2**62)]
#: A number that its table stores in 32 bits.
Small = Annotated[int, Field(ge=-(2**31), lt=2**31)]
#: A reason that may be given in evidence.
Said = Annotated[str, Field(min_length=1)]
#: Raised by Polars for values whose type differs from the column's.
UNFIT: Final = (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError)


class HostFact(TypedDict):
    """One fact of a host, as `host.json` states it; `value` is None if unknown."""

    category: str
    key: str
    value: str | None


class HostDocument(TypedDict):
    """The form of `host.json`: facts of the host and of its devices."""

    facts: list[HostFact]
    devices: list[dict[str, str | Whole | float | None]]


def check_document(document: Mapping[str, Any], wanted: str, version: int, keys: tuple[str, ...], file: str) -> None:
    """Raise CaptureError if the document has another format or a newer version, or lacks one of `keys`."""
    found, found_version = document.get("format"), document.get("format_version")
    if found != wanted or not isinstance(found_version, int) or found_version > version:
        raise CaptureError(
            f"{file}: format {found} {found_version}, and this aaco_pipeline reads {wanted} up to {version}; "
            "upgrade aaco_pipeline"
        )
    missing = [key for key in keys if key not in document]
    if missing:
        raise CaptureError(f"{file}: {', '.join(missing)} is missing; the capture is incomplete")


def check_form(document: object, form: type, file: object) -> None:
    """Raise CaptureError if the document does not match `form`; further keys are allowed."""
    try:
        TypeAdapter(form).validate_python(document, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise CaptureError(f"{file}: {where}: {first['msg']}; the capture is incomplete or damaged") from error


def as_table(table: str, rows: Callable[[], pl.DataFrame], file: object) -> pl.DataFrame:
    """Build a canonical table from a document's list. CaptureError if it does not fit the table's columns."""
    try:
        frame = to_contract(table, rows())
    except UNFIT as error:
        reason = (str(error).splitlines() or ["unknown"])[0]
        raise CaptureError(f"{file}: its {table} do not fit their table: {reason}; the file is damaged") from error
    for column in contract(table).columns:
        if not column.nullable and frame.get_column(column.name).null_count():
            raise CaptureError(f"{file}: its {table} lack their {column.name}; the file is damaged")
    return frame
