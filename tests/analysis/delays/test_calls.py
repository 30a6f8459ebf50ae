"""The system call in which an iteration's time went by, where that is not what it usually does."""

from typing import Any

import polars as pl

from aaco_pipeline.analysis.delays.decomposition import iteration_delays
from aaco_pipeline.analysis.delays.on_cpu import Costs
from tests.analysis.delays.recorded import MAIN, OTHER, events, iterations, states, threads


def call(at: int, long: int | None, name: str = "pread64") -> dict[str, Any]:
    return {"at": at, "long": long, "kind": "syscall", "name": name, "thread_id": MAIN}


def by(*calls: dict[str, Any], known: pl.DataFrame | None = None) -> dict[tuple[int, str], tuple[str | None, ...]]:
    """Of three iterations of 100 µs, what each part is by."""
    running = states((MAIN, 0, 300, "running"))
    asked = iterations((0, 100), (100, 200), (200, 300))
    found = iteration_delays(asked, running if known is None else known, threads(MAIN), events(*calls), Costs())
    rows = found.select("iteration", "cause", "by_kind", "by_name").rows()
    return {(number, cause): (kind, name) for number, cause, kind, name in rows}


def test_a_call_that_took_most_of_the_work_is_named_and_no_short_one() -> None:
    found = by(call(10, 20, "write"), call(110, 70), call(210, 20))
    assert [found[number, "on_cpu"] for number in range(3)] == [(None, None), ("call", "pread64"), (None, None)]


def test_a_call_that_always_takes_most_of_the_work_makes_no_iteration_longer() -> None:
    found = by(call(10, 70), call(110, 75), call(210, 70))
    assert {found[number, "on_cpu"] for number in range(3)} == {(None, None)}


def test_a_call_whose_return_was_not_seen_is_not_named() -> None:
    assert by(call(110, None))[1, "on_cpu"] == (None, None)


def test_a_wait_that_an_interrupt_ends_is_named_by_its_call_and_one_that_a_thread_ends_by_that() -> None:
    for ended, expected in (
        ({"by_name": "interrupt"}, ("call", "select")),
        ({"by_name": "server", "by_thread_id": OTHER}, ("thread", "server")),
    ):
        known = states(
            (MAIN, 0, 110, "running"),
            (MAIN, 110, 190, "blocked", {"wait": "io", **ended}),
            (MAIN, 190, 300, "running"),
        )
        found = by(call(105, 86, "select"), known=known)
        assert found[1, "blocked"] == expected
        assert found[1, "on_cpu"] == (None, None)
