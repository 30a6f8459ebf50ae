"""Collectives found from kernels alone, in captures without descriptions of collectives."""

from typing import Final

import polars as pl
import pytest

from aaco_pipeline.analysis.timeline import collectives
from aaco_pipeline.analysis.timeline.collectives import kernel_operation, put_together
from aaco_pipeline.lake.validation import empty_table

#: Process, stream, kernel, start and end.
Kernel = tuple[int, int, str, int, int]
REDUCE: Final = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GATHER: Final = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
BROADCAST: Final = "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
MANY: Final = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (REDUCE, "all_reduce"),
        (GATHER, "all_gather"),
        (BROADCAST, "broadcast"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all_reduce"),
        ("ncclSymkDevKernel_ReduceScatter_LD_Sum_f32(ncclSymkDevWorkArgs4K)", "reduce_scatter"),
        ("ncclDevKernel_AllToAllPivot_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", "all_to_all"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", "reduce"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send_recv"),
        (MANY, None),
        ("void reduce_kernel<512, 1>(ncclDevKernel_AllReduce)", None),
        ("AllReduce", None),
    ],
)
def test_operations_by_the_names_of_their_kernels(name: str, expected: str | None) -> None:
    assert kernel_operation(name) == expected


def found(*kernels: Kernel, clocks: tuple[int, ...] = (0,) * 8) -> pl.DataFrame:
    """Name, communicator and group of each kernel, as found in a capture without descriptions."""
    names = sorted({name for _, _, name, _, _ in kernels})
    rows: list[dict[str, object]] = [
        {"activity_id": i, "process_id": process, "device_id": process, "stream_id": stream, "queue_id": 0}
        | {"kernel_id": names.index(name), "start_ns": start, "end_ns": end, "call_start_ns": None}
        for i, (process, stream, name, start, end) in enumerate(kernels)
    ]
    of_kernels = {"activity_kind": "dispatch", "category": "communication"}
    numbers = ("activity_id", "process_id", "device_id", "stream_id", "queue_id", "kernel_id")
    activities = pl.DataFrame(rows).with_columns(
        pl.col(numbers).cast(pl.Int32),
        pl.col("call_start_ns").cast(pl.Int64),
        pl.lit(None, pl.Int64).alias("call_thread_id"),
        **{name: pl.lit(value) for name, value in of_kernels.items()},
    )
    own = collectives.parts(activities, empty_table("markers"), empty_table("api_calls"))
    read = pl.DataFrame({"process_id": range(len(clocks)), "clock": clocks}).cast(pl.Int32)
    table = pl.DataFrame({"kernel_id": range(len(names)), "name": names}).cast({"kernel_id": pl.Int32})
    return put_together(own, activities, table, read).sort("dispatch_id")


def groups(kernels: pl.DataFrame) -> list[list[int]]:
    """The kernels of each group that was found."""
    known = kernels.drop_nulls("communicator").group_by("communicator").agg("dispatch_id").sort("communicator")
    return [sorted(one) for one in known.get_column("dispatch_id").to_list()]


def lockstep(process: int, name: str = REDUCE, *, stream: int = 7, at: int = 0, steps: int = 3) -> list[Kernel]:
    """A kernel every microsecond, which a process comes to 10 ns later than the process before it."""
    return [(process, stream, name, at + 1_000 * step + 10 * process, at + 1_000 * step + 500) for step in range(steps)]


@pytest.mark.parametrize(("name", "operation"), [(REDUCE, "all_reduce"), (MANY, None)])
def test_streams_that_agree_throughout_are_one_group(name: str, operation: str | None) -> None:
    kernels = found(*lockstep(0, name), *lockstep(1, name, stream=9), *lockstep(2, name))
    assert groups(kernels) == [list(range(9))]
    assert kernels.select("name", "group_size", "size_bytes", "sequence").rows() == [(operation, 3, None, None)] * 9
    matched = collectives.matched(kernels)
    assert matched.unmatched.is_empty()
    assert matched.parts.get_column("participants").to_list() == [3] * 9


def test_groups_of_some_ranks_are_distinguished_by_their_times() -> None:
    """Two pairs of ranks reduce the same way at other times, each on a stream beside that of all four."""
    pairs = [kernel for process in range(4) for kernel in lockstep(process, at=600 * (process // 2) + 5_000)]
    everyone = [kernel for process in range(4) for kernel in lockstep(process, GATHER, stream=8)]
    kernels = found(*pairs, *everyone)
    assert groups(kernels) == [list(range(12, 24)), list(range(6)), list(range(6, 12))]
    assert kernels.get_column("group_size").to_list() == [2] * 12 + [4] * 12


@pytest.mark.parametrize(
    "other",
    [
        lockstep(1, steps=4),  # one more than the other has
        [*lockstep(1, steps=2), *lockstep(1, GATHER, at=2_000, steps=1)],  # another operation
        [*lockstep(1, steps=2), *lockstep(1, at=2_600, steps=1)],  # begun when the other had left
    ],
)
def test_one_disagreement_prevents_a_group(other: list[Kernel]) -> None:
    kernels = found(*lockstep(0), *other)
    assert groups(kernels) == []
    assert kernels.get_column("group_size").null_count() == kernels.height
    assert kernels.get_column("name").null_count() == 0


def test_ambiguity_prevents_a_group() -> None:
    """The second overlaps both of the others, which do not overlap: it is of either's group, or of none."""
    starts = ((0, 0, 100), (1, 80, 300), (2, 200, 400))
    assert groups(found(*((process, 7, REDUCE, start, end) for process, start, end in starts))) == []


def test_streams_of_one_process_are_no_group() -> None:
    assert groups(found((0, 7, REDUCE, 0, 100), (0, 8, REDUCE, 10, 100))) == []
    assert groups(found((0, 7, REDUCE, 0, 100), (0, 8, REDUCE, 10, 100), (1, 7, REDUCE, 20, 100))) == []


def test_times_of_two_clocks_tell_nothing() -> None:
    assert groups(found(*lockstep(0), *lockstep(1), clocks=(0, 1))) == []
    assert groups(found(*lockstep(0), *lockstep(1), *lockstep(2), clocks=(0, 1, 0))) == [[0, 1, 2, 6, 7, 8]]


def test_an_operation_that_a_rank_may_leave_early_need_not_overlap() -> None:
    early = [*lockstep(0), (0, 7, BROADCAST, 4_000, 4_020)]
    late = [*lockstep(1), (1, 7, BROADCAST, 4_100, 4_200)]
    assert groups(found(*early, *late)) == [list(range(8))]
    never = [(1, 7, GATHER, 4_100, 4_200) if name == BROADCAST else (p, s, name, b, e) for p, s, name, b, e in late]
    assert groups(found(*early, *never)) == []
