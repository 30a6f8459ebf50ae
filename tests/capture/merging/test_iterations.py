"""Assignment of dispatches to iterations where several processes ran."""

from collections.abc import Mapping

import polars as pl

from aaco_pipeline.capture.merging.iterations import from_markers
from aaco_pipeline.lake.validation import to_contract

Ranges = list[tuple[int, str, int, int]]
ONE_CLOCK = {0: ("host", "node"), 1: ("host", "node")}
TWO_CLOCKS = {0: ("part", "a"), 1: ("part", "b")}


def iterations_of(
    ranges: Ranges,
    launches: list[tuple[int, int]],
    clocks: Mapping[int, tuple[str, ...]],
    ranks: tuple[int | None, ...],
) -> tuple[list[tuple[int, int]], list[int | None], list[str]]:
    """Start and end of each iteration, the iteration of each launch (process, time), and what evidence tells."""
    tables = {
        "processes": to_contract(
            "processes",
            pl.DataFrame({"process_id": range(len(ranks)), "rank": ranks}, schema_overrides={"rank": pl.Int32}),
        ),
        "markers": to_contract(
            "markers",
            pl.DataFrame(
                [
                    {"marker_id": i, "process_id": process, "thread_id": 7, "name": name, "start_ns": a, "end_ns": b}
                    for i, (process, name, a, b) in enumerate(ranges)
                ]
            ),
        ),
        "api_calls": to_contract("api_calls", pl.DataFrame()),
        "dispatches": to_contract(
            "dispatches",
            pl.DataFrame(
                [
                    {"dispatch_id": i, "process_id": process, "start_ns": at, "end_ns": at + 1}
                    for i, (process, at) in enumerate(launches)
                ]
            ),
        ),
    }
    found, dispatches, evidence = from_markers(tables, clocks)
    times = found.select("start_ns", "end_ns").rows()
    assert found.get_column("iteration").to_list() == list(range(len(times)))
    assert dispatches.get_column("dispatch_id").to_list() == list(range(len(launches)))
    return times, dispatches.get_column("iteration").to_list(), [item.item for item in evidence]


STEPS: Ranges = [(0, "step 3", 100, 200), (0, "step 4", 200, 300)]
LAUNCHES = [(0, 150), (0, 250), (0, 350), (1, 150), (1, 250), (1, 1150)]


def test_a_process_without_steps_has_those_around_its_work_on_one_clock_only() -> None:
    times, own, told = iterations_of(STEPS, LAUNCHES, ONE_CLOCK, (None, None))
    assert (times, own, told) == ([(100, 200), (200, 300)], [0, 1, None, 0, 1, None], [])
    times, own, told = iterations_of(STEPS, LAUNCHES, TWO_CLOCKS, (0, 1))
    assert (times, own) == ([(100, 200), (200, 300)], [0, 1, None, None, None, None])
    assert told == ["iterations of process 1"]


def test_a_process_with_steps_has_its_own_by_their_names() -> None:
    other: Ranges = [(1, "step 4", 1100, 1200), (1, "step 5", 200, 300)]
    for clocks in (ONE_CLOCK, TWO_CLOCKS):
        assert iterations_of([*STEPS, *other], LAUNCHES, clocks, (0, 1))[1] == [0, 1, None, None, None, 1]


def test_the_lowest_rank_leads_and_without_ranks_the_first_to_begin() -> None:
    other: Ranges = [(1, "step 3", 10, 20)]
    assert iterations_of([*STEPS, *other], [], TWO_CLOCKS, (0, 1))[0] == [(100, 200), (200, 300)]
    assert iterations_of([*STEPS, *other], [], TWO_CLOCKS, (5, 1))[0] == [(10, 20)]
    assert iterations_of([*STEPS, *other], [], TWO_CLOCKS, (None, None))[0] == [(10, 20)]


def test_steps_of_another_process_that_repeat_or_overlap_say_nothing() -> None:
    for other in (
        [(1, "step 4", 100, 200), (1, "step 4", 200, 300)],
        [(1, "step 3", 100, 260), (1, "step 4", 200, 300)],
    ):
        found = iterations_of([*STEPS, *other], LAUNCHES, TWO_CLOCKS, (0, 1))
        assert found[1] == [0, 1, None, None, None, None]
