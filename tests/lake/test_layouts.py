"""Other programs read a lake's folders as a partitioned data set, and a lake of an earlier version reads as ever.

`data/lake_version_1` was written before tables without rows lost their files and the key column left the files.
"""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import duckdb
import pandas as pd
import polars as pl
import pyarrow.dataset as ds
import pytest

from aaco_pipeline.lake.contracts import all_tables, contract, polars_schema
from aaco_pipeline.lake.declaration import STRING
from aaco_pipeline.lake.health import faults
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import empty_table

SESSION: Final = "20250101T000000Z-0000000a"
LATER: Final = "20250102T000000Z-0000000b-squeezenet"
VERSION_1: Final = Path(__file__).parent / "data" / "lake_version_1"

Filled = Callable[[str, Mapping[str, Sequence[Any]]], pl.DataFrame]

READERS: Final[Mapping[str, Callable[[Path], pl.DataFrame]]] = {
    "pyarrow": lambda folder: pl.DataFrame(ds.dataset(_for_arrow(folder), partitioning="hive").to_table()),
    "pandas": lambda folder: pl.from_pandas(pd.read_parquet(_for_arrow(folder))),
    "polars": lambda folder: pl.read_parquet(folder, hive_partitioning=True),
    "duckdb": lambda folder: duckdb.read_parquet(f"{folder}/*/*.parquet", hive_partitioning=True).pl(),
}


def _for_arrow(folder: Path) -> Any:
    """The folder, or its files where markers lie among them, which pyarrow takes for Parquet."""
    return [*map(str, folder.glob("*/*.parquet"))] if folder.name == "sessions" else folder


@pytest.fixture(scope="module")
def two_sessions(filled: Filled, tmp_path_factory: pytest.TempPathFactory) -> TraceLake:
    """A lake in which every table of sessions has a row in each of two sessions, but one that has none in the first.

    Look, do not touch: it is written once for all readers of all tables.
    """
    lake = TraceLake(tmp_path_factory.mktemp("two_sessions") / "lake")
    for session in (SESSION, LATER):
        firsts = {t.name: t.columns[0] for t in all_tables().values() if t.scope == "session"}
        tables = {name: filled(name, {c.name: ["a" if c.dtype == STRING else 1]}) for name, c in firsts.items()}
        if session == SESSION:
            tables["markers"] = empty_table("markers")
        lake.publish(session, "everything", tables)
    return lake


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("table", [name for name, table in all_tables().items() if table.scope == "session"])
def test_other_programs_read_a_table_as_one_partitioned_data_set(
    reader: str, table: str, two_sessions: TraceLake
) -> None:
    found = READERS[reader](two_sessions.path / table)
    expected = two_sessions.read(table)
    assert set(found.columns) == set(expected.columns)
    assert sorted(found.get_column("session_id").cast(pl.String)) == expected.get_column("session_id").to_list()
    for name in expected.columns:
        if not expected.get_column(name).is_null().all():
            assert found.get_column(name).drop_nulls().to_list() == expected.get_column(name).drop_nulls().to_list()


def test_a_table_without_rows_has_an_entry_and_no_file(lake: TraceLake, filled: Filled) -> None:
    (entry,) = lake.publish(SESSION, "a", {"markers": empty_table("markers")})
    assert (entry.table, entry.rows, entry.file, entry.bytes, entry.sha256) == ("markers", 0, "", 0, "")
    assert not (lake.path / "markers").exists()
    assert lake.read("markers", SESSION).schema == polars_schema(contract("markers"))
    assert lake.read_entry(entry).equals(lake.read("markers"))
    assert lake.sql("SELECT count(*) FROM markers").item() == 0
    assert lake.published([contract("markers")]) == {"markers": [(SESSION, entry)]}
    assert lake.places(contract("markers"), [(SESSION, entry)]) == []
    assert lake.disk_bytes(SESSION) == 0
    assert faults(lake) == []


def test_a_table_that_lost_its_rows_loses_its_file_and_gets_one_again_with_them(
    lake: TraceLake, filled: Filled
) -> None:
    marker = filled("markers", {"marker_id": [1]})
    (before,) = lake.publish(SESSION, "a", {"markers": marker})
    lake.publish(SESSION, "a", {"markers": empty_table("markers")})
    assert not (lake.path / before.file).exists()
    assert lake.read("markers").height == 0
    assert lake.publish(SESSION, "a", {"markers": marker}) == (before,)
    assert lake.read("markers").height == 1
    assert faults(lake) == []
    lake.remove(SESSION)
    assert not list(lake.path.rglob(f"*{SESSION}*"))


@pytest.fixture
def earlier(tmp_path: Path) -> TraceLake:
    """A copy of the lake that an earlier version wrote."""
    return TraceLake(shutil.copytree(VERSION_1, tmp_path / "earlier"))


def test_a_lake_of_an_earlier_version_is_read_as_ever(earlier: TraceLake) -> None:
    assert json.loads((earlier.path / "manifests" / f"{SESSION}.json").read_text())["manifest_version"] == 1
    assert earlier.sessions() == [SESSION]
    assert earlier.read("dispatches").select("session_id", "dispatch_id", "end_ns").rows() == [
        (SESSION, 0, 10),
        (SESSION, 1, 25),
        (SESSION, 2, 45),
    ]
    assert earlier.read("evidence", SESSION).select("stage", "status").rows() == [
        ("capture", "present"),
        ("kernel_trace", "absent"),
    ]
    assert earlier.read("verdicts", "nightly").select("campaign_id", "verdict").rows() == [("nightly", "equivalent")]
    for entry in earlier.manifest(SESSION).entries:
        assert earlier.read_entry(entry).schema == polars_schema(contract(entry.table))
        assert earlier.read(entry.table).schema == polars_schema(contract(entry.table))
        assert entry.file
    assert faults(earlier) == []


def test_sql_over_a_lake_of_an_earlier_version_answers_as_ever(earlier: TraceLake) -> None:
    joined = "SELECT d.session_id, k.name, count(*) FROM dispatches d JOIN kernels k USING (session_id, kernel_id)"
    assert earlier.sql(f"{joined} GROUP BY ALL ORDER BY ALL").rows() == [(SESSION, "gemm", 2), (SESSION, "relu", 1)]
    assert earlier.sql("SELECT count(*) FROM markers").item() == 0
    assert earlier.sql("SELECT evidence[1].value FROM bottlenecks").item() == 1.5
    assert earlier.sql("SELECT campaign_id FROM verdicts").item() == "nightly"


def test_sessions_of_both_versions_lie_in_one_lake(earlier: TraceLake, filled: Filled) -> None:
    earlier.publish(LATER, "kernel_trace", {"kernels": filled("kernels", {"kernel_id": [7], "name": ["conv"]})})
    earlier.publish(SESSION, "timeline", {"gaps": filled("gaps", {"start_ns": [5]}), "markers": empty_table("markers")})
    expected = [(SESSION, "gemm"), (SESSION, "relu"), (LATER, "conv")]
    assert earlier.read("kernels").select("session_id", "name").rows() == expected
    assert earlier.sql("SELECT session_id, name FROM kernels ORDER BY session_id, kernel_id").rows() == expected
    assert earlier.sql(f"SELECT name FROM kernels WHERE session_id = '{LATER}'").item() == "conv"
    assert earlier.read("dispatches", SESSION).height == 3
    assert earlier.read("gaps", SESSION).height == 1
    assert faults(earlier) == []
