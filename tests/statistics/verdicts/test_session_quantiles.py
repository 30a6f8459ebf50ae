"""Quantiles and states of sessions, against quantiles counted by hand and injected faults."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.errors import UsageError
from aaco_pipeline.statistics.verdicts.session_quantiles import session_quantiles


def iterations(session: str, latency: list[float] | list[int], arm: str = "baseline", block: int = 0) -> pl.DataFrame:
    return pl.DataFrame({"latency_ns": latency}).select(
        session_id=pl.lit(session),
        arm=pl.lit(arm),
        block=pl.lit(block),
        iteration=pl.int_range(pl.len()),
        latency_ns=pl.col("latency_ns"),
    )


def steady(count: int, seed: int = 0) -> list[int]:
    latency: list[int] = (1e6 * (1 + 0.01 * np.random.default_rng(seed).standard_normal(count))).astype(int).tolist()
    return latency


def test_quantiles_are_observed_values_of_nearest_rank() -> None:
    latency = list(range(1_000_001, 1_001_001))
    np.random.default_rng(2).shuffle(latency)
    row = session_quantiles(iterations("s", latency)).row(0, named=True)
    assert (row["p50_ns"], row["p90_ns"], row["p99_ns"]) == (1_000_500, 1_000_900, 1_000_990)
    assert row["trimmed_mean_ns"] == 1_000_500
    assert (row["state"], row["iterations"], row["n"], row["steady_from"], row["reasons"]) == (
        "steady",
        1000,
        1000,
        0,
        [],
    )


def test_a_quantile_without_enough_iterations_is_null_and_says_so() -> None:
    found = session_quantiles(pl.concat([iterations("a", steady(99)), iterations("b", steady(100))]))
    assert found.get_column("p90_ns").is_null().to_list() == [True, False]
    assert found.get_column("reasons").to_list() == [
        ["p90 needs 100 iterations, there are 99", "p99 needs 1000 iterations, there are 99"],
        ["p99 needs 1000 iterations, there are 100"],
    ]


def test_iterations_before_the_steady_part_are_omitted() -> None:
    latency = [2_000_000] * 60 + [1_000_000 + i % 7 for i in range(240)]
    row = session_quantiles(iterations("s", latency)).row(0, named=True)
    assert (row["state"], row["steady_from"], row["n"]) == ("steady", 60, 240)
    assert row["p90_ns"] < 1_000_010


def test_an_unsteady_session_keeps_all_its_iterations_and_is_named() -> None:
    latency = [1_000_000 + i % 7 for i in range(200)] + [1_500_000 + i % 7 for i in range(100)]
    row = session_quantiles(iterations("s", latency)).row(0, named=True)
    assert (row["state"], row["steady_from"], row["n"]) == ("unsteady", None, 300)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([1e6, float("nan"), 1e6], "the latency of iteration 1 is not a number"),
        ([1e6, 1e6, float("inf")], "the latency of iteration 2 is not a number"),
        ([1e6, None, 1e6], "iteration 1 has no latency"),
        ([1e6, -5.0, 1e6], "iteration 1 took -5 ns: a clock that was stepped"),
        ([0.0, 1e6, 1e6], "iteration 0 took 0 ns: a clock that was stepped"),
    ],
)
def test_a_session_with_an_impossible_latency_is_unusable_and_the_others_are_not(
    values: list[float], reason: str
) -> None:
    sound = iterations("sound", steady(100)).with_columns(pl.col("latency_ns").cast(pl.Float64))
    found = session_quantiles(pl.concat([iterations("bad", values), sound]))
    assert found.get_column("state").to_list() == ["unusable", "steady"]
    bad = found.row(0, named=True)
    assert bad["reasons"] == [reason]
    assert [bad[name] for name in ("p50_ns", "p90_ns", "p99_ns", "trimmed_mean_ns", "steady_from")] == [None] * 5


def test_a_start_before_the_end_of_the_one_before_is_a_stepped_clock() -> None:
    frame = iterations("s", [10, 10, 10]).with_columns(start_ns=pl.Series([0, 10, 15]))
    assert session_quantiles(frame).item(0, "reasons").to_list() == [
        "iteration 2 starts before the end of the one before: a stepped clock"
    ]


def test_an_iteration_that_is_there_twice_makes_a_session_unusable() -> None:
    frame = pl.concat([iterations("s", [10, 10]), iterations("s", [10])])
    assert session_quantiles(frame).item(0, "reasons").to_list() == ["iteration 0 is there twice"]


def test_a_dead_session_has_a_row() -> None:
    frame = iterations("s", [10]).with_columns(iteration=pl.lit(None, pl.Int64), latency_ns=pl.lit(None, pl.Int64))
    row = session_quantiles(frame).row(0, named=True)
    assert (row["state"], row["iterations"], row["reasons"]) == ("unusable", 0, ["it has no measured iterations"])


def test_a_session_of_two_arms_is_refused() -> None:
    with pytest.raises(UsageError, match="session s stands in two arms or blocks"):
        session_quantiles(pl.concat([iterations("s", [10]), iterations("s", [10], arm="candidate")]))


def test_no_iterations_are_no_sessions() -> None:
    assert session_quantiles(iterations("s", [10]).clear()).height == 0


@given(st.integers(0, 10**6), st.lists(st.integers(1, 250), min_size=1, max_size=5))
def test_neither_order_nor_neighbours_change_a_session(seed: int, counts: list[int]) -> None:
    each = [iterations(f"s{i}", steady(count, seed + i), block=i) for i, count in enumerate(counts)]
    together = session_quantiles(pl.concat(each).sample(fraction=1, shuffle=True, seed=seed))
    alone = pl.concat([session_quantiles(one) for one in each])
    assert together.equals(alone)
    filled = together.filter(pl.col("p90_ns").is_not_null())
    assert filled.filter(pl.col("p50_ns") > pl.col("p90_ns")).is_empty()
