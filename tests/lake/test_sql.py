"""One guarded SELECT reads the lake's views, and everything else is refused."""

import random
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Final

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aaco_pipeline.errors import AacoError, LakeError, UsageError
from aaco_pipeline.lake.contracts import all_tables, contract, polars_schema
from aaco_pipeline.lake.declaration import DUCKDB_TYPES, SIGNALS
from aaco_pipeline.lake.sql import select_rows
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.views import HELPER_VIEWS
from tests.lake.published import LATER, SESSION, Filled, Snapshot, every_table
from tests.lake.two_sessions import STARTED

# ---- views -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", every_table())
def test_every_contract_is_a_view_with_its_types_also_in_an_empty_lake(name: str, lake: TraceLake) -> None:
    table = contract(name)
    found = select_rows(lake, f"SELECT * FROM {name}")
    assert found.columns == tuple(c.name for c in table.all_columns)
    assert [kind.replace('"', "") for kind in found.types] == [DUCKDB_TYPES[c.dtype] for c in table.all_columns]
    assert found.rows == []
    assert lake.sql(f"FROM {name}").schema == polars_schema(table)
    assert not lake.path.exists()


@pytest.mark.parametrize("name", every_table())
def test_a_published_table_has_the_contracts_types_in_sql(name: str, lake: TraceLake, filled: Filled) -> None:
    table = contract(name)
    first = table.columns[0]
    frame = filled(name, {first.name: [None]}) if first.nullable else filled(name, {table.sort_by[0]: [None]}).clear()
    lake.publish("nightly" if table.scope == "campaign" else SESSION, "a", {name: frame}, scope=table.scope)
    found = lake.sql(f"SELECT * FROM {name}")
    assert found.schema == polars_schema(table)
    assert found.height == frame.height


def test_sql_gives_the_values_that_were_published(populated: TraceLake) -> None:
    statement = (
        "SELECT session_id, value, n FROM session_metrics WHERE pass = 'latency' AND phase = 'measure' ORDER BY ALL"
    )
    expected = [(SESSION, 10.0, None), (SESSION, 20.0, None), (LATER, 11.0, None), (LATER, 21.0, None)]
    frame = populated.sql(statement)
    assert isinstance(frame, pl.DataFrame)
    assert frame.rows() == expected
    found = select_rows(populated, statement)
    assert (found.columns, found.types) == (("session_id", "value", "n"), ("VARCHAR", "DOUBLE", "BIGINT"))
    assert found.rows == expected


@pytest.mark.parametrize(
    "statement",
    [
        "select count(*) from SESSIONS;",
        'SELECT count(*) FROM "sessions"',
        "WITH s AS (SELECT * FROM sessions) SELECT count(*) FROM s",
        "FROM sessions SELECT count(*)",
        "SELECT count(*) FROM query_table('sessions')",
        "SELECT count(*) FROM query('SELECT * FROM sessions')",
        "-- how many?\nSELECT count(*) /* all */ FROM sessions",
        "VALUES (2)",
        "SELECT 2",
    ],
)
def test_one_select_in_any_spelling_is_accepted(statement: str, populated: TraceLake) -> None:
    assert populated.sql(statement).rows() == [(2,)]
    assert select_rows(populated, statement).rows == [(2,)]


def test_the_lake_describes_itself(populated: TraceLake) -> None:
    names = {row[0] for row in select_rows(populated, "SHOW TABLES").rows}
    assert names == {*all_tables(), *(helper.name for helper in HELPER_VIEWS)}
    described = populated.sql("DESCRIBE sessions").select("column_name", "column_type").rows()
    assert described == [(c.name, DUCKDB_TYPES[c.dtype]) for c in contract("sessions").all_columns]


