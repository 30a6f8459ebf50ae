"""Digests of tables differ when a value does, and not by the names that sessions are given anew."""

from datetime import UTC, datetime

import polars as pl
import pytest

from benchmarks.reliability.table_digests import differences, digest

LABELS = {"20261128T113458Z-4f3dc45c-one": "one", "20261128T113459Z-00000000-two": "two"}
TABLE = pl.DataFrame(
    {
        "session_id": ["20261128T113458Z-4f3dc45c-one"] * 2,
        "previous": ["20261128T113459Z-00000000-two", None],
        "value": [0.1 + 0.2, 3.0],
        "count": [1, 2],
        "at": pl.Series([1, 2]).cast(pl.Datetime("ns", "UTC")),
        "signals": [["a"], []],
    }
)


@pytest.mark.parametrize(
    "changed",
    [
        TABLE.with_columns(value=pl.Series([0.3, 3.0])),
        TABLE.with_columns(at=pl.col("at") + pl.duration(nanoseconds=1)),
        TABLE.with_columns(count=pl.col("count").cast(pl.Int32)),
        TABLE.with_columns(previous=pl.lit("20261128T113458Z-4f3dc45c-one")),
        TABLE.with_columns(signals=pl.Series([["a"], ["b"]])),
        TABLE.rename({"value": "figure"}),
        TABLE.reverse(),
        TABLE.head(1),
    ],
)
def test_any_other_value_type_name_or_order_of_rows_is_another_digest(changed: pl.DataFrame) -> None:
    assert digest(changed, LABELS) != digest(TABLE, LABELS)


def test_names_of_sessions_and_order_of_columns_do_not_count() -> None:
    renamed = {
        f"{datetime(2027, 1, 1, tzinfo=UTC):%Y%m%dT%H%M%SZ}-ffffffff-{label}": label for label in LABELS.values()
    }
    anew = dict(zip(LABELS, renamed, strict=True))
    other = TABLE.with_columns(pl.col("session_id", "previous").replace(anew)).select(sorted(TABLE.columns))
    assert digest(other, renamed) == digest(TABLE, LABELS)
    assert digest(other, {}) != digest(TABLE, LABELS)


def test_differences_name_the_table_the_session_and_the_refusal() -> None:
    before = {"sessions": {"a": {"gaps of timeline": [1, "x"]}, "b": {}}, "refused": {"c": [6, "no capture"]}}
    after = {"sessions": {"a": {"gaps of timeline": [1, "y"]}}, "refused": {"c": [1, "a bug"]}}
    assert differences(before, before) == []
    assert differences(before, after) == [
        "a: gaps of timeline: 1 rows, digest x and 1 rows, digest y",
        "b: only before in sessions",
        "c: refused otherwise: [6, 'no capture'] and [1, 'a bug']",
    ]
