"""A frame is published only when it fulfils its contract; what is wrong with it is said by table and column.

That nothing is written when a frame does not is tested in `test_store`.
"""

import math
from collections.abc import Callable

import polars as pl
import pytest

from aaco_pipeline.errors import ContractError
from aaco_pipeline.lake.contracts import all_tables, contract, polars_schema, polars_types
from aaco_pipeline.lake.validation import conform, empty_table, to_contract
from tests.lake.published import SESSION


@pytest.mark.parametrize("name", list(all_tables()))
def test_an_empty_frame_fulfils_every_contract(name: str) -> None:
    table = contract(name)
    assert table.key not in empty_table(name).columns
    assert conform(table, empty_table(name), SESSION).schema == polars_schema(table)


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


# ---- frames cast to a contract ---------------------------------------------------------------------------------------


def test_canonical_gives_the_contracts_columns_in_its_order_and_types() -> None:
    frame = pl.DataFrame({"end_ns": [9], "name": ["run"], "start_ns": [4], "call_id": [0], "process_id": [1]})
    given = to_contract("api_calls", frame)
    assert dict(given.schema) == polars_types("api_calls")
    assert list(given.columns) == list(polars_types("api_calls"))
    assert given.select("call_id", "process_id", "name", "start_ns", "end_ns").row(0) == (0, 1, "run", 4, 9)


def test_a_contract_column_the_format_lacks_is_null() -> None:
    given = to_contract("api_calls", pl.DataFrame({"call_id": [0, 1]}))
    assert given.height == 2
    assert given.select(pl.exclude("call_id")).null_count().row(0) == (2,) * (given.width - 1)


def test_canonical_refuses_to_drop_what_the_contract_does_not_know() -> None:
    with pytest.raises(ValueError, match=r"api_calls.*no column colour, shape"):
        to_contract("api_calls", pl.DataFrame({"call_id": [0], "colour": ["red"], "shape": [1]}))


def test_canonical_does_not_bend_a_value_that_does_not_fit_its_type() -> None:
    with pytest.raises(pl.exceptions.InvalidOperationError):
        to_contract("api_calls", pl.DataFrame({"call_id": [1 << 40]}))


def test_canonical_refuses_a_table_without_a_contract() -> None:
    with pytest.raises(KeyError):
        to_contract("no_such_table", pl.DataFrame())


@pytest.mark.parametrize("frame", [pl.DataFrame(), pl.DataFrame({"device_id": []})], ids=["no columns", "no rows"])
def test_no_rows_stay_no_rows(frame: pl.DataFrame) -> None:
    given = to_contract("devices", frame)
    assert given.height == 0
    assert dict(given.schema) == polars_types("devices")


@pytest.mark.parametrize("table", list(all_tables()))
def test_no_rows_has_the_tables_columns(table: str) -> None:
    given = empty_table(table)
    assert given.height == 0
    assert dict(given.schema) == polars_types(table)
