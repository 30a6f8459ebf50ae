"""The first fix is the one that saves most, and it never saves more than it removes.

What an answer names, with its figures: calls, copies, launches, collectives, and the resource of the kernels.
"""

from typing import Any, Final

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.answer import first_to_fix as fix
from aaco_pipeline.analysis.answer.first_to_fix import (
    COPIES_BESIDE,
    WAIT_LESS,
    heaviest_collective,
    limiting_resource,
    longest_call,
    longest_copies,
    subject_of,
    subject_of_launches,
)
from aaco_pipeline.analysis.answer.kinds import FUSABLE, GLUE, kind_of
from aaco_pipeline.analysis.answer.shares import SHARES
from aaco_pipeline.analysis.answer.terms import AT_ROOF, PACK
from aaco_pipeline.analysis.answer.window import Window
from aaco_pipeline.analysis.timeline.collectives import LATE_OR_BROKEN
from tests.analysis.answer.made_up import gap, rows

_KIND: Final = {"share_ratio": 0.5, "dispatch_count": 1}


def kind(name: str, time: int, roof: float | None = None, **more: Any) -> dict[str, Any]:
    return {
        **_KIND,
        "kind": name,
        "time_ns": time,
        "alone_ns": time,
        "reached_ratio": roof,
        "operator": f"op {name}",
        **more,
    }


def chosen(*kinds: dict[str, Any], critical: dict[str, int] | None = None, scale: float = 1.0) -> fix.Fix:
    found = fix.kind_to_fix(rows("kinds_of_work", kinds), critical, scale, None)
    assert found is not None
    return found


def test_streaming_kernels_may_vanish_and_the_others_reach_their_roof() -> None:
    assert chosen(kind("gemm", 1000, 0.4), kind(GLUE, 500)).kind == "gemm"
    found = chosen(kind("gemm", 1000, 0.6), kind(GLUE, 500, 0.9))
    assert (found.kind, found.subject, found.saves_at_most_ns) == (GLUE, f"op {GLUE}", 500)
    # What takes all of the time has no neighbour to be fused into.
    assert chosen(kind(GLUE, 500, 0.75, share_ratio=1.0)).saves_at_most_ns == 125


def test_without_a_roof_nothing_bounds_what_is_saved() -> None:
    found = chosen(kind("gemm", 1000))
    assert (found.kind, found.saves_at_most_ns) == ("gemm", None)
    assert found.advice is not None


def test_a_kind_near_its_roof_is_advised_to_do_less_work() -> None:
    assert chosen(kind("gemm", 1000, fix.NEAR_ROOF)).advice == AT_ROOF
    assert chosen(kind("gemm", 1000, fix.NEAR_ROOF - 0.01)).advice != AT_ROOF


def test_overlapped_and_non_critical_work_saves_no_more_than_its_share() -> None:
    assert chosen(kind("gemm", 1000, 0.5, alone_ns=100)).saves_at_most_ns == 50
    assert chosen(kind("gemm", 1000, 0.5), critical={"gemm": 600}).saves_at_most_ns == 300
    assert chosen(kind("gemm", 1000, 0.5), critical={GLUE: 600}).saves_at_most_ns == 0
    assert chosen(kind("gemm", 1000, 0.5), scale=0.1).saves_at_most_ns == 50


def test_collectives_are_no_work_to_be_tuned() -> None:
    assert fix.kind_to_fix(rows("kinds_of_work", [kind("communication", 1000)]), None, 1.0, None) is None
    assert fix.kind_to_fix(rows("kinds_of_work"), None, 1.0, None) is None


names = st.sampled_from(["gemm", "attention", GLUE, "reduction", "communication", "unnamed"])
ratios = st.none() | st.floats(0, 1)