def test_lists_and_records_and_instants_come_as_values(populated: TraceLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    found = select_rows(populated, f"SELECT started_at FROM sessions WHERE session_id = '{SESSION}'")
    assert found.types == ("TIMESTAMP WITH TIME ZONE",)
    ((started,),) = found.rows
    assert started == STARTED
    assert started.utcoffset() == timedelta(0)
    assert select_rows(populated, "SELECT min(started_at)::VARCHAR FROM sessions").rows == [
        ("2025-01-01 12:30:00.123456+00",)
    ]
    statement = "SELECT evidence, missing, evidence[1].weight, len(missing) FROM bottlenecks LIMIT 1"
    signal = {"signal": "s", "value": 1.5, "unit": "ns", "threshold": None, "weight": 0.5, "source": "kernels"}
    found = select_rows(populated, statement)
    assert found.rows == [([signal], ["a", "b"], 0.5, 2)]
    assert [found.types[0].replace('"', ""), found.types[1]] == [DUCKDB_TYPES[SIGNALS], "VARCHAR[]"]
    assert populated.sql(statement).rows() == found.rows


@pytest.mark.parametrize(
    "value", ["INTERVAL 1 DAY", "DATE 'infinity'", "TIMESTAMP '290000-01-01'", "union_value(a := 1)", "1::HUGEINT"]
)
def test_a_value_that_a_frame_cannot_hold_is_an_error_in_words(value: str, lake: TraceLake) -> None:
    try:
        assert lake.sql(f"SELECT {value}").height == 1
    except AacoError as error:
        assert "\n" not in str(error)


# ---- only what is mentioned is opened --------------------------------------------------------------------------------


def test_only_the_tables_that_a_statement_mentions_are_opened(populated: TraceLake) -> None:
    for entry in populated.manifest(SESSION).of_table("bottlenecks"):
        (populated.path / entry.file).write_bytes(b"torn")
    for entry in populated.manifest(LATER).of_table("bottlenecks"):
        (populated.path / entry.file).unlink()
    assert populated.sql("SELECT count(*) FROM sessions").rows() == [(2,)]
    assert populated.sql("SELECT count(*) FROM latest_sessions").rows() == [(2,)]
    assert populated.sql("SELECT count(*) FROM kernel_history").rows() == [(4,)]
    with pytest.raises(LakeError):
        populated.sql("SELECT count(*) FROM bottlenecks")


def test_a_statement_over_a_damaged_manifest_is_refused(populated: TraceLake) -> None:
    (populated.path / "manifests" / f"{SESSION}.json").write_text("{")
    with pytest.raises(LakeError, match="not a manifest"):
        populated.sql("SELECT * FROM sessions")


NAMES: Final = (
    "query_table('sess' || 'ions')",
    "query('SELECT * FROM sess' || 'ions')",
    r"query_table(e'\x73essions')",
)
STATEMENTS: Final = (
    "SELECT * FROM {}",
    "SELECT count(*) FROM {}",
    "SELECT 1 FROM {}",
    "SELECT max(session_id) FROM {}",
    "SELECT * FROM {} WHERE session_id IS NULL",
    "SELECT 1 WHERE NOT EXISTS (SELECT * FROM {})",
    "SELECT 1 FROM range(1) AS r LEFT JOIN {} AS s ON s.session_id = r.range::VARCHAR",
    "SELECT (SELECT model_name FROM {} LIMIT 1)",
    f"SELECT * FROM {{}} WHERE session_id = '{SESSION}'",
    "SELECT * FROM {} WHERE model_name LIKE 'model%'",
    "SELECT count(*) FROM {} WHERE session_id IS NOT NULL",
    "SELECT count(*) FROM {} WHERE batch_size > 1 OR batch_size IS NULL",
    f"SELECT r.range FROM range(3) AS r LEFT JOIN (SELECT * FROM {{}} WHERE session_id = '{SESSION}') AS s ON true",
)


# In CI each name in one statement and each statement with one name; at night all pairs.
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "statement"),
    [
        pytest.param(*pair, marks=() if NAMES[0] in pair or STATEMENTS[0] in pair else pytest.mark.nightly)
        for pair in product(NAMES, STATEMENTS)
    ],
)
def test_a_table_named_at_run_time_is_never_silently_empty(statement: str, name: str, populated: TraceLake) -> None:
    at_run_time = select_rows(populated, statement.format(name))
    assert at_run_time.rows == select_rows(populated, statement.format("sessions")).rows


