"""Switches and wake-ups as Perfetto's own scheduling events: of them the viewer makes CPUs' slices and threads' states.

Columns go into the trace as columns (`FtraceEventBundle.compact_sched`), so that no event is built by itself.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl
from perfetto.protos.perfetto.trace import perfetto_trace_pb2

#: How the kernel writes the state that a thread leaves a CPU in (`include/linux/sched.h`).
_STATES: Final = {"runnable": 0, "idle": 0, "sleeping": 1, "disk_sleep": 2, "stopped": 4, "dead": 16}
_PRIORITY: Final = 120
#: How it marks what a handler wrote (`include/linux/trace_events.h`): whom that interrupted did not wake anybody.
_HANDLED: Final = 0x08
_EVENTS_A_BUNDLE: Final = 1 << 16


def scheduling_packets(switches: pl.DataFrame, wakings: pl.DataFrame, threads: pl.DataFrame) -> Iterator[bytes]:
    """Packets of a trace, each by itself a piece of it; none without switches.

    `switches`: cpu, time_ns, thread_id (who left), other_thread_id (who came), state; on every CPU who leaves is who
    came before. `wakings`: cpu, time_ns, thread_id, target_cpu, by_handler: true as well where nobody is known to have
    woken the thread, or the viewer names who had that CPU. `threads`: thread_id, pid, name. Times are the trace's.
    """
    if not switches.height:
        return
    yield _tree(threads)
    names = threads.select("thread_id", "name").with_columns(pl.col("name").fill_null("?"))
    switched, woke = (
        frame.sort("cpu", "time_ns", maintain_order=True).partition_by("cpu", as_dict=True, maintain_order=True)
        for frame in (switches, wakings)
    )
    # The trace processor takes a wake-up by a CPU only once it knows who had that: without switches there is none.
    for cpu, own in switched.items():
        woken = woke.get(cpu, wakings.clear())
        # The first switch of a CPU opens nothing in the trace processor: one of no length goes before it.
        opening = own.head(1).with_columns(other_thread_id="thread_id", state=pl.lit("runnable"))
        some = pl.concat([opening, own])
        for first in range(0, max(some.height, woken.height), _EVENTS_A_BUNDLE):
            piece, waking = (frame.slice(first, _EVENTS_A_BUNDLE) for frame in (some, woken))
            yield _bundle(int(cpu[0]), piece, waking, names)


def _tree(threads: pl.DataFrame) -> bytes:
    trace = perfetto_trace_pb2.Trace()
    tree = trace.packet.add().process_tree
    known = threads.filter(pl.col("pid").is_not_null()).sort("thread_id")
    for pid in known.get_column("pid").unique(maintain_order=True):
        tree.processes.add(pid=pid)
    for thread, pid, name in known.select("thread_id", "pid", "name").iter_rows():
        tree.threads.add(tid=thread, tgid=pid, name=name or "")
    return bytes(trace.SerializeToString())


def _bundle(cpu: int, switches: pl.DataFrame, wakings: pl.DataFrame, names: pl.DataFrame) -> bytes:
    trace = perfetto_trace_pb2.Trace()
    bundle = trace.packet.add().ftrace_events
    bundle.cpu = cpu
    table = bundle.compact_sched
    used = pl.concat([switches.select(thread_id="other_thread_id"), wakings.select("thread_id")]).unique()
    named = used.join(names, on="thread_id", how="left").with_columns(pl.col("name").fill_null("?")).sort("name")
    texts = named.get_column("name").unique(maintain_order=True)
    table.intern_table.extend(texts.to_list())
    place = named.select("thread_id", index=pl.col("name").rank("dense") - 1)

    def indices(threads: pl.DataFrame) -> list[int]:
        joined = threads.join(place, on="thread_id", how="left", maintain_order="left")
        return joined.get_column("index").cast(pl.Int64).to_list()

    if switches.height:
        table.switch_timestamp.extend(_deltas(switches))
        states = switches.get_column("state").replace_strict(_STATES, default=0, return_dtype=pl.Int64)
        table.switch_prev_state.extend(states.to_list())
        table.switch_next_pid.extend(switches.get_column("other_thread_id").to_list())
        table.switch_next_prio.extend([_PRIORITY] * switches.height)
        table.switch_next_comm_index.extend(indices(switches.select(thread_id="other_thread_id")))
    if wakings.height:
        table.waking_timestamp.extend(_deltas(wakings))
        table.waking_pid.extend(wakings.get_column("thread_id").to_list())
        table.waking_target_cpu.extend(wakings.get_column("target_cpu").fill_null(cpu).to_list())
        table.waking_prio.extend([_PRIORITY] * wakings.height)
        table.waking_comm_index.extend(indices(wakings.select("thread_id")))
        handled = wakings.select(pl.when("by_handler").then(_HANDLED).otherwise(0)).to_series()
        table.waking_common_flags.extend(handled.to_list())
    return bytes(trace.SerializeToString())


def _deltas(frame: pl.DataFrame) -> list[int]:
    """Times as the first one and how much later each further one is."""
    return list(np.diff(frame.get_column("time_ns").to_numpy(), prepend=0).tolist())
