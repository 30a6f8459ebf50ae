"""What every reader gives and obeys, whatever the format."""

import dataclasses

import polars as pl
import pytest

from aaco_pipeline.formats.capture_tables import CaptureTables, DetectedFormat, Limits, empty_table, to_contract
from aaco_pipeline.lake.contracts import all_tables, contract, polars_dtype

TABLES = tuple(all_tables())


def schema_of(table: str) -> dict[str, pl.DataType]:
    return {column.name: polars_dtype(column.dtype) for column in contract(table).columns}


def test_canonical_gives_the_contracts_columns_in_its_order_and_types() -> None:
    frame = pl.DataFrame({"end_ns": [9], "name": ["run"], "start_ns": [4], "call_id": [0], "process_id": [1]})
    given = to_contract("api_calls", frame)
    assert dict(given.schema) == schema_of("api_calls")
    assert list(given.columns) == list(schema_of("api_calls"))
    assert given.select("call_id", "process_id", "name", "start_ns", "end_ns").row(0) == (0, 1, "run", 4, 9)


def test_a_contract_column_the_format_lacks_is_null() -> None:
    given = to_contract("api_calls", pl.DataFrame({"call_id": [0, 1]}))
    assert given.height == 2
    assert given.select(pl.exclude("call_id")).null_count().row(0) == (2,) * (given.width - 1)


def test_canonical_refuses_to_drop_what_the_contract_does_not_know() -> None:
    with pytest.raises(ValueError, match=r"api_calls.*no column colour, shape"):
        to_contract("api_calls", pl.DataFrame({"call_id": [0], "colour": ["red"], "shape": [1]}))


def test_canonical_does_not_bend_a_value_that_does_not_fit_its_type() -> None:
    with pytest.raises(pl.exceptions.InvalidOperationError):
        to_contract("api_calls", pl.DataFrame({"call_id": [1 << 40]}))


def test_canonical_refuses_a_table_without_a_contract() -> None:
    with pytest.raises(KeyError):
        to_contract("no_such_table", pl.DataFrame())


@pytest.mark.parametrize("frame", [pl.DataFrame(), pl.DataFrame({"device_id": []})], ids=["no columns", "no rows"])
def test_no_rows_stay_no_rows(frame: pl.DataFrame) -> None:
    given = to_contract("devices", frame)
    assert given.height == 0
    assert dict(given.schema) == schema_of("devices")


@pytest.mark.parametrize("table", TABLES)
def test_no_rows_has_the_tables_columns(table: str) -> None:
    given = empty_table(table)
    assert given.height == 0
    assert dict(given.schema) == schema_of(table)


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