@pytest.mark.parametrize("condition", ["", " WHERE host = ''x''", " WHERE session_id IS NOT NULL"])
def test_a_statement_put_together_at_run_time_is_never_silently_empty(condition: str, populated: TraceLake) -> None:
    spelled = populated.sql("SELECT count(*) FROM sessions" + condition.replace("''", "'")).rows()
    serialized = f"json_serialize_sql('SELECT count(*) AS n FROM sess' || 'ions{condition}')"
    try:
        assert populated.sql(f"SELECT n FROM json_execute_serialized_sql({serialized})").rows() == spelled
    except UsageError as error:
        assert "must be spelled out" in str(error)


@pytest.mark.parametrize("name", ["latest_' || 'sess' || 'ions", "kernel' || '_hist' || 'ory"])
def test_a_helper_named_at_run_time_is_never_silently_empty(name: str, populated: TraceLake) -> None:
    spelled = name.replace("' || '", "")
    at_run_time = select_rows(populated, f"SELECT count(*) FROM query_table('{name}')")
    assert at_run_time.rows == select_rows(populated, f"SELECT count(*) FROM {spelled}").rows


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, beside the lake, with one file of each kind that a statement might try to read."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    (folder / "secret.txt").write_text("hunter2")
    (folder / "secret.csv").write_text("password\nhunter2\n")
    (folder / "secret.json").write_text('{"password": "hunter2"}\n')
    pl.DataFrame({"password": ["hunter2"]}).write_parquet(folder / "secret.parquet")
    monkeypatch.chdir(folder)
    return folder


def refuse(lake: TraceLake, statement: str) -> str:
    """The message with which both interfaces refuse the statement, in the same words and one line."""
    said = []
    for asking in (lambda: lake.sql(statement), lambda: select_rows(lake, statement)):
        with pytest.raises(UsageError) as caught:
            asking()
        said.append(str(caught.value))
        assert "\n" not in said[-1]
        assert "hunter2" not in said[-1]
    assert said[1].startswith(said[0][:40])
    return said[0]


NOT_ONE_SELECT: Final = (
    "COPY sessions TO 'out.csv'",
    "COPY (SELECT 1) TO 'out.parquet' (FORMAT parquet)",
    "COPY sessions FROM 'secret.csv'",
    "EXPLAIN SELECT 1",
    "EXPLAIN ANALYZE SELECT 1",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO 'out.csv'",
    "PRAGMA version",
    "PRAGMA enable_profiling",
    "PRAGMA database_size",
    "CALL pragma_version()",
    "CALL enable_logging(storage = 'file', storage_path = 'out')",
    "SELECT 1; SELECT 2",
    "SELECT 1; COPY (SELECT 1) TO 'out.csv'",
    "COPY (SELECT 1) TO 'out.csv'; SELECT 1",
    "SET threads = 1; SELECT 1",
    "ATTACH 'out.db'",
    "ATTACH 'out.db' AS other",
    "DETACH memory",
    "USE memory",
    "INSTALL httpfs",
    "FORCE INSTALL httpfs",
    "LOAD httpfs",
    "SET enable_external_access = true",
    "SET lock_configuration = false",
    "SET GLOBAL allowed_directories = ['/']",
    "SET VARIABLE a = 1",
    "RESET enable_external_access",
    "CREATE TABLE t AS SELECT 1",
    "CREATE TEMP TABLE t (a INTEGER)",
    "CREATE OR REPLACE VIEW sessions AS SELECT 1",
    "CREATE MACRO f() AS 1",
    "CREATE SECRET s (TYPE s3)",
    "CREATE SCHEMA other",
    "INSERT INTO sessions SELECT * FROM sessions",
    "INSERT INTO sessions VALUES (1) RETURNING *",
    "DELETE FROM sessions",
    "UPDATE sessions SET host = 'x'",
    "TRUNCATE sessions",
    "MERGE INTO sessions USING kernels ON true WHEN MATCHED THEN DELETE",
    "DROP VIEW sessions",
    "DROP TABLE sessions",
    "ALTER VIEW sessions RENAME TO other",
    "COMMENT ON VIEW sessions IS 'x'",
    "EXPORT DATABASE 'out'",
    "IMPORT DATABASE 'out'",
    "CHECKPOINT",
    "FORCE CHECKPOINT",
    "VACUUM",
    "ANALYZE",
    "BEGIN",
    "COMMIT",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "DEALLOCATE p",
    "PIVOT session_metrics ON metric USING sum(value)",
    "PIVOT session_metrics ON metric USING sum(value); SELECT 1",
    "",
    ";",
    "   \n\t ",
    "-- nothing",
    "/* SELECT 1 */",
    "SELEC 1",
    "SELECT FROM WHERE",
    "SELECT 'open",
    "SELECT (1",
    "nonsense",
)

