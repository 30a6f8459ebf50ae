"""What another version of the lake wrote: older contracts are read, newer ones are refused by name and left alone."""

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import polars as pl
import pytest

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake import contracts, sql
from aaco_pipeline.lake.contracts import all_tables, contract, polars_schema
from aaco_pipeline.lake.declaration import NAME, STRINGS, Table, nullable
from aaco_pipeline.lake.health import faults
from aaco_pipeline.lake.manifest import Manifest
from aaco_pipeline.lake.store import TraceLake
from tests.lake.published import LATER, SESSION, Filled, Metrics, Snapshot, kernels


def values(lake: TraceLake, session: str | Sequence[str] | None = SESSION) -> list[Any]:
    return lake.read("session_metrics", session).get_column("value").to_list()


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
