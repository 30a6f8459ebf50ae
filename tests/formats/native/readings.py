"""Checks that tests of several of the project's own documents make of a reading."""

from aaco_pipeline.formats.capture_tables import CaptureTables
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.evidence import Evidence, evidence_frame
from aaco_pipeline.lake.validation import conform


def evidence_of(reading: CaptureTables) -> dict[str, Evidence]:
    found = {item.item: item for item in reading.evidence}
    assert len(found) == len(reading.evidence)
    assert evidence_frame("telemetry", reading.evidence).height == len(found)
    return found


def publishable(reading: CaptureTables) -> None:
    for name, frame in reading.tables.items():
        conform(contract(name), frame, "20250101T000000Z-00000001")