@given(st.lists(st.tuples(names, st.integers(0, 10**12), ratios), unique_by=lambda one: one[0]), st.floats(0, 1))
def test_savings_are_within_the_kinds_time(given: list[tuple[str, int, float | None]], scale: float) -> None:
    kinds = [kind(*one) for one in given]
    found = fix.kind_to_fix(rows("kinds_of_work", kinds), None, scale, None)
    if found is None:
        assert {one["kind"] for one in kinds} <= {"communication"}
        return
    own = next(one for one in kinds if one["kind"] == found.kind)
    assert found.saves_at_most_ns is None or 0 <= found.saves_at_most_ns <= round(own["time_ns"] * scale)
    if found.saves_at_most_ns is None:
        assert own["reached_ratio"] is None
        assert own["kind"] not in FUSABLE


@pytest.mark.parametrize("name", [*SHARES, "contention", "imbalance", "throttling", "allocation"])
def test_a_class_saves_no_more_than_its_share_and_has_its_advice(name: str) -> None:
    found = fix.cost_of_class(name, 70, "what")
    assert (found.kind, found.subject, found.saves_at_most_ns) == (None, "what", 70)
    assert (found.advice is None) == (name in ("device", "unknown"))


def test_families_that_fuse_alike_are_one_kind() -> None:
    assert kind_of("elementwise") == kind_of("copy/memset") == GLUE
    assert kind_of(None) == "unnamed"
    assert kind_of("linear attention") == "linear_attention"


def test_classes_name_their_subjects_in_usual_terms() -> None:
    calls = rows(
        "api_calls", [{"call_id": i, "name": name} for i, name in enumerate(("hipMemcpy", "hipStreamSynchronize"))]
    )
    idle = [
        gap(0, 10, "sync", host_call_id=0),
        gap(20, 90, "sync", host_call_id=1),
        gap(90, 95, "sync", host_call_id=1),
    ]
    assert fix.longest_call(rows("gaps", idle), calls) == "hipStreamSynchronize, 2 times"
    assert fix.longest_call(rows("gaps", idle[:1]), calls) == "hipMemcpy, once"
    assert fix.longest_call(rows("gaps"), calls) is None
    copy = {"direction": "device_to_host", "start_ns": 0, "end_ns": 1000}
    assert fix.longest_copies(rows("memory_copies", [{**copy, "size_bytes": 12_600}])) == "device to host at 12.6 GB/s"
    assert fix.longest_copies(rows("memory_copies", [copy])) == "device to host"
    part = {"name": "all_reduce", "size_bytes": 17_600_000, "duration_ns": 9, "algorithm_bytes_per_s": 3.4e9}
    assert fix.heaviest_collective(rows("collectives", [part])) == "all_reduce of 17.6 MB at 3.4 GB/s"
    late = rows("collectives", [{**part, "remark": "a late rank"}])
    assert fix.heaviest_collective(late) == "all_reduce of 17.6 MB at 3.4 GB/s: a late rank"
    assert fix.heaviest_collective(rows("collectives")) is None
    pinned = {**copy, "size_bytes": 12_600, "host_memory": "pinned"}
    assert fix.longest_copies(rows("memory_copies", [pinned])) == "device to host at 12.6 GB/s, into pinned memory"
    mixed = [pinned, {**pinned, "host_memory": "pageable"}]
    assert fix.longest_copies(rows("memory_copies", mixed)) == "device to host at 12.6 GB/s"
    assert fix.subject_of_launches(1500, 1500, 3, "an iteration") == "500 launches an iteration"
    assert fix.subject_of_launches(3, 3, 3, "a repetition") == "1 launch a repetition"
    assert fix.subject_of_launches(1500, 0, None, "a repetition") == "1,500 launches"
    assert fix.subject_of_launches(0, 0, None, "a repetition") is None


def test_copies_within_the_device_are_not_mended_by_pinned_memory() -> None:
    assert fix.cost_of_class("copy", 70, "device to device at 300 GB/s").advice == fix.COPIES_WITHIN
    assert "pinned" in str(fix.cost_of_class("copy", 70, "host to device at 12.6 GB/s").advice)


def test_a_path_without_kernels_leaves_nothing_to_save_in_them() -> None:
    found = chosen(kind("gemm", 1000), critical={})
    assert (found.saves_at_most_ns, found.gone_ns) == (None, 0)


