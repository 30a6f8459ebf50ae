"""SQL over the lake answers one SELECT over the contracts' views, and can do nothing else.

What a torn or superseded file does to a statement is tested beside the same for reading, in `test_store`.
"""

from datetime import timedelta
from itertools import product
from typing import Final

import polars as pl
import pytest

from aaco_pipeline.errors import AacoError, LakeError, UsageError
from aaco_pipeline.lake.contracts import all_tables, contract, polars_schema
from aaco_pipeline.lake.declaration import DUCKDB_TYPES, SIGNALS
from aaco_pipeline.lake.sql import select_rows
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.views import HELPER_VIEWS
from tests.lake.published import LATER, SESSION, Filled, every_table
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
