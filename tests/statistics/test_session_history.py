"""One session among earlier ones: which are like it, where it lies, and what is null with which reason."""

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.statistics.session_history import LEAST_FOR_Z, MOST_EARLIER, alike, newest, place

OWN: dict[str, Any] = {
    **dict.fromkeys(polars_types("sessions")),
    "session_id": "own",
    "source_kind": "live",
    "workload": "inference",
    "model_name": "resnet50",
    "backend": "cpu",
    "batch_size": 1,
    "host": "node1",
    "fingerprint": "f1",
}
SCHEMA = {"session_id": pl.String(), **polars_types("sessions")}


def sessions(*rows: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame([{**OWN, "session_id": f"s{place:02}", **row} for place, row in enumerate(rows)], schema=SCHEMA)


def levels(values: list[int | None], same: bool = True) -> pl.DataFrame:
    return pl.DataFrame(
        {"session_id": [f"s{i}" for i in range(len(values))], "level_ns": values, "same_environment": same},
        schema={"session_id": pl.String, "level_ns": pl.Int64, "same_environment": pl.Boolean},
    )


@pytest.mark.parametrize(
    ("changed", "is_like"),
    [
        ({}, True),
        ({"fingerprint": "f2"}, True),
        ({"artefact_sha256": "ab"}, True),
        ({"campaign_id": "c", "arm": "baseline"}, True),
        ({"campaign_id": "c", "arm": "candidate"}, False),
        ({"host": "node2"}, False),
        ({"backend": "migraphx"}, False),
        ({"batch_size": 8}, False),
        ({"batch_size": None}, False),
        ({"model_name": "bert"}, False),
        ({"precision": "fp16"}, False),
        ({"failure": "run_1 ended with status 7"}, False),
    ],
)
def test_the_same_work_on_the_same_host_counts(changed: dict[str, Any], is_like: bool) -> None:
    found = alike(sessions(changed), OWN)
    assert found.height == is_like
    if is_like:
        assert found.item(0, "same_environment") == (changed.get("fingerprint", "f1") == "f1")


def test_in_one_campaign_models_of_other_names_are_the_same_work() -> None:
    row = {"model_name": "old", "campaign_id": "c", "arm": "baseline"}
    assert alike(sessions(row), {**OWN, "campaign_id": "c", "arm": "candidate"}).height == 1
    assert alike(sessions(row), {**OWN, "campaign_id": "d"}).is_empty()


def test_nothing_is_like_a_session_of_an_unknown_host() -> None:
    assert alike(sessions({"host": None}), {**OWN, "host": None}).is_empty()


def test_a_program_that_failed_is_like_no_other() -> None:
    assert alike(sessions({}), {**OWN, "failure": "run_1 was ended by SIGSEGV"}).is_empty()


def test_it_lies_where_it_lies() -> None:
    row = place(1_018, None, levels([1_000, 990, 1_010, 1_030, 1_000, 985, 1_005, 995]))
    assert row["compared_within"] == "environment"
    assert (row["earlier_sessions"], row["rank"], row["low_ns"], row["median_ns"], row["high_ns"]) == (
        *(8, 8, 985),
        *(1_000, 1_030),
    )
    assert row["median_ratio"] == pytest.approx(1.018)
    assert row["robust_z"] == pytest.approx(1.6, abs=0.1)
    assert row["reason"] is None


@pytest.mark.parametrize(
    ("value", "why", "earlier", "reason"),
    [
        (5, None, [], "no earlier session of the same work on this host has a steady level"),
        (5, None, [None], "no earlier session of the same work on this host has a steady level"),
        (None, "it has no measured iterations", [5, 6], "it has no measured iterations"),
        (5, None, [5] * 7, "robust_z: fewer than 8 earlier sessions (7)"),
        (5, None, [5] * 8, "robust_z: more than half of the earlier sessions have the same level"),
    ],
)
def test_unknown_figures_are_null_with_a_reason(
    value: int | None, why: str | None, earlier: list[int | None], reason: str
) -> None:
    row = place(value, why, levels(earlier))
    assert row["reason"] == reason
    assert row.get("robust_z") is None
    assert (row.get("rank") is None) == (value is None or not any(earlier))


def test_a_new_environment_is_compared_within_the_host() -> None:
    mixed = pl.concat([levels([110, 111]), levels([100] * 10, same=False)])
    row = place(110, None, mixed)
    assert (row["compared_within"], row["earlier_sessions"], row["median_ns"]) == ("host", 12, 100)
    enough = pl.concat([levels([110] * LEAST_FOR_Z), levels([100] * 10, same=False)])
    assert place(110, None, enough)["compared_within"] == "environment"
    assert place(110, None, enough)["median_ratio"] == 1


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=2 * MOST_EARLIER), st.integers(1, 10**9))
def test_its_rank_is_one_more_than_those_below_it(values: list[int], own: int) -> None:
    row = place(own, None, levels(list(values)))
    counted = values[:MOST_EARLIER]
    assert row["rank"] == 1 + sum(value < own for value in counted)
    assert row["earlier_sessions"] == len(counted)
    assert row["low_ns"] <= row["median_ns"] <= row["high_ns"]
    assert (row["median_ratio"] > 1) == (own > pl.Series(counted).median())  # type: ignore[operator]


def test_the_newest_of_the_name_come_first() -> None:
    def named(second: int, name: str) -> str:
        return f"20260101T0000{second:02}Z-0123456{second % 10}{name}"

    known = [named(1, "-bert"), named(2, "-resnet"), named(3, "-bert"), named(4, "-bert-large"), named(6, "-bert")]
    known += [named(7, "")]
    assert newest(known, named(5, "-bert"), 10) == [known[2], known[0]]
    assert newest(known, named(9, "-bert"), 2) == [known[4], known[2]]
    assert newest(known, named(9, ""), 5) == [known[5]]
