"""What an answer names, with its figures: calls, copies, launches, collectives, and the resource of the kernels."""

import polars as pl

from aaco_pipeline.analysis.answer.first_to_fix import (
    heaviest_collective,
    longest_call,
    longest_copies,
    subject_of_launches,
)
from aaco_pipeline.analysis.answer.subjects import limiting_resource
from aaco_pipeline.analysis.timeline.collective_rates import LATE_OR_BROKEN


def test_subjects_are_told_with_their_figures() -> None:
    gaps = pl.DataFrame({"cause": ["sync"] * 3, "host_call_id": [0, 0, 1], "start_ns": [0, 5, 9], "end_ns": [1, 6, 99]})
    calls = pl.DataFrame({"call_id": [0, 1], "name": ["hipEventSynchronize", "hipDeviceSynchronize"]})
    assert longest_call(gaps, calls) == "hipDeviceSynchronize, once"
    assert longest_call(gaps.head(2), calls) == "hipEventSynchronize, 2 times"
    assert longest_call(gaps.clear(), calls) is None
    copies = pl.DataFrame(
        {"direction": ["device_to_host"], "start_ns": [0], "end_ns": [100], "size_bytes": pl.Series([191])}
    )
    assert longest_copies(copies) == "device to host at 1.91 GB/s"
    assert subject_of_launches(1500, 1500, 3, "iteration") == "500 launches an iteration"
    assert subject_of_launches(3, 3, 3, "repetition") == "1 launch a repetition"
    assert subject_of_launches(1500, 0, None, "repetition") == "1,500 launches"
    assert subject_of_launches(0, 0, None, "repetition") is None
    assert subject_of_launches(1500, 751, 3, "iteration") == "500 launches an iteration"
    assert subject_of_launches(1500, 750, 3, "iteration") == "500 kernels of graphs an iteration"


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
