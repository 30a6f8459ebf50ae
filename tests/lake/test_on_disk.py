"""Tables too large for memory are written and read in pieces without changing."""

import os
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aaco_pipeline.lake import on_disk
from aaco_pipeline.lake.on_disk import GrowingColumn, GrowingTable

SETTINGS = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of seven rows, and no column or stream that stays in memory."""
    monkeypatch.setattr(on_disk, "PIECE_ROWS", 7)
    monkeypatch.setattr(on_disk, "_COLUMN_BYTES", 16)
    monkeypatch.setattr(on_disk, "_MAPPED_FROM", 0)


def rows(count: int) -> pl.DataFrame:
    """A frame with what tables of events have: numbers, nulls, texts, truths, words of a list."""
    words = pl.Enum(["fill", "device_to_host"])
    return pl.DataFrame(
        {
            "number": pl.Series(range(count), dtype=pl.Int32),
            "start_ns": pl.Series([None if at % 3 == 0 else at << 40 for at in range(count)], dtype=pl.Int64),
            "text": pl.Series([None if at % 5 == 4 else "a" * (at % 30) for at in range(count)], dtype=pl.String),
            "truth": pl.Series([at % 2 == 0 for at in range(count)], dtype=pl.Boolean),
            "way": pl.Series([["fill", "device_to_host"][at % 2] for at in range(count)], dtype=words),
            "share": pl.Series([at / 3 for at in range(count)], dtype=pl.Float64),
        }
    )


@SETTINGS
@given(counts=st.lists(st.integers(0, 20), min_size=1, max_size=6))
def test_a_table_that_grew_is_its_frames_one_after_another(counts: list[int]) -> None:
    whole, grown, first = rows(sum(counts)), GrowingTable(), 0
    for count in counts:
        grown.add(whole.slice(first, count))
        first += count
    found = grown.table()
    assert found.equals(whole)
    assert found.schema == whole.schema


@SETTINGS
@given(counts=st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_a_column_that_grew_is_its_blocks_one_after_another_and_can_be_changed(counts: list[int]) -> None:
    grown = GrowingColumn("<i8")
    for number, count in enumerate(counts):
        grown.add(np.full(count, number, "<i8"))
    values = grown.array()
    assert values.tolist() == [number for number, count in enumerate(counts) for _ in range(count)]
    values += 1
    assert values.tolist() == [number + 1 for number, count in enumerate(counts) for _ in range(count)]


@SETTINGS
@given(count=st.integers(0, 40))
def test_pieces_are_all_rows_in_their_order(count: int) -> None:
    whole = rows(count)
    found = list(on_disk.pieces(whole))
    assert pl.concat(found).equals(whole)
    assert max(piece.height for piece in found) <= 7


@SETTINGS
@given(count=st.integers(0, 40))
def test_columns_that_are_changed_by_pieces_are_as_changed_at_once(count: int) -> None:
    whole = rows(count)
    changes = [pl.col("start_ns") + 5, pl.col("number").cast(pl.Int64).alias("more"), pl.lit(1).alias("one")]
    assert on_disk.with_columns(whole, changes).equals(whole.with_columns(changes))


@SETTINGS
@given(count=st.integers(0, 40))
def test_a_stream_of_pieces_is_read_as_it_was(count: int) -> None:
    whole = rows(count)
    with tempfile.TemporaryFile() as file:
        on_disk.write_pieces(whole, file)
        file.seek(0)
        found = on_disk.read_pieces(file)
    assert found.equals(whole)
    assert found.schema == whole.schema


@SETTINGS
@given(count=st.integers(0, 40))
def test_a_parquet_file_of_pieces_holds_what_is_stated_and_all_rows(tmp_path: Path, count: int) -> None:
    whole = rows(count)
    on_disk.write_parquet(whole, tmp_path / "a.parquet", {"aaco.stage": "a"})
    assert pl.read_parquet(tmp_path / "a.parquet").equals(whole)
    assert pl.read_parquet_schema(tmp_path / "a.parquet") == whole.schema
    assert pl.read_parquet_metadata(tmp_path / "a.parquet")["aaco.stage"] == "a"
    chunks = pl.concat([whole.slice(0, 5), whole.slice(5)], rechunk=False)
    on_disk.write_parquet(chunks, tmp_path / "b.parquet", {"aaco.stage": "a"})
    if count > on_disk.PIECE_ROWS:  # what is smaller is sorted, and so in one chunk, before it is written
        assert (tmp_path / "b.parquet").read_bytes() == (tmp_path / "a.parquet").read_bytes()


def test_a_mapped_stream_that_contradicts_itself_is_refused() -> None:
    with tempfile.TemporaryFile() as file:
        on_disk.write_pieces(rows(20), file)
        file.seek(0)
        os.truncate(file.fileno(), os.fstat(file.fileno()).st_size - 100)
        with pytest.raises((ValueError, OSError)):
            on_disk.read_pieces(file)


def test_released_pages_are_read_again() -> None:
    grown = GrowingTable()
    grown.add(rows(20))
    found = grown.table()
    on_disk.release()
    assert found.equals(rows(20))
