"""`aaco sql` and `aaco tables`: one SELECT in four formats, refusals, and what there is to ask for."""

import csv
import io
import json
import resource
from typing import Final

import polars as pl
import pytest

from aaco_pipeline.cli.main import main
from aaco_pipeline.cli.query import Size
from aaco_pipeline.lake.contracts import all_tables, contract
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.views import HELPER_VIEWS
from aaco_pipeline.resources.project import LAKE_VARIABLE, Project
from tests.cli.conftest import Aaco, Refused

LATEST: Final = "SELECT session_id, model_name, batch_size, latency_p50_ns FROM latest_sessions"


def test_sql_prints_a_table_for_people_by_default(aaco: Aaco) -> None:
    answer = aaco("sql", LATEST)
    assert (answer.returncode, answer.stderr) == (0, "")
    for text in ("session_id", "squeezenet", "control_flow", "2 rows"):
        assert text in answer.stdout


def test_sql_leaves_out_the_middle_of_what_is_too_wide_and_counts_it(
    aaco: Aaco, measured: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = aaco("sql", "SELECT * FROM dispatches LIMIT 2").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert TraceLake(measured.lake).sessions()[0] in "".join(lines)
    assert f"2 rows, {len(contract('dispatches').all_columns)} columns (" in lines[-1]
    assert lines[-1].endswith(" shown); --format csv or json has all of it")


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


def test_sql_shows_the_first_and_the_last_of_many_rows_and_counts_them(aaco: Aaco) -> None:
    lines = aaco("sql", "SELECT range AS n FROM range(5000)").stdout.splitlines()
    assert lines[-1] == "5,000 rows (40 shown); --format csv or json has all of it"
    assert [line.strip() for line in lines[2:-1]] == [*map(str, range(20)), "…", *map(str, range(4980, 5000))]
    assert aaco("sql", "SELECT range AS n FROM range(40)").stdout.splitlines()[-1] == "40 rows"


def test_sql_does_not_read_on_to_count_what_nobody_sees(aaco: Aaco) -> None:
    lines = aaco("sql", "SELECT range AS n FROM range(1000000000)", "--timeout", "30").stdout.splitlines()
    assert lines[-1] == "more than 10,000 rows (40 shown); --format csv or json has all of it"
    assert [line.strip() for line in lines[2:-1]] == [*map(str, range(40)), "…"]


@pytest.mark.parametrize("count", [0, 1, 12_345])
def test_sql_prints_the_same_json_however_many_rows_there_are(aaco: Aaco, count: int) -> None:
    printed = aaco("sql", f"SELECT range AS n, [range] AS list FROM range({count})", "--json").stdout
    assert printed == json.dumps([{"n": n, "list": [n]} for n in range(count)], indent=2) + "\n"


def test_csv_is_exact_and_guards_formulas_on_request_alone(aaco: Aaco) -> None:
    texts = ["=1+1", "+1", "-1", "@x", "a=b", ""]
    statement = f"""SELECT unnest({texts}) AS "=name", -1 AS number, -1.5::DOUBLE AS ratio"""
    plain = aaco("sql", statement, "--format", "csv").stdout
    assert [row[0] for row in csv.reader(io.StringIO(plain))] == ["=name", *texts]
    rows = list(csv.reader(io.StringIO(aaco("sql", statement, "--format", "csv", "--guard-formulas").stdout)))
    assert [row[0] for row in rows] == ["'=name", "'=1+1", "'+1", "'-1", "'@x", "a=b", ""]
    assert {tuple(row[1:]) for row in rows[1:]} == {("-1", "-1.5")}


def test_a_tab_or_return_that_begins_a_cell_is_guarded_and_shown(aaco: Aaco) -> None:
    statement = "SELECT chr(9) || '=1' AS a, chr(13) || '=1' AS b"
    assert aaco("sql", statement, "--format", "csv").stdout == "a,b\n\\t=1,\\r=1\n"
    assert aaco("sql", statement, "--format", "csv", "--guard-formulas").stdout == "a,b\n'\\t=1,'\\r=1\n"


def test_sql_ends_at_its_deadline_and_at_its_memory_in_one_line(refused: Refused) -> None:
    endless = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT count(*) FROM t"
    assert "ran longer than 0.2 s" in refused(2, "sql", endless, "--timeout", "0.2")
    assert "more than 0.05 GB" in refused(2, "sql", "SELECT len(list(range)) FROM range(90000000)", "--memory", "50MB")


def test_texts_that_functions_make_are_limited_as_well(refused: Refused) -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    long = "SELECT sum(len(repeat('abcdefgh', 100000000 + range))) FROM range(1000)"
    assert "more than 0.05 GB" in refused(2, "sql", long, "--memory", "50MB")
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


@pytest.mark.parametrize(("said", "meant"), [("500MB", 500 * 10**6), ("2GB", 2 * 10**9), ("1.5 GiB", 3 * 2**29)])
def test_sizes_are_said_in_either_kind_of_unit(said: str, meant: int) -> None:
    assert Size().convert(said, None, None) == meant


@pytest.mark.parametrize("said", ["", "lots", "-1GB", "5", "1B", "9MB", "99999TB", "1GB1GB"])
def test_what_is_no_size_is_refused(refused: Refused, said: str) -> None:
    assert "is not a size" in refused(2, "sql", "SELECT 1", "--memory", said)


def test_guarding_formulas_is_about_csv(refused: Refused) -> None:
    assert "--format csv" in refused(2, "sql", "SELECT 1", "--guard-formulas")


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
