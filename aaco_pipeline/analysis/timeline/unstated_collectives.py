"""Collectives of a capture that describes none: what its kernels are called, where they lie, and when they ran.

Profilers of kernels (rocprofv3, CUPTI) know nothing of operations, groups and sizes. What is left: a kernel's name
often says which operation it is, a rank issues the operations of a group in one order, and no rank leaves one that
holds all before the last has come to it. So kernels of several processes are put together where the streams that they
ran on agree in the number and the names of their operations, and each overlaps its counterparts in time. Whatever
agrees in less is left as it is: no operation's group is guessed. Sizes stay unknown.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.analysis.timeline.collectives import operation

#: What a capture of this kind calls a group of ranks, which has no name of its own; a number follows.
UNNAMED: Final = "unnamed group"
#: Operations that a rank may leave before the others have come to it.
_LEFT_EARLY: Final = ("broadcast", "reduce", "gather", "scatter", "send", "recv")
#: `ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)`, `ncclKernel_AllReduce_RING_LL_Sum_float(...)`.
_KERNEL: Final = re.compile(r"^nccl\w*?Kernel_([A-Za-z]+)")
#: One kernel for everything between two ranks, of which an all-to-all consists, too.
_BETWEEN_TWO: Final = ("SendRecv", "send_recv")
_LANE: Final = ("process_id", "device_id", "lane")


@dataclass(frozen=True)
class _Lane:
    """One stream's kernels in their order: their rows, and which of them hold all ranks."""

    process: int
    rows: npt.NDArray[np.int64]
    start: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]
    holds: npt.NDArray[np.bool_]

    def overlaps(self, other: "_Lane") -> bool:
        """Whether each kernel that holds all ranks ran while its counterpart did."""
        apart = (self.start >= other.end) | (other.start >= self.end)
        return self.process != other.process and not bool((apart & self.holds).any())


def kernel_operation(name: str) -> str | None:
    """The operation that a kernel's name states; None for one that runs many, and for any other kernel."""
    found = _KERNEL.match(name)
    if found is None:
        return None
    return _BETWEEN_TWO[1] if found[1].startswith(_BETWEEN_TWO[0]) else operation(found[1])


def put_together(
    parts: pl.DataFrame, activities: pl.DataFrame, kernels: pl.DataFrame, clocks: pl.DataFrame
) -> pl.DataFrame:
    """The parts with name, communicator and group_size as far as kernels and streams tell them.

    `parts` is what `collectives.parts` gives of a capture that states no communicator, `activities` what these were
    made of; `clocks` has process_id and clock. Processes of different clocks are not compared: their times tell
    nothing.
    """
    names = kernels.get_column("name").unique().drop_nulls().to_list()
    stated = {name: found for name in names if (found := kernel_operation(name)) is not None}
    known = pl.col("kernel_name").replace_strict(stated, default=None, return_dtype=pl.String)
    of_dispatch = activities.filter(pl.col("activity_kind") == "dispatch").select(
        "kernel_id", dispatch_id="activity_id", lane=pl.coalesce("stream_id", "queue_id")
    )
    named = (
        parts.join(of_dispatch, on="dispatch_id", how="left", maintain_order="left")
        .join(kernels.select("kernel_id", kernel_name="name"), on="kernel_id", how="left", maintain_order="left")
        .join(clocks.select("process_id", "clock"), on="process_id", how="left", maintain_order="left")
        .with_columns(name=pl.coalesce("name", known))
    )
    groups = sorted(_groups(named), key=lambda group: min(int(lane.start[0]) for lane in group))
    group_of = np.full(named.height, -1, np.int64)
    for number, group in enumerate(groups):
        for lane in group:
            group_of[lane.rows] = number
    sizes = {number: len(group) for number, group in enumerate(groups)}
    size = pl.Series(group_of).replace_strict(sizes, default=None, return_dtype=pl.Int64)
    name = pl.format(f"{UNNAMED} {{}}", pl.Series(group_of))
    return named.with_columns(communicator=pl.when(size.is_not_null()).then(name), group_size=size).select(
        parts.columns
    )


# ---- inside ----------------------------------------------------------------------------------------------------------


def _groups(named: pl.DataFrame) -> Iterable[Sequence[_Lane]]:
    """The streams of several processes that are one group's: alike in their operations, and all at the same times."""
    held = ~pl.col("name").is_in(_LEFT_EARLY).fill_null(False)
    ordered = named.with_row_index("row").with_columns(held=held).sort("start_ns", "dispatch_id")
    lanes = ordered.group_by("clock", *_LANE, maintain_order=True).agg("name", "row", "start_ns", "end_ns", "held")
    for _, alike in lanes.group_by("clock", "name", maintain_order=True):
        processes = alike.get_column("process_id").to_list()
        if len(set(processes)) > 1:
            columns = [alike.get_column(name) for name in ("row", "start_ns", "end_ns", "held")]
            lists = zip(*([one.to_numpy() for one in column] for column in columns), strict=True)
            yield from _together([_Lane(process, *one) for process, one in zip(processes, lists, strict=True)])


def _together(lanes: Sequence[_Lane]) -> Iterable[Sequence[_Lane]]:
    """Those of equal operations that overlap throughout, each with each; where that leaves a choice, none."""
    beside = [frozenset(i for i, lane in enumerate(lanes) if lane is one or one.overlaps(lane)) for one in lanes]
    for group in dict.fromkeys(beside):
        if len(group) > 1 and all(beside[i] == group for i in group):
            yield [lanes[i] for i in sorted(group)]
