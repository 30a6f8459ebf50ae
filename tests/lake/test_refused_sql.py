"""What is not one SELECT over the lake is refused in one line, and reads and writes nothing."""

import random
from pathlib import Path
from typing import Final

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.sql import select_rows
from aaco_pipeline.lake.store import TraceLake
from tests.lake.published import SESSION, Snapshot


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
    """What is said when both ways to ask refuse the statement with the same words and no more than one line."""
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
