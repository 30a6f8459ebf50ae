"""A lake can be read by other tools, and lakes and contracts of earlier versions stay readable.

`data/lake_version_1` was written before tables without rows lost their files and the key column left the files.
"""

import contextlib
import dataclasses
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import duckdb
import pandas as pd
import polars as pl
import pyarrow.dataset as ds
import pytest

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake import contracts, sql
from aaco_pipeline.lake.contracts import all_tables, contract, polars_schema
from aaco_pipeline.lake.declaration import NAME, STRING, STRINGS, Table, nullable
from aaco_pipeline.lake.health import faults
from aaco_pipeline.lake.manifest import Manifest
from aaco_pipeline.lake.segments.compaction import compact
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import empty_table
from tests.lake.published import LATER, SESSION, Filled, Metrics, Snapshot, kernels, values
from tests.places import ROOT

NAMED: Final = "20250102T000000Z-0000000b-squeezenet"
VERSION_1: Final = Path(__file__).parent / "data" / "lake_version_1"


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
def twice(filled: Filled, tmp_path_factory: pytest.TempPathFactory) -> TraceLake:
    """A lake in which every table of sessions has a row in each of two sessions, but one that has none in the first.

    Look, do not touch: it is written once for all readers of all tables.
    """
    lake = TraceLake(tmp_path_factory.mktemp("twice") / "lake")
    for session in (SESSION, NAMED):
        firsts = {t.name: t.columns[0] for t in all_tables().values() if t.scope == "session"}
        tables = {name: filled(name, {c.name: ["a" if c.dtype == STRING else 1]}) for name, c in firsts.items()}
        if session == SESSION:
            tables["markers"] = empty_table("markers")
        lake.publish(session, "everything", tables)
    return lake


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("table", [name for name, table in all_tables().items() if table.scope == "session"])
def test_other_programs_read_a_table_as_one_partitioned_data_set(reader: str, table: str, twice: TraceLake) -> None:
    found = READERS[reader](twice.path / table)
    expected = twice.read(table)
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
    earlier.publish(NAMED, "kernel_trace", {"kernels": filled("kernels", {"kernel_id": [7], "name": ["conv"]})})
    earlier.publish(SESSION, "timeline", {"gaps": filled("gaps", {"start_ns": [5]}), "markers": empty_table("markers")})
    expected = [(SESSION, "gemm"), (SESSION, "relu"), (NAMED, "conv")]
    assert earlier.read("kernels").select("session_id", "name").rows() == expected
    assert earlier.sql("SELECT session_id, name FROM kernels ORDER BY session_id, kernel_id").rows() == expected
    assert earlier.sql(f"SELECT name FROM kernels WHERE session_id = '{NAMED}'").item() == "conv"
    assert earlier.read("dispatches", SESSION).height == 3
    assert earlier.read("gaps", SESSION).height == 1
    assert faults(earlier) == []


SNIPPETS: Final = re.findall(r"```py(?:thon)?\n(.*?)```", (ROOT / "docs" / "scale.md").read_text(), re.DOTALL)
TOOLS: Final = ("duckdb", "polars", "pyarrow")
NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
THIRD, FOURTH = "20250103T000000Z-0000000c", "20250104T000000Z-0000000d"


@pytest.fixture
def three_sessions(lake: TraceLake, filled: Filled) -> TraceLake:
    for session in (SESSION, LATER, THIRD):
        lake.publish(session, "a", {"kernels": kernels(filled, *(f"{session}-{i}" for i in range(9)))})
    return lake


def read_by(tool: str, lake: TraceLake) -> pl.DataFrame:
    """Read with a tool's snippet on the page, in the order of the contract."""
    names: dict[str, Any] = {"lake": str(lake.path)}
    (snippet,) = [one for one in SNIPPETS if f"import {tool}" in one]
    exec(SNIPPETS[0] + snippet, names)
    rows = names["rows"]
    frame = rows if isinstance(rows, pl.DataFrame) else pl.DataFrame(pl.from_arrow(rows))
    assert set(frame.columns) == set(lake.read("kernels").columns)
    return frame.select(lake.read("kernels").columns).sort("session_id", "kernel_id")


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_reads_what_is_published_before_compaction_in_the_grace_with_dead_parts_and_after(
    tool: str, three_sessions: TraceLake, filled: Filled
) -> None:
    def require_same() -> None:
        read, published = read_by(tool, three_sessions), three_sessions.read("kernels").sort("session_id", "kernel_id")
        assert read.schema == published.schema
        assert read.equals(published)

    require_same()
    compact(three_sessions, NOW)
    require_same()
    three_sessions.publish(LATER, "a", {"kernels": kernels(filled, "anew")})
    three_sessions.publish(FOURTH, "a", {"kernels": kernels(filled, "added")})
    three_sessions.remove(SESSION)
    assert three_sessions.read("kernels").height == 11
    require_same()
    compact(three_sessions, NOW + timedelta(hours=1))
    require_same()
    compact(three_sessions, NOW + timedelta(days=3))
    assert not list(three_sessions.path.glob("kernels/*/*"))
    require_same()


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> Callable[[], contextlib.AbstractContextManager[Table]]:
    """A block in which the contract of `session_metrics` is one version newer, by the column `added`."""

    @contextlib.contextmanager
    def upgraded() -> Iterator[Table]:
        known = contract("session_metrics")
        added = nullable("added", STRINGS, NAME, "A column of the next version.", since=known.version + 1)
        table = dataclasses.replace(known, columns=(*known.columns, added), version=known.version + 1)
        tables = {**all_tables(), table.name: table}
        with monkeypatch.context() as patched:
            patched.setattr(contracts, "all_tables", lambda: tables)
            patched.setattr(sql, "all_tables", lambda: tables)
            yield table

    return upgraded