SELECTS_THAT_WRITE: Final = (
    "WITH x AS (INSERT INTO sessions SELECT * FROM sessions RETURNING *) SELECT * FROM x",
    "WITH x AS (DELETE FROM sessions RETURNING *) SELECT * FROM x",
    "WITH x AS (UPDATE sessions SET host = 'x' RETURNING *) SELECT * FROM x",
    "WITH x AS (COPY (SELECT 1) TO 'out.csv') SELECT * FROM x",
    "SELECT * FROM (COPY (SELECT 1) TO 'out.csv')",
    "SELECT * FROM query('COPY (SELECT 1) TO ''out.csv''')",
    "SELECT * FROM query('SELECT 1; COPY (SELECT 1) TO ''out.csv''')",
    "SELECT * FROM enable_logging(storage = 'file', storage_path = 'out')",
    "SELECT * FROM enable_profiling(save_location = 'out.json')",
    "SELECT * FROM export_database('out')",
    "SELECT * INTO other FROM sessions",
    "SELECT nextval('s')",
    "SELECT load_extension('httpfs')",
)

SELECTS_THAT_READ_ELSEWHERE: Final = (
    "SELECT * FROM read_csv('{0}/secret.csv')",
    "SELECT * FROM read_csv_auto('secret.csv')",
    "SELECT * FROM sniff_csv('{0}/secret.csv')",
    "SELECT * FROM read_text('{0}/secret.txt')",
    "SELECT * FROM read_text(['{0}/secret.txt'])",
    "SELECT content FROM read_blob('{0}/*')",
    "SELECT * FROM read_json('{0}/secret.json')",
    "SELECT * FROM read_json_objects('secret.json')",
    "SELECT * FROM read_ndjson('secret.json')",
    "SELECT * FROM read_parquet('{0}/secret.parquet')",
    "SELECT * FROM parquet_scan('{0}/*.parquet')",
    "SELECT * FROM parquet_metadata('{0}/secret.parquet')",
    "SELECT * FROM parquet_schema('{0}/secret.parquet')",
    "SELECT * FROM parquet_kv_metadata('{0}/secret.parquet')",
    "SELECT * FROM glob('{0}/*')",
    "SELECT * FROM glob('*')",
    "SELECT * FROM '{0}/secret.csv'",
    "SELECT * FROM '{0}/secret.parquet'",
    "SELECT * FROM '{0}/secret.json'",
    "SELECT * FROM 'secret.csv'",
    'SELECT * FROM "secret.parquet"',
    "SELECT * FROM '{0}/secret.txt'",
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_blob('/proc/self/environ')",
    "SELECT * FROM query('SELECT * FROM read_text(''{0}/secret.txt'')')",
    "SELECT * FROM query_table('secret.csv')",
    "SELECT * FROM sessions UNION ALL BY NAME SELECT * FROM 'secret.csv'",
    "SELECT (SELECT content FROM read_text('{0}/secret.txt'))",
    "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT * FROM read_text(''secret.txt'')'))",
    "SELECT * FROM 'http://127.0.0.1:1/x.parquet'",
    "SELECT * FROM read_text('{1}/manifests/{2}.json')",
    "SELECT * FROM read_text('{1}/raw/session_id={2}/capture.txt')",
    "SELECT * FROM read_text('{1}/kernels/session_id={2}/../../../scratch/secret.txt')",
    "SELECT * FROM read_parquet('{1}/sessions/*/*.parquet', hive_partitioning = true)",
    "SELECT getenv('HOME')",
)


