"""What limits each kernel, with the evidence: signals judged by rules, as rows of the table `bottlenecks`.

Signals come from `kernel_signals`, rules from `rule_file`. A score is how far the evidence supports a label, never a
probability. What the session's time went to is `aaco_pipeline.analysis.answer`.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Final

import polars as pl

from aaco_pipeline.analysis.bottlenecks.kernel_signals import KERNEL_SIGNALS, kernel_signals
from aaco_pipeline.analysis.bottlenecks.rules import Judgement, Rules, Signal, judge
from aaco_pipeline.lake.contracts import polars_types

#: Tables of a session that the signals are taken from; a table that is not there is one without rows.
INPUTS: Final = (
    *("sessions", "dispatches", "kernels", "kernel_stats", "operator_kernels", "model_nodes", "roofline"),
    *("counter_metrics", "occupancy", "att_stalls", "resource_bounds", "critical_path", "critical_path_summary"),
)


def classify(tables: Mapping[str, pl.DataFrame], rules: Rules, on_cpu: float = 1.0) -> pl.DataFrame:
    """The kernels' rows of `bottlenecks`: every kernel with statistics, judged.

    `tables` are those of `INPUTS`; `on_cpu` as in `kernel_signals`. The same input gives the same rows, whatever the
    order of its rows.
    """
    signals = kernel_signals(tables, on_cpu)
    reach = reach_of_kernels(tables)
    judged = [_of_kernel(row, rules) for row in signals.iter_rows(named=True)]
    ids = signals.get_column("kernel_id").to_list()
    rows = [_row(i, one, reach.get(i)) for i, one in zip(ids, judged, strict=True)]
    return pl.DataFrame(rows, schema=polars_types("bottlenecks"))


def reach_of_kernels(tables: Mapping[str, pl.DataFrame]) -> dict[int, float]:
    """Per kernel the share of the run that it could save at most: its time on the critical path over the window.

    Amdahl's law: what is not on the path can become free without the whole becoming faster. Kernels without a place on
    the path, because none was found, are left out.
    """
    summary = tables["critical_path_summary"].filter(pl.col("scope") == "session")
    window = int(summary.item(0, "window_ns")) if summary.height else 0
    if not window:
        return {}
    critical = tables["critical_path"].filter((pl.col("activity_kind") == "dispatch") & pl.col("is_critical"))
    on_path = tables["dispatches"].join(critical.select(dispatch_id="activity_id"), on="dispatch_id", how="semi")
    sums = on_path.group_by("kernel_id").agg((pl.col("end_ns") - pl.col("start_ns")).sum().alias("time"))
    return {kernel: min(1.0, time / window) for kernel, time in sums.select("kernel_id", "time").iter_rows()}


def _of_kernel(row: Mapping[str, float | None], rules: Rules) -> Judgement:
    signals = {
        name: Signal(row[name], unit, source, None if row[name] is not None else why)
        for name, (unit, source, why) in KERNEL_SIGNALS.items()
    }
    return judge(signals, rules, "kernel")


def _row(kernel: int, judged: Judgement, gain: float | None) -> dict[str, object]:
    return {
        "scope": "kernel",
        "kernel_id": kernel,
        "label": judged.rule.label if judged.rule is not None else None,
        "runner_up": judged.runner_up,
        "score": judged.score,
        "evidence": [asdict(one) for one in judged.evidence],
        "missing": list(judged.missing),
        "recommendation": _recommendation(judged, gain),
    }


def _recommendation(judged: Judgement, gain: float | None) -> str | None:
    if judged.rule is None:
        return None
    text = judged.rule.recommendation
    if gain is None:
        return f"{text} How much that can save is not known: nothing tells its part of the critical path."
    return f"{text} That saves at most {100 * min(1.0, gain):.1f} % of the time."
