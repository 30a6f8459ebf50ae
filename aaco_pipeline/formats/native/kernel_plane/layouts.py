"""How an event's fields lie in its record: read from the text by which the kernel describes each of its events."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy.typing as npt

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.native.kernel_plane.pages import Numbers, Records, numbers, texts

_NUMBER: Final = re.compile(r"^ID: (\d{1,9})$", re.MULTILINE)
_FIELD: Final = re.compile(
    r"^\tfield:([^;]{1,200}?)(?:\[\d*\])?;\toffset:(\d{1,6});\tsize:(\d{1,6});\tsigned:([01]);$", re.MULTILINE
)
_LONGEST_TEXT: Final = 64


class MissingField(CaptureError):
    """An event of this kernel does not say what is asked of it."""


@dataclass(frozen=True)
class _Field:
    offset: int
    size: int
    is_signed: bool


@dataclass(frozen=True)
class Layout:
    """One event: its number in this capture, and its fields by their names."""

    event: str
    number: int
    fields: Mapping[str, _Field]

    def values(self, content: bytes, records: Records, name: str) -> Numbers:
        """A field that is a number. MissingField when the event has none, CaptureError where a record is too short."""
        field = self._field(records, name)
        if field.size not in (1, 2, 4, 8):
            raise CaptureError(f"kernel_plane.json: {name} of {self.event} is no number of {field.size} bytes")
        return numbers(content, records.offset, field.offset, field.size, signed=field.is_signed)

    def texts(self, content: bytes, records: Records, name: str) -> npt.NDArray[Any]:
        """A field that is a text of fixed size, as bytes without the zeros behind it. CaptureError when it has none."""
        field = self._field(records, name)
        if not field.size:
            raise CaptureError(f"kernel_plane.json: {name} of {self.event} is a text without bytes")
        return texts(content, records.offset, field.offset, min(field.size, _LONGEST_TEXT))

    def _field(self, records: Records, name: str) -> _Field:
        field = self.fields.get(name)
        if field is None:
            raise MissingField(f"kernel_plane.json: {self.event} has no field {name}; another kernel's, or damaged")
        if len(records.size) and int(records.size.min()) < field.offset + field.size:
            raise CaptureError(
                f"kernel_plane: a record of {self.event} is shorter than its fields; the file is damaged"
            )
        return field


def layout_of(event: str, text: str) -> Layout:
    """Read the kernel's description of an event. CaptureError when it is none."""
    number = _NUMBER.search(text)
    if number is None:
        raise CaptureError(f"kernel_plane.json: what it says of {event} is no description of an event")
    fields = {
        declared.rpartition(" ")[2]: _Field(int(offset), int(size), signed == "1")
        for declared, offset, size, signed in _FIELD.findall(text)
    }
    return Layout(event, int(number[1]), fields)


def with_text(content: bytes, records: Records, location: Numbers) -> list[str]:
    """Texts whose place within their record a `__data_loc` field tells: the length in its upper half."""
    begins, lengths = location & 0xFFFF, (location >> 16) & 0xFFFF
    found = []
    for offset, size, begin, length in zip(records.offset, records.size, begins, lengths, strict=True):
        if begin + length > size:
            raise CaptureError("kernel_plane: a text reaches beyond its record; the file is damaged")
        found.append(content[offset + begin : offset + begin + length].partition(b"\0")[0].decode("utf-8", "replace"))
    return found
