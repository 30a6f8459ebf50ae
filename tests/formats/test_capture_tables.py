"""Duties of every reader's tables, whatever the format."""

import dataclasses

import pytest

from aaco_pipeline.formats.capture_tables import CaptureTables, DetectedFormat, Limits


def test_a_reader_without_limits_of_its_own_is_still_limited() -> None:
    limits = Limits()
    assert 0 < limits.line_bytes < limits.file_bytes
    assert limits.events > 0


@pytest.mark.parametrize("thing", [Limits(), DetectedFormat("format", "detail"), CaptureTables({})])
def test_what_a_reader_hands_out_cannot_be_changed(thing: Limits | DetectedFormat | CaptureTables) -> None:
    name = dataclasses.fields(thing)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(thing, name, None)


def test_a_reading_without_remarks_has_no_evidence() -> None:
    assert CaptureTables({}).evidence == ()
