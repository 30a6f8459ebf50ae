"""A statement opens only the files of sessions that matter to it, and its answer is that over all."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import duckdb
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake import sql
from aaco_pipeline.lake.contracts import all_tables
from aaco_pipeline.lake.sql import meant_by, reads_only, select_rows
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.views import HELPER_VIEWS
from tests.lake.published import Filled

SESSIONS: Final = tuple(f"2025010{day}T000000Z-0000000{day}" for day in range(1, 6))
FIRST, SECOND, *_ = SESSIONS


@pytest.fixture(scope="module")
def five(filled: Filled) -> Iterator[duckdb.DuckDBPyConnection]:
    """Five sessions with what the helper views read, in the schema `whole`."""
    tables: dict[str, list[pl.DataFrame]] = {}
    for number, session in enumerate(SESSIONS):
        value = [float(number), 7.0]
        frames = {
            "sessions": filled("sessions", {"model_name": [None if number == 2 else f"m{number % 2}"]}),
            "session_metrics": filled(
                "session_metrics", {"metric": ["latency_p50", "a"], "value": value, "pass": ["latency", "trace"]}
            ),
            "kernels": filled("kernels", {"kernel_id": [0, 1], "name": ["relu", f"gemm{number}"]}),
            "kernel_stats": filled("kernel_stats", {"kernel_id": [0, 1], "total_ns": [number, 40]}),
        }
        for name, frame in frames.items():
            tables.setdefault(name, []).append(frame.with_columns(session_id=pl.lit(session)))
    with duckdb.connect(":memory:") as connection:
        connection.execute("CREATE SCHEMA whole")
        for name, parts in tables.items():
            rows = pl.concat(parts)
            connection.register("rows", rows)
            connection.execute(f"CREATE TABLE whole.{name} AS SELECT * FROM rows")
        yield connection


def meant(statement: str) -> dict[str, frozenset[str]]:
    with duckdb.connect(":memory:") as connection:
        mentioned = [table for name, table in all_tables().items() if name in statement]
        for helper in HELPER_VIEWS:
            if helper.name in statement:
                mentioned += [all_tables()[name] for name in helper.tables if all_tables()[name] not in mentioned]
        views = {helper.name: helper.select for helper in HELPER_VIEWS if helper.name in statement}
        return meant_by(
            connection,
            statement,
            mentioned,
            views,
            lambda scope: SESSIONS if scope == "session" else ["nightly", "weekly"],
        )


def ids(statement: str, table: str = "sessions") -> list[str] | None:
    """Those of the five sessions that the statement can mean; None where all, as far as is known."""
    found = meant(statement).get(table)
    return None if found is None else sorted(found)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (f"session_id = '{FIRST}'", [FIRST]),
        (f"'{FIRST}' = session_id", [FIRST]),
        (f"session_id IN ('{FIRST}', '{SECOND}')", [FIRST, SECOND]),
        (f"session_id = '{FIRST}' OR session_id = '{SECOND}' AND host = 'x'", [FIRST, SECOND]),
        (f"session_id < '{SECOND}'", [FIRST]),
        (f"session_id > '{FIRST}' AND session_id <= '{SECOND}'", [SECOND]),
        (f"session_id BETWEEN '{FIRST}' AND '{SECOND}'", [FIRST, SECOND]),
        ("session_id LIKE '20250102%'", [SECOND]),
        ("starts_with(session_id, '20250102')", [SECOND]),
        (f"session_id = '{FIRST[:9]}' || '{FIRST[9:]}'", [FIRST]),
        (f"host = 'session_id = ''{FIRST}'''", None),
        (f"session_id = '{FIRST}' OR host = 'x'", None),
        (f"session_id <> '{FIRST}'", list(SESSIONS[1:])),
        (f"NOT (session_id = '{FIRST}')", list(SESSIONS[1:])),
        (f"upper(session_id) = '{FIRST}'", None),
        (f"session_id IS NULL OR session_id = '{FIRST}'", [FIRST]),
        ("session_id = (SELECT max(session_id) FROM sessions)", None),
        ("session_id = 'it''s optional: x'", []),
        (f"session_id IN ('optional: {FIRST}', '{FIRST}')", [FIRST]),
        (f"session_id = '{FIRST}\n'", None),
    ],
)
def test_what_a_condition_can_mean(condition: str, expected: list[str] | None) -> None:
    assert ids(f"SELECT * FROM sessions WHERE {condition}") == expected


def test_a_filter_reaches_through_joins_views_and_both_sides_of_a_union() -> None:
    history = f"SELECT * FROM kernel_history WHERE session_id = '{FIRST}' ORDER BY total_ns DESC LIMIT 3"
    assert [ids(history, table) for table in ("sessions", "kernels", "kernel_stats")] == [[FIRST]] * 3
    one, other = (f"SELECT session_id FROM sessions WHERE session_id = '{one}'" for one in (FIRST, SECOND))
    assert ids(f"{one} UNION ALL {other}") == [FIRST, SECOND]
    assert ids(f"{one} UNION ALL SELECT session_id FROM sessions") is None
    assert ids(f"WITH s AS (SELECT * FROM sessions) SELECT * FROM s WHERE session_id = '{FIRST}'") == [FIRST]


def test_campaigns_have_ids_of_their_own() -> None:
    statement = f"SELECT * FROM campaign_sessions WHERE session_id = '{FIRST}'"
    assert meant(statement) == {}
    found = meant(f"{statement} AND campaign_id = 'nightly'")["campaign_sessions"]
    assert found == {"nightly"}


@pytest.mark.parametrize(
    "other",
    [
        "SELECT session_id FROM json_execute_serialized_sql(json_serialize_sql('SELECT session_id FROM sessions'))",
        "SELECT session_id FROM query_table('sessions')",
        "SELECT session_id FROM query('SELECT * FROM sessions')",
    ],
)
def test_a_table_that_is_read_behind_the_plan_is_read_whole(other: str) -> None:
    assert ids(f"SELECT session_id FROM sessions WHERE session_id = '{FIRST}' UNION ALL {other}") is None


def test_of_a_statement_about_one_session_only_its_manifest_and_files_are_read(
    filled: Filled, lake: TraceLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for session in (FIRST, SECOND):
        lake.publish(session, "a", {"sessions": filled("sessions", {"host": ["h"]})})
    monkeypatch.setattr(TraceLake, "catalogue", None)
    (entry,) = lake.manifest(SECOND).entries
    (lake.path / entry.file).write_bytes(b"torn")
    found = select_rows(lake, f"SELECT session_id, host FROM sessions WHERE session_id = '{FIRST}'")
    assert found.rows == [(FIRST, "h")]


READ: Final = ("sessions", "session_metrics", "kernels", "kernel_stats")
LITERALS: Final = st.sampled_from(
    [*SESSIONS, "2025", "20250103", "", "nightly", "it's", "optional: x", f"x' OR session_id = '{FIRST}", "é", "z"]
)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def comparisons(name: str) -> st.SearchStrategy[str]:
    key, literal = f"{name}.session_id", LITERALS.map(quoted)
    model = st.sampled_from([f"{name}.model_name = 'm1'", f"{name}.model_name IS NULL"])
    simple = st.one_of(
        st.builds("{} {} {}".format, st.just(key), st.sampled_from(["=", "<", "<=", ">", ">=", "<>"]), literal),
        st.builds("{1} {2} {0}".format, st.just(key), literal, st.sampled_from(["=", "<", ">="])),
        st.lists(literal, min_size=1, max_size=4).map(lambda some: f"{key} IN ({', '.join(some)})"),
        st.builds("{} BETWEEN {} AND {}".format, st.just(key), literal, literal),
        st.sampled_from(["2025%", "20250102%", "%1", "2025010_T%"]).map(lambda one: f"{key} LIKE '{one}'"),
        st.sampled_from([f"{key} IS NULL", f"{key} IS NOT NULL", f"length({key}) > 3", f"{key} || '' = '{FIRST}'"]),
        st.sampled_from(
            [f"{key} = (SELECT max(session_id) FROM sessions)", f"{key} IN (SELECT session_id FROM kernels)"]
        ),
        model if name == "s" else st.just(f"{name}.session_id IS NOT DISTINCT FROM '{FIRST}'"),
    )
    return st.recursive(
        simple,
        lambda parts: st.one_of(
            st.builds("({} AND {})".format, parts, parts),
            st.builds("({} OR {})".format, parts, parts),
            st.builds("NOT ({})".format, parts),
            st.builds("CASE WHEN {} THEN {} ELSE false END".format, parts, parts),
        ),
        max_leaves=4,
    )


S, K = comparisons("s"), comparisons("k")
FORMS: Final = (
    "SELECT s.session_id, s.model_name FROM {S} WHERE {s}",
    "SELECT count(*), max(s.session_id) FROM {S} WHERE {s}",
    "SELECT s.session_id, k.name FROM {S} JOIN {K} USING (session_id) WHERE {s} AND {k}",
    "SELECT s.session_id, k.name FROM {S} LEFT JOIN {K} ON s.session_id = k.session_id AND {k} WHERE {s}",
    "SELECT s.session_id, k.name FROM {K} RIGHT JOIN {S} ON s.session_id = k.session_id AND {k}",
    "SELECT s.session_id, k.name FROM {S} FULL JOIN {K} ON s.session_id = k.session_id WHERE {s} OR {k}",
    "WITH s AS (SELECT * FROM sessions) SELECT a.session_id FROM s AS a, s WHERE a.session_id > s.session_id AND {s}",
    "WITH s AS MATERIALIZED (SELECT * FROM sessions) SELECT session_id FROM s WHERE {s}",
    "SELECT s.session_id FROM {S} WHERE {s} UNION SELECT k.session_id FROM {K} WHERE {k}",
    "SELECT s.session_id FROM {S} WHERE {s} EXCEPT SELECT s.session_id FROM {S} WHERE {s2}",
    "SELECT s.session_id FROM {S} WHERE {s} INTERSECT SELECT k.session_id FROM {K} WHERE {k}",
    "SELECT s.session_id, (SELECT count(*) FROM {K} WHERE k.session_id = s.session_id AND {k}) FROM {S} WHERE {s}",
    "SELECT s.session_id FROM {S} WHERE EXISTS (SELECT 1 FROM {K} WHERE k.session_id > s.session_id AND {k})",
    "SELECT s.session_id FROM {S} WHERE s.session_id NOT IN (SELECT k.session_id FROM {K} WHERE {k})",
    "SELECT s.session_id, s.total_ns FROM kernel_history AS s WHERE {s} ORDER BY ALL LIMIT 3",
    "SELECT s.session_id, s.latency_p50_ns FROM latest_sessions AS s WHERE {s} ORDER BY ALL LIMIT 2",
    "SELECT s.session_id, count(*) FROM {S} JOIN kernels USING (session_id) GROUP BY ALL HAVING {k_as_s}",
    "SELECT s.session_id, row_number() OVER (ORDER BY s.session_id) FROM {S} QUALIFY {s}",
    "SELECT * FROM (SELECT *, row_number() OVER (ORDER BY session_id) AS n FROM sessions) AS s WHERE {s}",
    "SELECT * FROM (SELECT session_id, model_name FROM sessions ORDER BY session_id LIMIT 2) AS s WHERE {s}",
    "SELECT s.session_id, l.name FROM {S}, LATERAL (SELECT * FROM {K} WHERE k.session_id = s.session_id AND {k}) AS l "
    "WHERE {s}",
    "SELECT s.session_id FROM {S} SEMI JOIN {K} ON k.session_id = s.session_id AND {k} WHERE {s}",
    "SELECT s.session_id FROM {S} ANTI JOIN {K} ON k.session_id = s.session_id AND {k}",
    "WITH RECURSIVE r AS (SELECT s.session_id, 1 AS n FROM {S} WHERE {s} UNION ALL "
    "SELECT k.session_id, n + 1 FROM r JOIN {K} ON k.session_id > r.session_id WHERE n < 2 AND {k}) SELECT * FROM r",
    "SELECT {s} AS \"session_id = '2025'\" FROM {S}",
    "SELECT count(*) FILTER ({s}) FROM {S}",
)


@given(form=st.sampled_from(FORMS), s=S, s2=S, k=K)
def test_the_answer_is_that_over_all(form: str, s: str, s2: str, k: str, five: duckdb.DuckDBPyConnection) -> None:
    aliases = {"S": "sessions AS s", "K": "kernels AS k", "k_as_s": k.replace("k.", "s.")}
    statement = form.format(s=s, s2=s2, k=k, **aliases)
    narrowed = meant(statement)
    answers = []
    for chosen in (dict[str, frozenset[str]](), narrowed):
        for table in READ:
            ids = [one for one in SESSIONS if table not in chosen or one in chosen[table]]
            rows = f"SELECT * FROM whole.{table} WHERE session_id IN ({', '.join(map(quoted, ids)) or 'NULL'})"
            five.execute(f"CREATE OR REPLACE VIEW {table} AS {rows}")
        for helper in (one for one in HELPER_VIEWS if set(one.tables) <= set(READ)):
            five.execute(f"CREATE OR REPLACE VIEW {helper.name} AS {helper.select}")
        try:
            answers.append(sorted(map(repr, five.execute(statement).fetchall())))
        except duckdb.BinderException as error:
            answers.append([str(error)])
            assert narrowed == {}
    assert answers[0] == answers[1], statement


# ---- which tables a statement can read -------------------------------------------------------------------------------


def spelled_out(statement: str, *names: str) -> bool:
    with duckdb.connect(":memory:") as connection:
        return reads_only(connection, statement, names)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1",
        "VALUES (1), (2)",
        "FROM Sessions",
        "SELECT count(*) FROM sessions AS s LEFT JOIN kernels AS k USING (session_id) WHERE k.name LIKE 'a%'",
        "WITH k AS (FROM kernels), s AS (FROM sessions) SELECT (SELECT max(host) FROM s) FROM K ORDER BY 1",
        "SELECT host FROM sessions WHERE session_id IN (WITH few AS (FROM kernels) SELECT session_id FROM few)",
        "SELECT host FROM sessions UNION ALL BY NAME SELECT name FROM kernels LIMIT (SELECT 1)",
        f"SELECT 1{' + 1' * 300} FROM sessions",
    ],
)
def test_a_statement_that_spells_its_tables_out_reads_no_others(statement: str) -> None:
    assert spelled_out(statement, "sessions", "kernels")
    assert spelled_out(statement) == ("sessions" not in statement.casefold())


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM sessions, query_table('ker' || 'nels')",
        "SELECT (SELECT count(*) FROM query('FROM ker' || 'nels')) FROM sessions",
        "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('FROM ker' || 'nels'))",
        "WITH a AS (SELECT * FROM duckdb_views()) SELECT * FROM a, sessions",
        "SELECT * FROM sessions WHERE host IN (SELECT table_name FROM information_schema.tables)",
        "SELECT * FROM duckdb_tables",
        "SELECT * FROM sqlite_master",
        "SELECT * FROM pg_catalog.sessions",
        "SELECT * FROM (DESCRIBE sessions)",
        "SHOW TABLES",
        "SUMMARIZE sessions",
        "SELECT * FROM 'sessions.parquet'",
        "SELECT * FROM sessions JOIN kernels USING (session_id)",
        "PIVOT sessions ON host USING count(*)",
        "SELECT FROM",
        f"SELECT {'abs(' * 900}1{')' * 900} FROM sessions",
    ],
)
def test_what_could_come_upon_other_tables_is_not_taken_to_spell_them_out(statement: str) -> None:
    assert not spelled_out(statement, "sessions")


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT table_name FROM information_schema.tables WHERE table_schema = 'main'",
        "SELECT view_name FROM duckdb_views() WHERE NOT internal",
        "SELECT name FROM sqlite_master",
        "SELECT name FROM (SHOW TABLES)",
        "SELECT tablename FROM pg_catalog.pg_tables UNION SELECT viewname FROM pg_catalog.pg_views "
        "WHERE schemaname = 'main'",
    ],
)
def test_whatever_lists_the_lakes_tables_lists_them_all(statement: str, lake: TraceLake) -> None:
    listed = {name for (name,) in select_rows(lake, statement).rows}
    assert listed >= {*all_tables(), *(helper.name for helper in HELPER_VIEWS)}


def test_a_statement_that_is_refused_is_not_even_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "meant_by", lambda *_: pytest.fail("DuckDB was given the statement"))
    with pytest.raises(UsageError):
        select_rows(TraceLake(tmp_path), "SELECT session_id FROM sessions; SELECT 1")
