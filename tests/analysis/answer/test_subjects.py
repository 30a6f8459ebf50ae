"""What an answer names, with its figures: calls, copies, launches, collectives, and the resource of the kernels."""

from typing import Any

import polars as pl

from aaco_pipeline.analysis.answer.first_to_fix import (
    COPIES_BESIDE,
    WAIT_LESS,
    heaviest_collective,
    longest_call,
    longest_copies,
    subject_of_launches,
)
from aaco_pipeline.analysis.answer.subjects import limiting_resource, subject_of
from aaco_pipeline.analysis.answer.terms import PACK
from aaco_pipeline.analysis.answer.window import Window
from aaco_pipeline.analysis.timeline.collective_rates import LATE_OR_BROKEN
from tests.analysis.answer.made_up import gap, rows


def test_subjects_are_told_with_their_figures() -> None:
    gaps = pl.DataFrame({"cause": ["sync"] * 3, "host_call_id": [0, 0, 1], "start_ns": [0, 5, 9], "end_ns": [1, 6, 99]})
    calls = pl.DataFrame({"call_id": [0, 1], "name": ["hipEventSynchronize", "hipDeviceSynchronize"]})
    assert longest_call(gaps, calls) == "hipDeviceSynchronize, once"
    assert longest_call(gaps.head(2), calls) == "hipEventSynchronize, 2 times"
    assert longest_call(gaps.clear(), calls) is None
    copies = pl.DataFrame(
        {"direction": ["device_to_host"], "start_ns": [0], "end_ns": [100], "size_bytes": pl.Series([191])}
    ).with_columns(host_memory=pl.lit(None, pl.String))
    assert longest_copies(copies) == "device to host at 1.91 GB/s"
    assert subject_of_launches(1500, 1500, 3, "an iteration") == "500 launches an iteration"
    assert subject_of_launches(3, 3, 3, "a repetition") == "1 launch a repetition"
    assert subject_of_launches(1500, 0, None, "a repetition") == "1,500 launches"
    assert subject_of_launches(0, 0, None, "a repetition") is None
    assert subject_of_launches(1500, 751, 3, "an iteration") == "500 launches an iteration"
    assert subject_of_launches(1500, 750, 3, "an iteration") == "500 kernels of graphs an iteration"


def test_one_rank_alone_does_not_tell_a_late_rank_from_a_broken_transport() -> None:
    row = {"name": "all_reduce", "size_bytes": 17_600_000, "duration_ns": 9, "algorithm_bytes_per_s": 3.45e9}
    told = "all_reduce of 17.6 MB at 3.45 GB/s: a late rank or a broken transport"
    several = pl.DataFrame([{**row, "remark": LATE_OR_BROKEN, "participants": 2}])
    assert heaviest_collective(several) == told
    assert heaviest_collective(several.with_columns(participants=1)) == f"{told}, which one rank alone cannot tell"
    fast = several.with_columns(remark=pl.lit(None, pl.String), participants=1)
    assert heaviest_collective(fast) == "all_reduce of 17.6 MB at 3.45 GB/s"


def test_a_resource_has_most_of_the_kernels_time() -> None:
    dispatches = pl.DataFrame({"kernel_id": [0, 1], "start_ns": [0, 0], "end_ns": [60, 40]})
    labels = pl.DataFrame({"kernel_id": [0, 1], "label": ["memory_dram", "latency"]})
    assert limiting_resource(dispatches, labels) == "memory_dram"
    assert limiting_resource(dispatches.with_columns(end_ns=pl.Series([49, 51])), labels.head(1)) is None


def steady(rule: str = "2 marked iterations of 3 activities") -> Window:
    return Window(0, pl.DataFrame({"start_ns": [0], "end_ns": [1000]}), rule, 0, 2, 500)


def about(name: str, idle: pl.DataFrame | None = None, **given: list[dict[str, Any]]) -> tuple[str | None, str | None]:
    named = ("api_calls", "memory_copies", "collectives")
    every = {one: rows(one, given.get(one, [])) for one in named}
    return subject_of(name, steady(), rows("dispatches"), rows("gaps", given.get("gaps", [])), every, idle=idle)


def test_waits_for_kernels_read_nothing_back() -> None:
    calls = [{"call_id": 1, "name": "hipDeviceSynchronize"}]
    behind = [
        gap(100 * i, 100 * i + 10, "sync", host_call_id=1, previous_activity_kind=kind)
        for i, kind in enumerate(("dispatch", "dispatch", "memory_copy", "memory_copy"))
    ]
    assert about("sync", api_calls=calls, gaps=behind[:3]) == ("hipDeviceSynchronize, 2 times an iteration", WAIT_LESS)
    assert about("sync", api_calls=calls, gaps=behind)[1] is None


def test_copies_whose_calls_take_longer_than_they_do_are_packed() -> None:
    copy = {"device_id": 0, "direction": "host_to_device", "size_bytes": 4096}
    copies = [{**copy, "copy_id": i, "start_ns": 10 * i, "end_ns": 10 * i + 1} for i in range(8)]
    few, many = (pl.DataFrame({"copying": [time]}) for time in (8, 9))
    assert about("copy", many, memory_copies=copies) == ("4 copies of 4 KiB host to device an iteration", PACK)
    assert about("copy", few, memory_copies=copies) == ("host to device at 4.1e+03 GB/s", None)
    pinned = [{**one, "host_memory": "pinned"} for one in copies]
    told = ("host to device at 4.1e+03 GB/s, from pinned memory", COPIES_BESIDE)
    assert about("copy", few, memory_copies=pinned) == told
    # One copy a repetition is not packed, whatever its call takes.
    assert about("copy", many, memory_copies=pinned[:2]) == told


def test_what_allocates_is_named() -> None:
    calls = [
        {"call_id": 1, "name": "hipMalloc", "start_ns": 0, "end_ns": 5},
        {"call_id": 2, "name": "hipFree", "start_ns": 5, "end_ns": 20},
        {"call_id": 3, "name": "hipFree", "start_ns": 25, "end_ns": 40},
        {"call_id": 4, "name": "hipFree", "start_ns": 2000, "end_ns": 2500},
        {"call_id": 5, "name": "hipMemcpy", "start_ns": 40, "end_ns": 140},
    ]
    assert about("allocation", api_calls=calls) == ("hipFree, once an iteration", None)
    assert about("imbalance") == about("host") == (None, None)
