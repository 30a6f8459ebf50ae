"""A frame is published only when it fulfils its contract; what is wrong with it is said by table and column.

That nothing is written when a frame does not is tested in `test_store`.
"""

import math
from collections.abc import Callable

import polars as pl
import pytest

from aaco_pipeline.errors import ContractError
from aaco_pipeline.lake.contracts import all_tables, contract, polars_schema
from aaco_pipeline.lake.validation import conform, empty

SESSION = "20250101T000000Z-0000000a"


@pytest.mark.parametrize("name", list(all_tables()))
def test_an_empty_frame_fulfils_every_contract(name: str) -> None:
    table = contract(name)
    assert table.key not in empty(table).columns
    assert conform(table, empty(table), SESSION).schema == polars_schema(table)


@pytest.mark.parametrize("name", list(all_tables()))
def test_a_column_that_is_null_throughout_may_come_untyped(name: str) -> None:
    table = contract(name)
    untyped = pl.DataFrame({c.name: pl.Series([], dtype=pl.Null) for c in table.columns})
    assert conform(table, untyped, SESSION).schema == polars_schema(table)


def test_columns_come_in_the_contracts_order_with_the_key_first(metrics: Callable[..., pl.DataFrame]) -> None:
    frame = metrics(1.0)
    shuffled = frame.select(reversed(frame.columns))
    table = contract("session_metrics")
    assert conform(table, shuffled, SESSION).columns == [c.name for c in table.all_columns]
    assert conform(table, shuffled, SESSION).get_column("session_id").to_list() == [SESSION]


def test_a_frame_may_bring_its_key(metrics: Callable[..., pl.DataFrame]) -> None:
    frame = metrics(1.0)
    keyed = frame.with_columns(pl.lit(SESSION).alias("session_id"))
    table = contract("session_metrics")
    assert conform(table, keyed, SESSION).equals(conform(table, frame, SESSION))


def test_rows_are_sorted_and_rows_with_equal_keys_keep_their_order(metrics: Callable[..., pl.DataFrame]) -> None:
    frame = metrics(1.0, 2.0, 3.0, 4.0).with_columns(
        pl.Series("metric", ["b", "a", "b", "a"]), pl.Series("phase", ["y", "x", None, "x"])
    )
    found = conform(contract("session_metrics"), frame, SESSION)
    assert found.select("metric", "phase", "value").rows() == [
        ("a", "x", 2.0),
        ("a", "x", 4.0),
        ("b", None, 3.0),
        ("b", "y", 1.0),
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.drop("unit", "n"), "table session_metrics: column n, unit is missing|column unit, n is missing"),
        (lambda f: f.with_columns(pl.lit(1).alias("extra")), "table session_metrics: column extra is not in the"),
        (lambda f: f.rename({"unit": "units"}), "column unit is missing; column units is not in the contract"),
        (lambda f: f.cast({"n": pl.Int32}), "table session_metrics, column n: found type Int32, expected Int64"),
        (lambda f: f.cast({"value": pl.Float32}), "column value: found type Float32, expected Float64"),
        (lambda f: f.cast({"unit": pl.Categorical}), "column unit: found type Categorical, expected String"),
        (lambda f: f.with_columns(pl.lit(None).alias("unit")), "column unit: 2 of 2 values are null, and the contract"),
        (lambda f: f.with_columns(pl.Series("metric", ["a", None])), "column metric: 1 of 2 values are null"),
        (lambda f: f.with_columns(pl.Series("value", [1.0, math.nan])), "column value: holds NaN; missing evidence is"),
        (
            lambda f: f.with_columns(pl.lit("z").alias("session_id")),
            f"2 rows name session_id 'z', expected '{SESSION}'",
        ),
        (lambda f: f.with_columns(pl.Series("session_id", [SESSION, None])), "column session_id: 1 of 2 values are"),
        (lambda f: f.with_columns(pl.lit(1).alias("session_id")), "column session_id: found type Int32, expected Str"),
    ],
)
def test_a_frame_that_breaks_its_contract_is_refused_by_table_and_column(
    change: Callable[[pl.DataFrame], pl.DataFrame], message: str, metrics: Callable[..., pl.DataFrame]
) -> None:
    with pytest.raises(ContractError, match=message) as caught:
        conform(contract("session_metrics"), change(metrics(1.0, 2.0)), SESSION)
    assert "\n" not in str(caught.value)


def test_no_table_of_another_session_passes_as_this_ones(metrics: Callable[..., pl.DataFrame]) -> None:
    frame = metrics(1.0, 2.0).with_columns(pl.Series("session_id", [SESSION, "20250101T000000Z-0000000b"]))
    with pytest.raises(ContractError, match="1 rows name session_id '20250101T000000Z-0000000b'"):
        conform(contract("session_metrics"), frame, SESSION)


def test_missing_evidence_inside_a_record_is_null_too_never_nan(filled: Callable[..., pl.DataFrame]) -> None:
    signal = {"signal": "s", "value": math.nan, "unit": "ns", "threshold": 1.0, "weight": 1.0, "source": "kernels"}
    frame = filled("bottlenecks", {"evidence": [[signal]]})
    with pytest.raises(ContractError, match="column evidence: holds NaN"):
        conform(contract("bottlenecks"), frame, SESSION)
