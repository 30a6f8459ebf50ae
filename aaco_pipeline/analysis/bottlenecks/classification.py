"""What limits each kernel and the session, with the evidence: signals judged by rules, as the table `bottlenecks`.

Signals come from `kernel_signals` and `session_signals`, rules from `rule_file`. A score
is how far the evidence supports a label, never a probability.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

import polars as pl

from aaco_pipeline.analysis.bottlenecks.kernel_signals import KERNEL_SIGNALS, kernel_signals
from aaco_pipeline.analysis.bottlenecks.rules import Judgement, Rules, Signal, judge
from aaco_pipeline.analysis.bottlenecks.session_signals import (
    clock_signals,
    device_shares,
    host_shares,
    on_cpu_ratio,
    shares_of_busy_time,
    steadiness_signals,
)
from aaco_pipeline.analysis.sessions.iteration_gaps import usage
from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.providers import CPU_PROVIDER

#: Tables of a session that the signals are taken from; a table that is not there is one without rows.
INPUTS: Final = (
    *("sessions", "devices", "iterations", "session_metrics", "dispatches", "kernels", "kernel_stats", "timeline"),
    *(
        "iteration_blocks",
        "gaps",
        "operator_kernels",
        "model_nodes",
        "roofline",
        "counter_metrics",
        "occupancy",
        "att_stalls",
        "gpu_samples",
    ),
    *("resource_bounds", "ceilings", "critical_path", "critical_path_summary"),
)
_SHARE: Final = "share_"


@dataclass(frozen=True)
class Classification:
    """`bottlenecks`: the contract's columns, the session's row first. `missing`: signal and why it was not measured."""

    bottlenecks: pl.DataFrame
    missing: pl.DataFrame


def classify(tables: Mapping[str, pl.DataFrame], rules: Rules) -> Classification:
    """Judge every kernel with statistics, then the session by what its time was shared out among.

    `tables` are those of `INPUTS`. The same input gives the same rows, whatever the order of its rows.
    """
    traced = usage(tables["iterations"], tables["iteration_blocks"], "trace")
    signals = kernel_signals(tables, on_cpu_ratio(traced) if _is_on_host(tables) else 1.0)
    reach = reach_of_kernels(tables)
    judged = [_of_kernel(row, rules) for row in signals.iter_rows(named=True)]
    labels = [one.rule.label if one.rule is not None else None for one in judged]
    labelled = signals.with_columns(label=pl.Series(labels, dtype=pl.String))
    of_session = session_signals(tables, labelled, rules)
    session = judge(of_session, rules, "session")
    if session.rule is None:
        session = replace(session, missing=(*_wanted_by_longest(labelled, judged), *session.missing))
    rows = [_row("session", None, session, _gain(session, of_session))]
    ids = signals.get_column("kernel_id").to_list()
    rows += [_row("kernel", i, one, reach.get(i)) for i, one in zip(ids, judged, strict=True)]
    return Classification(pl.DataFrame(rows, schema=polars_types("bottlenecks")), _missing(of_session, session))


def session_signals(tables: Mapping[str, pl.DataFrame], labelled: pl.DataFrame, rules: Rules) -> dict[str, Signal]:
    """Every signal of a session by name; `labelled` are the kernels with their time (total_ns) and label.

    A label of kernels that none of them has takes no share of a known window: that is a zero, and nothing is missing.
    """
    iterations, blocks = tables["iterations"], tables["iteration_blocks"]
    unprofiled, traced = (usage(iterations, blocks, name) for name in ("latency", "trace"))
    busy = shares_of_busy_time(labelled)
    if _is_on_host(tables):
        shares = host_shares(unprofiled, traced, int(labelled.get_column("total_ns").sum()), busy)
        source, why = "iterations", "no iterations were measured without a profiler, with their CPU time"
    else:
        shares = device_shares(tables["timeline"], tables["gaps"], unprofiled, busy)
        source, why = "timeline", "no device activity has times"
    if shares:
        shares = {**dict.fromkeys((rule.label for rule in rules.of("kernel")), 0.0), **shares}
    signals = {f"{_SHARE}{name}": Signal(value, "ratio", source) for name, value in shares.items()}
    used = sum(shares.get(name, 0.0) for name in busy) + shares.get("busy_unexplained", 0.0) if shares else None
    signals["share_busy"] = Signal(used, "ratio", source, None if shares else why)
    if shares:
        explained = 1 - sum(shares[name] for name in ("busy_unexplained", "idle_unexplained", "idle_unrecorded"))
        signals["share_explained"] = Signal(explained, "ratio", source)
    else:
        signals["share_explained"] = Signal(None, "ratio", source, why)
    signals |= clock_signals(_samples_of_the_run(tables), tables["devices"], used)
    return signals | steadiness_signals(tables["session_metrics"], iterations)


def _samples_of_the_run(tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """The samples of devices that ran the workload: a capture's may be of all cards of a host, at others' work too.

    A session that was run here has its host to itself, and its sampler numbers the devices apart from the kernels'.
    """
    samples, sessions = tables["gpu_samples"], tables["sessions"]
    if not sessions.filter(pl.col("source_kind") == "capture").height:
        return samples
    return samples.filter(pl.col("device_id").is_in(tables["dispatches"].get_column("device_id").unique().implode()))


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


def _is_on_host(tables: Mapping[str, pl.DataFrame]) -> bool:
    sessions = tables["sessions"]
    return sessions.height > 0 and sessions.item(0, "provider") == CPU_PROVIDER


def _wanted_by_longest(labelled: pl.DataFrame, judged: Sequence[Judgement]) -> tuple[str, ...]:
    """What the kernel without a label that took the most time was judged without: the first thing to collect."""
    places = labelled.with_row_index("place").filter(pl.col("label").is_null())
    longest = places.sort("total_ns", "kernel_id", descending=[True, False]).get_column("place").to_list()
    return judged[longest[0]].missing if longest else ()


def _of_kernel(row: Mapping[str, float | None], rules: Rules) -> Judgement:
    signals = {
        name: Signal(row[name], unit, source, None if row[name] is not None else why)
        for name, (unit, source, why) in KERNEL_SIGNALS.items()
    }
    return judge(signals, rules, "kernel")


def _gain(judged: Judgement, signals: Mapping[str, Signal]) -> float | None:
    """The share of the window that the label's cause takes, which is the most that removing it can save."""
    if judged.rule is None or judged.rule.gain is None:
        return None
    signal = signals.get(judged.rule.gain)
    return None if signal is None else signal.value


def _row(scope: str, kernel: int | None, judged: Judgement, gain: float | None) -> dict[str, object]:
    return {
        "scope": scope,
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


def _missing(signals: Mapping[str, Signal], judged: Judgement) -> pl.DataFrame:
    """Why the signals that the session's label would have wanted are null."""
    of_kernels = {name: Signal(None, *facts) for name, facts in KERNEL_SIGNALS.items()}
    known = {**of_kernels, **signals}
    rows = [(name, known[name].source, known[name].reason) for name in judged.missing if name in known]
    return pl.DataFrame(
        [row for row in rows if row[2] is not None],
        schema={"signal": pl.String(), "source": pl.String(), "reason": pl.String()},
        orient="row",
    )
