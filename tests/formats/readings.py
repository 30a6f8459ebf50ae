"""Checks that the tests of every format make of a reading."""

from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import CaptureTables
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.evidence import Evidence, evidence_frame
from aaco_pipeline.lake.validation import conform


def evidence_of(reading: CaptureTables) -> dict[str, Evidence]:
    """Return the evidence by item, after checking that items are distinct and that what is not present has a reason."""
    found = {item.item: item for item in reading.evidence}
    assert len(found) == len(reading.evidence)
    assert evidence_frame("test", reading.evidence).height == len(found)
    return found


def reason(reading: CaptureTables, item: str) -> str:
    found = evidence_of(reading)[item]
    return f"{found.status}: {found.reason}"


def reasons(reading: CaptureTables, status: str) -> dict[str, str | None]:
    return {one.item: one.reason for one in reading.evidence if one.status == status}


def checked(reading: CaptureTables) -> CaptureTables:
    """Return the reading, after checking its tables against their contracts, and its evidence."""
    for name, frame in reading.tables.items():
        conform(contract(name), frame, "20260101T000000Z-00000000")
    evidence_of(reading)
    return reading


def damaged(content: bytes, changes: Iterable[tuple[int, int]], end: int | None = None) -> bytes:
    """Return `content` with a byte replaced at each place, which wraps around, and cut off at `end`."""
    changed = bytearray(content)
    for place, value in changes:
        changed[place % len(changed)] = value
    return bytes(changed[:end])


def read_or_refused(reader: ModuleType, path: Path, name: str | None = None) -> CaptureTables | None:
    """Return the checked reading, or None if one line with `name`, else the path, refuses it; probing never fails."""
    reader.probe(path)
    try:
        reading: CaptureTables = reader.read(path)
    except CaptureError as error:
        assert (name or str(path)) in str(error) and "\n" not in str(error)
        return None
    return checked(reading)
