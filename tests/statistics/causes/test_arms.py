"""Grades of differences of the environment."""

from dataclasses import replace

from aaco_pipeline.statistics.causes.arms import environment_differences
from tests.statistics.causes.made import GEMM, STEP, Tables, arm_of, session

Facts = dict[tuple[str, str], str | None]
OLD: Facts = {("rocm", "version"): "6.4", ("driver", "amdgpu"): "6.12"}


def graded(before: list[Tables], after: list[Tables], *, interleaved: bool = False) -> dict[str, str]:
    rows = environment_differences(arm_of(*before), arm_of(*after), interleaved=interleaved)
    return {f"{row['category']} {row['key']}": row["evidence_grade"] for row in rows.iter_rows(named=True)}


def with_facts(facts: Facts, ns: int = 1_000) -> Tables:
    return session((replace(GEMM, ns=ns), *STEP[1:]), environment=facts)


def test_equal_facts_unread_facts_and_readings_of_the_moment_are_no_difference() -> None:
    new: Facts = {**OLD, ("moment", "load_1m"): "9", ("package", "aaco_pipeline"): "2", ("gpu", "cap"): None}
    old: Facts = {**OLD, ("moment", "load_1m"): "1", ("package", "aaco_pipeline"): "1", ("gpu", "cap"): "750"}
    assert graded([with_facts(old)], [with_facts(new)]) == {}


def test_one_difference_is_isolated_only_where_sides_alternated() -> None:
    new: Facts = {**OLD, ("rocm", "version"): "7.0"}
    assert graded([with_facts(OLD)], [with_facts(new)]) == {"rocm version": "observed"}
    assert graded([with_facts(OLD)], [with_facts(new)], interleaved=True) == {"rocm version": "isolated"}


def test_two_differences_are_not_isolated() -> None:
    new: Facts = {("rocm", "version"): "7.0", ("driver", "amdgpu"): "6.14"}
    assert set(graded([with_facts(OLD)], [with_facts(new)], interleaved=True).values()) == {"observed"}


def test_a_fact_that_splits_one_side_into_fast_and_slow_is_correlated() -> None:
    low: Facts = {**OLD, ("gpu", "power_cap"): "600"}
    high: Facts = {**OLD, ("gpu", "power_cap"): "750"}
    before = [with_facts(high), with_facts(high)]
    after = [with_facts(high, 1_000), with_facts(high, 1_010), with_facts(low, 1_500), with_facts(low, 1_510)]
    assert graded(before, after) == {"gpu power_cap": "correlated"}
    mixed = [with_facts(high, 1_000), with_facts(low, 1_010), with_facts(high, 1_500), with_facts(low, 1_510)]
    assert graded(before, mixed) == {"gpu power_cap": "observed"}


def test_another_device_is_a_difference() -> None:
    assert graded([session(STEP)], [session(STEP, product="another GPU")]) == {"device product": "observed"}