@pytest.mark.parametrize("statement", NOT_ONE_SELECT)
def test_what_is_not_one_select_is_refused_and_writes_nothing(
    statement: str, populated: TraceLake, scratch: Path, snapshot: Snapshot, tmp_path: Path
) -> None:
    before = snapshot(tmp_path)
    said = refuse(populated, statement)
    assert said.startswith(("SQL refused: ", "SQL: Parser Error"))
    assert snapshot(tmp_path) == before
    assert scratch in tmp_path.iterdir()


@pytest.mark.parametrize("statement", SELECTS_THAT_WRITE)
def test_a_select_that_would_write_is_refused_and_writes_nothing(
    statement: str, populated: TraceLake, scratch: Path, snapshot: Snapshot, tmp_path: Path
) -> None:
    before = snapshot(tmp_path)
    refuse(populated, statement)
    assert snapshot(tmp_path) == before
    assert scratch in tmp_path.iterdir()


@pytest.mark.parametrize("statement", SELECTS_THAT_READ_ELSEWHERE)
def test_a_select_reads_nothing_but_what_the_lake_publishes(
    statement: str, populated: TraceLake, scratch: Path
) -> None:
    with populated.receive_raw(SESSION) as folder:
        (folder / "capture.txt").write_text("hunter2")
    orphan = populated.path / "sessions" / f"session_id={SESSION}" / "not-published.parquet"
    pl.DataFrame({"password": ["hunter2"]}).write_parquet(orphan)
    refuse(populated, statement.format(scratch, populated.path, SESSION))


@pytest.mark.parametrize("statement", ["UPDATE EXTENSIONS", "SELECT '\udcff'", "SELECT \0 FROM"])
def test_a_statement_that_the_parser_does_not_know_is_refused_in_words(statement: str, lake: TraceLake) -> None:
    refuse(lake, statement)


@pytest.mark.parametrize(
    ("statement", "part"),
    [
        ("SELECT nosuch FROM sessions", "nosuch"),
        ("SELECT * FROM nosuch", "nosuch does not exist"),
        ("SELECT 'x'::INTEGER", "Could not convert string 'x'"),
        ("SELECT value + unit FROM session_metrics", "No function matches"),
        ("SELECT error('words') FROM sessions", "words"),
        ("SELECT ?", "parameters"),
        ("SELECT * FROM lake", "lake does not exist"),
        ("SELECT * FROM statement", "statement does not exist"),
    ],
)
def test_a_wrong_statement_is_an_error_of_one_line(statement: str, part: str, populated: TraceLake) -> None:
    assert part in refuse(populated, statement)


def _disguised(statement: str, seed: int) -> str:
    """The statement in random letter case, with white space and comments where blanks were."""
    rng = random.Random(seed)
    blanks = (" ", "  ", "\n", "\t", " /* SELECT 1 */ ", " -- SELECT 1;\n", "/**/")
    words = statement.split(" ")
    text = words[0] + "".join(rng.choice(blanks) + word for word in words[1:])
    return (
        rng.choice(blanks)
        + "".join(rng.choice((c.lower(), c.upper())) for c in text)
        + rng.choice(("", ";", " ", "\n"))
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(statement=st.sampled_from(NOT_ONE_SELECT), seed=st.integers(0, 2**32))
def test_no_disguise_makes_a_refused_statement_pass(statement: str, seed: int, lake: TraceLake, scratch: Path) -> None:
    with pytest.raises(UsageError):
        lake.sql(_disguised(statement, seed))
    assert {path.name for path in scratch.iterdir()} == {f"secret.{kind}" for kind in ("txt", "csv", "json", "parquet")}
    assert not lake.path.exists()
