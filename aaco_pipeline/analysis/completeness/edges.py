"""Waits for work that was launched before the recording began and is not in it: the device is busy and looks idle."""

from collections.abc import Iterator
from typing import Final

import polars as pl

from aaco_pipeline.analysis.completeness.findings import IDLE, Finding
from aaco_pipeline.analysis.completeness.findings import milliseconds as ms
from aaco_pipeline.analysis.timeline.host_waits import Waits

#: A shorter wait than this is what a runtime's own work between a call and its copy may take.
_LONG_NS: Final = 1_000_000
#: A copy's own call prepares no longer than this multiple of what the copy takes, as with pageable memory.
_PREPARING: Final = 10
_MEND: Final = (
    "wait for the device (torch.cuda.synchronize() or hipDeviceSynchronize()) right before recording begins, with a "
    "warm-up step: {warm_up}"
)


def of_first_waits(activities: pl.DataFrame, waits: Waits) -> Iterator[Finding]:
    """Per process its first blocking call, where it waited long and the recording has nothing it could wait for.

    Every later wait finds older work done. The runtime must have run something before, as the first call of a process
    sets it up. A copy is what a call waited to begin: its stream runs in order, so that what held it back ran before
    it. Inferred: nothing recorded says what ran.
    """
    first = waits.calls.sort("start_ns", "call_id").unique("process_id", keep="first", maintain_order=True)
    for process, call, start, end in first.select("process_id", "call_id", "start_ns", "end_ns").iter_rows():
        there = activities.filter(pl.col("process_id") == process)
        own = there.filter((pl.col("call_id") == call) & (pl.col("activity_kind") == "memory_copy"))
        until = own.get_column("start_ns").min() if own.height else end
        before = there.filter(pl.col("start_ns") < start)
        if not isinstance(until, int) or not before.height:
            continue
        # What had begun before the wait may be what it waited for; from its end to what began next nothing is recorded.
        reached = before.get_column("end_ns").max()
        since = max(start, reached) if isinstance(reached, int) else start
        following = there.filter(pl.col("start_ns") >= since).sort("start_ns").head(1)
        if following.height and following.item(0, "start_ns") < until:
            if (following.item(0, "call_start_ns") or start) > start:
                continue  # launched during the wait, by another thread: it says nothing of what came before
            until = following.item(0, "start_ns")
        length = (own.get_column("end_ns") - own.get_column("start_ns")).sum() if own.height else 0
        if until - since <= max(_LONG_NS, _PREPARING * int(length)):
            continue
        what = f"a copy that takes {ms(int(length))}" if own.height else "a wait"
        devices = there.get_column("device_id").drop_nulls().unique()
        yield Finding(
            "wait_for_unrecorded_work",
            "bound",
            f"process {process}",
            f"the first blocking call of the recording, {what}, took {ms(end - start)}, and for {ms(until - since)} of "
            "it no device activity is recorded, though nothing recorded was left to wait for: most likely it waited "
            "for work launched before the recording began.",
            _MEND,
            "inferred",
            process_id=process,
            device_id=int(devices.item()) if len(devices) == 1 else None,
            start_ns=since,
            end_ns=until,
            records=1,
            at_least=("timeline.busy_ns", "timeline.active_ratio", "session_metrics.active_ratio"),
            at_most=IDLE,
        )
