"""`aaco sql` and `aaco tables`: one SELECT in four formats, refusals, and what there is to ask for."""

import csv
import io
import json
import subprocess
from collections.abc import Callable
from typing import Final

import polars as pl
import pytest

from aaco_pipeline.cli.main import main
from aaco_pipeline.lake.contracts import all_tables, contract
from aaco_pipeline.lake.sql import HELPER_VIEWS
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.project import LAKE_VARIABLE, Project

Aaco = Callable[..., "subprocess.CompletedProcess[str]"]
Refused = Callable[..., str]
LATEST: Final = "SELECT session_id, model_name, batch_size, latency_p50_ns FROM latest_sessions"


def test_sql_prints_a_table_for_people_by_default(aaco: Aaco) -> None:
    answer = aaco("sql", LATEST)
    assert (answer.returncode, answer.stderr) == (0, "")
    for text in ("session_id", "squeezenet", "control_flow", "2 rows"):
        assert text in answer.stdout


def test_sql_leaves_out_columns_that_do_not_fit_and_says_how_to_see_them(
    aaco: Aaco, measured: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    answer = " ".join(aaco("sql", "SELECT * FROM dispatches LIMIT 2").stdout.split())
    assert TraceLake(measured.lake).sessions()[0] in answer
    assert "columns left out, as the screen is narrow; --format csv or json has all of them" in answer


def test_sql_gives_the_same_rows_as_csv_and_as_json(aaco: Aaco, measured: Project) -> None:
    as_json = json.loads(aaco("sql", LATEST, "--format", "json").stdout)
    assert as_json == json.loads(aaco("sql", LATEST, "--json").stdout)
    assert [row["session_id"] for row in as_json] == TraceLake(measured.lake).sessions()[::-1]
    as_csv = list(csv.DictReader(io.StringIO(aaco("sql", LATEST, "--format", "csv").stdout)))
    assert as_csv == [{name: str(value) for name, value in row.items()} for row in as_json]


def test_sql_writes_parquet_to_redirected_output(
    measured: Project, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setenv(LAKE_VARIABLE, str(measured.lake))
    assert main(["sql", "SELECT * FROM iterations", "--format", "parquet"]) == 0
    printed = capsysbinary.readouterr()
    assert printed.err == b""
    frame = pl.read_parquet(io.BytesIO(printed.out))
    expected = TraceLake(measured.lake).read("iterations")
    assert frame.sort(frame.columns).equals(expected.select(frame.columns).sort(frame.columns))


def test_sql_does_not_write_parquet_to_a_terminal(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert "redirect standard output" in refused(2, "sql", "SELECT 1", "--format", "parquet")


def test_sql_keeps_null_apart_from_zero_and_from_empty_text(aaco: Aaco) -> None:
    statement = "SELECT CAST(NULL AS INTEGER) AS missing, 0 AS zero, '' AS empty"
    assert aaco("sql", statement, "--format", "csv").stdout == "missing,zero,empty\n,0,\n"
    assert json.loads(aaco("sql", statement, "--json").stdout) == [{"missing": None, "zero": 0, "empty": ""}]
    assert "–" in aaco("sql", statement).stdout


@pytest.mark.parametrize(
    ("statement", "part"),
    [
        ("DELETE FROM sessions", "DELETE"),
        ("CREATE TABLE t AS SELECT 1", "CREATE"),
        ("COPY sessions TO 'stolen.csv'", "COPY"),
        ("ATTACH 'other.db'", "ATTACH"),
        ("SET threads = 1", "SET"),
        ("SELECT 1; SELECT 2", "2 statements"),
        ("", "0 statements"),
        ("SELECT * FROM read_text('dagster.yaml')", "no other file"),
        ("SELEC 1", "SELEC"),
        ("SELECT * FROM sesions", "sesions"),
        ("SELECT no_such_column FROM sessions", "no_such_column"),
    ],
)
def test_sql_refuses_whatever_is_not_one_select_over_the_lake(refused: Refused, statement: str, part: str) -> None:
    assert part in refused(2, "sql", statement)


def test_tables_lists_every_table_and_view_with_its_rows(aaco: Aaco, measured: Project) -> None:
    answer = aaco("tables")
    assert (answer.returncode, answer.stderr) == (0, "")
    words = set(answer.stdout.split())
    assert {*all_tables(), *(view.name for view in HELPER_VIEWS)} <= words
    rows = {row["table"]: row["rows"] for row in json.loads(aaco("tables", "--json").stdout)}
    lake = TraceLake(measured.lake)
    assert list(rows) == list(all_tables())
    for table in ("sessions", "iterations", "dispatches", "verdicts"):
        assert rows[table] == lake.read(table).height
    assert rows["sessions"] == 2


def test_tables_of_one_name_tells_its_columns_with_unit_and_meaning(aaco: Aaco) -> None:
    document = json.loads(aaco("tables", "dispatches", "--json").stdout)
    declared = contract("dispatches").all_columns
    assert [column["column"] for column in document["columns"]] == [column.name for column in declared]
    assert document["columns"][-1]["meaning"] == declared[-1].meaning
    printed = aaco("tables", "dispatches").stdout
    for column in declared:
        assert column.name in printed


def test_tables_of_an_unknown_name_suggests_the_nearest(refused: Refused) -> None:
    line = refused(2, "tables", "dispatchs")
    assert "'dispatchs'" in line
    assert "did you mean 'dispatches'?" in line