def test_copies_in_pieces_have_number_and_size() -> None:
    up = {"direction": "host_to_device", "size_bytes": 4096}
    copies = rows("memory_copies", [up] * 128 + [{"direction": "device_to_host", "size_bytes": 9}] * 2)
    assert fix.copies_in_pieces(copies, 2, "an iteration") == "64 copies of 4 KiB host to device an iteration"
    assert fix.copies_in_pieces(copies, None, "a repetition") == "128 copies of 4 KiB host to device"
    other = rows("memory_copies", [up, {**up, "size_bytes": 100}])
    assert fix.copies_in_pieces(other, None, "") == "2 copies of 2.05 KiB on average host to device"
    # One an iteration is not to be packed.
    assert fix.copies_in_pieces(other, 2, "an iteration") is None
    assert fix.copies_in_pieces(rows("memory_copies"), 2, "an iteration") is None


def test_calls_and_pauses_are_counted_by_the_iteration() -> None:
    calls = rows("api_calls", [{"call_id": 1, "name": "hipDeviceSynchronize"}])
    idle = rows("gaps", [gap(10 * i, 10 * i + 5, "sync", host_call_id=1) for i in range(31)])
    assert fix.longest_call(idle, calls, 2, "an iteration") == "hipDeviceSynchronize, 16 times an iteration"
    assert fix.longest_call(idle, calls, 30, "an iteration") == "hipDeviceSynchronize, once an iteration"
    assert fix.longest_call(idle, calls, 300, "an iteration") == "hipDeviceSynchronize, 31 times"
    worked = pl.DataFrame({"work": [0, 1_400_000, 0, 0], "waited_work": [0, 0, 1_600_000, 0]})
    assert fix.pauses_of_host(worked, 1, "an iteration") == "2 pauses of 1.5 ms an iteration"
    assert fix.pauses_of_host(worked, 2, "an iteration") == "1 pause of 1.5 ms an iteration"
    assert fix.pauses_of_host(worked, None, "a repetition") == "2 pauses of 1.5 ms"
    assert fix.pauses_of_host(worked.head(1), 2, "an iteration") is None


def test_kernels_that_take_all_have_no_neighbours_to_be_fused_into() -> None:
    alone = {**kind(GLUE, 1000), "share_ratio": 0.95, "dispatch_count": 10}

    def advice(repetitions: int | None) -> str:
        found = fix.kind_to_fix(rows("kinds_of_work", [alone]), None, 1.0, repetitions)
        assert found is not None
        return str(found.advice)

    assert advice(10) == advice(None) == "Make these kernels faster"
    # Two passes over the same data may become one.
    assert advice(5) == "Fuse these kernels into one another"


def test_subjects_have_their_figures() -> None:
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
    expected = "all_reduce of 17.6 MB at 3.45 GB/s: a late rank or a broken transport"
    several = pl.DataFrame([{**row, "remark": LATE_OR_BROKEN, "participants": 2}])
    assert heaviest_collective(several) == expected
    assert heaviest_collective(several.with_columns(participants=1)) == f"{expected}, which one rank alone cannot tell"
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
    expected = ("host to device at 4.1e+03 GB/s, from pinned memory", COPIES_BESIDE)
    assert about("copy", few, memory_copies=pinned) == expected
    # One copy a repetition is not packed, whatever its call takes.
    assert about("copy", many, memory_copies=pinned[:2]) == expected


def test_allocating_calls_are_named() -> None:
    calls = [
        {"call_id": 1, "name": "hipMalloc", "start_ns": 0, "end_ns": 5},
        {"call_id": 2, "name": "hipFree", "start_ns": 5, "end_ns": 20},
        {"call_id": 3, "name": "hipFree", "start_ns": 25, "end_ns": 40},
        {"call_id": 4, "name": "hipFree", "start_ns": 2000, "end_ns": 2500},
        {"call_id": 5, "name": "hipMemcpy", "start_ns": 40, "end_ns": 140},
    ]
    assert about("allocation", api_calls=calls) == ("hipFree, once an iteration", None)
    assert about("imbalance") == about("host") == (None, None)