def test_an_older_contract_is_read_with_what_it_lacks_as_null(
    lake: TraceLake, metrics: Metrics, newer: Callable[[], contextlib.AbstractContextManager[Table]]
) -> None:
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    with newer() as table:
        assert lake.read("session_metrics").schema == polars_schema(table)
        assert lake.read("session_metrics", SESSION).select("value", "added").rows() == [(1.0, None)]
        assert lake.sql("SELECT value, added FROM session_metrics").rows() == [(1.0, None)]
        assert lake.sql("SELECT added FROM session_metrics").schema == {"added": pl.List(pl.String)}
        added = metrics(2.0).with_columns(pl.Series("added", [["x"]]))
        lake.publish(LATER, "a", {"session_metrics": added})
        both = [(1.0, None), (2.0, ["x"])]
        assert lake.read("session_metrics").select("value", "added").rows() == both
        assert lake.sql("SELECT value, added FROM session_metrics ORDER BY 1").rows() == both


def test_a_newer_contract_is_refused_by_name_and_only_where_it_matters(
    lake: TraceLake, metrics: Metrics, filled: Filled, newer: Callable[[], contextlib.AbstractContextManager[Table]]
) -> None:
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    with newer():
        frame = metrics(2.0).with_columns(pl.Series("added", [["x"]]))
        lake.publish(LATER, "a", {"session_metrics": frame, "kernels": kernels(filled, "gemm")})
    asking: list[Callable[[], object]] = [
        lambda: lake.read("session_metrics"),
        lambda: lake.read("session_metrics", LATER),
        lambda: lake.sql("SELECT count(*) FROM session_metrics"),
        lambda: lake.sql("SELECT count(*) FROM latest_sessions"),
    ]
    for reading in asking:
        with pytest.raises(LakeError) as caught:
            reading()
        said = str(caught.value)
        assert "table session_metrics" in said
        assert LATER in said
        assert "contract version 2" in said
        assert said.endswith("reads up to 1; upgrade aaco_pipeline")
        assert "\n" not in said
    assert values(lake, SESSION) == [1.0]
    assert lake.sql("SELECT name FROM kernels").rows() == [("gemm",)]


def test_one_file_of_a_newer_contract_is_refused_by_name(
    lake: TraceLake, metrics: Metrics, newer: Callable[[], contextlib.AbstractContextManager[Table]]
) -> None:
    with newer():
        frame = metrics(2.0).with_columns(pl.Series("added", [["x"]]))
        (entry,) = lake.publish(SESSION, "a", {"session_metrics": frame})
        assert lake.read_entry(entry).height == 1
    with pytest.raises(LakeError, match=r"session_metrics .* contract version 2, .* up to 1; upgrade aaco_pipeline"):
        lake.read_entry(entry)


def test_a_newer_manifest_is_refused_by_name_and_not_overwritten(
    lake: TraceLake, metrics: Metrics, snapshot: Snapshot
) -> None:
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    path = lake.path / "manifests" / f"{SESSION}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "manifest_version": 4}))
    before = snapshot(lake.path)
    for doing in (
        lambda: list(lake.manifests("session")),
        lambda: lake.read("session_metrics"),
        lambda: lake.sql("SELECT * FROM session_metrics"),
        lambda: lake.publish(SESSION, "b", {"session_metrics": metrics(2.0)}),
        lambda: lake.remove(SESSION),
    ):
        with pytest.raises(LakeError, match=rf"{SESSION}\.json: manifest version 4 is newer than 3"):
            doing()
    assert snapshot(lake.path) == before


def test_a_table_of_a_later_version_of_the_lake_is_left_alone(lake: TraceLake, metrics: Metrics) -> None:
    lake.publish(SESSION, "later_stage", {"session_metrics": metrics(1.0)})
    (known,) = lake.manifest(SESSION).entries
    unknown = known._replace(table="later_table", file=known.file.replace("session_metrics", "later_table"))
    (lake.path / unknown.file).parent.mkdir(parents=True)
    shutil.move(lake.path / known.file, lake.path / unknown.file)
    manifest = Manifest("session", SESSION, (unknown,))
    (lake.path / "manifests" / f"{SESSION}.json").write_bytes(manifest.to_bytes())
    lake.publish(SESSION, "a", {"session_metrics": metrics(2.0)})
    assert unknown in lake.manifest(SESSION).entries
    assert (lake.path / unknown.file).is_file()
    assert faults(lake) == []
    assert lake.sql("SELECT value FROM session_metrics").rows() == [(2.0,)]
