"""The stage `kernel_plane`: kernel events of the measured threads, and each thread's state at every instant.

The events were recorded during the capture (`aaco_pipeline.resources.kernel_plane`); states are defined in
`aaco_pipeline.analysis.delays`.
"""

from typing import Final

import polars as pl

from aaco_pipeline.analysis.delays.interference import fixed_work_probes
from aaco_pipeline.analysis.delays.thread_states import thread_states
from aaco_pipeline.analysis.sessions import invariants
from aaco_pipeline.assets.stage import Check, Outcome, Session, stage
from aaco_pipeline.lake.validation import empty_table, to_contract

#: Process of each model pass, in the order of `processes`; for a recorded program, each run has its own.
PROCESS_OF: Final = {"latency": 0, "trace": 1}


@stage(
    reads=("sessions",),
    publishes=("kernel_events", "kernel_threads", "kernel_losses", "thread_states", "fixed_work_probes"),
    group="capture",
    kinds=("linux", "parquet"),
    session_kinds=frozenset({"measured", "timed", "profiled", "program"}),
    checks=(
        Check(
            "conservation",
            "A thread's states follow one another without a gap or an overlap.",
            lambda tables: invariants.states_are_conserved(tables["thread_states"]),
            ("thread_states",),
        ),
    ),
)
def kernel_plane(session: Session) -> Outcome:
    """What did the kernel do with the measured threads: which ran, which waited and for what, and what interfered?"""
    captured = session.capture.tables()
    events, threads, losses = (captured[name] for name in ("kernel_events", "kernel_threads", "kernel_losses"))
    states, probes = (empty_table(name) for name in ("thread_states", "fixed_work_probes"))
    if events.height:
        states = thread_states(events, threads, losses, captured["kernel_throttling"])
        probes = fixed_work_probes(captured["kernel_probes"], states, threads, events, PROCESS_OF)
    length = (pl.col("end_ns") - pl.col("start_ns")).sum()
    by_state = dict(states.group_by("state").agg(length).iter_rows())
    return Outcome(
        {
            "kernel_events": events,
            "kernel_threads": threads,
            "kernel_losses": losses,
            "thread_states": to_contract("thread_states", states),
            "fixed_work_probes": to_contract("fixed_work_probes", probes),
        },
        session.capture.evidence("kernel"),
        {
            "kernel_events": events.height,
            "measured_threads": threads.filter(pl.col("process_id").is_not_null()).height,
            **{f"{state}_ns": by_state.get(state) for state in ("preempted", "throttled", "queued", "unknown")},
        },
    )
