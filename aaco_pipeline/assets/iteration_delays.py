"""The stage `iteration_delays`: delays in each iteration, spikes and their causes, and how quiet the host was.

The rules are in `aaco_pipeline.analysis.delays`.
"""

import polars as pl

from aaco_pipeline.analysis.delays import decomposition, grades
from aaco_pipeline.analysis.delays.grades import quietness_metrics
from aaco_pipeline.analysis.delays.interference import Costs, interrupt_cost
from aaco_pipeline.analysis.sessions import invariants
from aaco_pipeline.assets.kernel_plane import PROCESS_OF
from aaco_pipeline.assets.stage import Check, Outcome, Session, stage
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.validation import empty_table, to_contract


@stage(
    reads=("iterations", "thread_states", "kernel_threads", "kernel_events", "fixed_work_probes"),
    publishes=("iteration_delays", "iteration_grades", "delay_figures", "session_metrics"),
    group="analysis",
    kinds=("polars", "parquet"),
    session_kinds=frozenset({"measured", "timed", "profiled", "program"}),
    checks=(
        Check(
            "conservation",
            "The parts of every iteration sum to its latency, to the nanosecond.",
            lambda tables: invariants.delays_are_conserved(tables["iteration_delays"], tables["iterations"]),
            ("iteration_delays", "iterations"),
        ),
    ),
)
def iteration_delays(session: Session) -> Outcome:
    """Why did some iterations take longer, and was the machine or the program the cause?"""
    names = ("iterations", "thread_states", "kernel_threads", "kernel_events", "fixed_work_probes")
    iterations, states, threads, events, probes = session.tables(*names).values()
    captured = session.capture.tables() if states.height else {}
    costs = dict(captured["kernel_costs"].iter_rows()) if captured else {}
    made: dict[str, list[pl.DataFrame]] = {"iteration_delays": [], "iteration_grades": [], "delay_figures": []}
    marking = dict(captured["iteration_threads"].iter_rows()) if "iteration_threads" in captured else {}
    for name in PROCESS_OF if states.height else ():
        some = iterations.filter(pl.col("pass") == name)
        of_runs = []
        for (run,), of_run in some.group_by("run", maintain_order=True):
            own = threads.filter(pl.col("process_id") == (PROCESS_OF[name] if run is None else run))
            interrupt_ns = interrupt_cost(captured["kernel_probes"], states, events, own, name)
            of_machine = Costs(costs.get(name), interrupt_ns)
            of_runs.append(
                decomposition.iteration_delays(of_run, states, own, events, of_machine, main_thread=marking.get(run))
            )
        if not of_runs:
            continue
        of_pass = pl.concat(of_runs)
        judged = grades.iteration_grades(some, of_pass)
        for frames, frame in zip(
            made.values(), (of_pass, judged, grades.delay_figures(some, of_pass, judged)), strict=True
        ):
            frames.append(frame)
    tables = {
        name: to_contract(name, pl.concat(frames)) if frames else empty_table(name) for name, frames in made.items()
    }
    delays, judgement, told = tables.values()
    metrics = quietness_metrics(iterations, judgement, probes)
    of_latency = judgement.filter(pl.col("pass") == "latency")
    spikes = of_latency.filter("is_spike")
    return Outcome(
        {**tables, "session_metrics": to_contract("session_metrics", metrics)},
        _evidence(states, delays),
        {
            "spikes": spikes.height,
            "explained_spikes": spikes.height - spikes.get_column("spike_cause").null_count(),
            "disturbed_iterations": of_latency.filter(pl.col("grade") == grades.DISTURBED).height,
        },
        told.select("pass", "cause", "spikes", "total_ns", "variance_share_ratio", "p99_without_ns"),
        "what each cause did",
    )


def _evidence(states: pl.DataFrame, delays: pl.DataFrame) -> list[Evidence]:
    if delays.height:
        return [Evidence("delays of iterations", "present", None, "thread_states", delays.height)]
    reason = "no states of threads were recorded; --kernel-plane records them"
    if states.height:
        reason = "no iteration lies within the recorded states"
    return [Evidence("delays of iterations", "absent", reason, "thread_states", 0)]
