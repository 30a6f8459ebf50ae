"""Collect the document of `aaco diff`: two sessions, or one session and a baseline file.

`aaco_pipeline.statistics.causes` finds the differences.
"""

from pathlib import Path
from typing import Any, Final

import polars as pl

from aaco_pipeline.capture.stored_baseline import StoredBaseline
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.comparing.causes import cause_in_words, difference_in_words, selection_in_words
from aaco_pipeline.statistics.causes.accounts import ACCOUNTED_FROM, COPY, Account
from aaco_pipeline.statistics.causes.arms import FACTS, Arm, arm, environment_differences
from aaco_pipeline.statistics.causes.decomposition import Decomposition, decompose
from aaco_pipeline.statistics.causes.matching import other_work, replaced_kernels
from aaco_pipeline.statistics.causes.selection import selections
from aaco_pipeline.statistics.verdicts.session_quantiles import disturbed_ratios

Document = dict[str, Any]

#: Facts of `sessions` that distinguish different work.
_WORKLOAD: Final = (
    *("workload", "model_name", "model_sha256", "batch_size", "prompt_tokens", "output_tokens", "threads"),
)
#: A capture is named after its file, which identifies the run and not the work.
_OF_A_FILE: Final = "workload"


def difference_document(lake: TraceLake, baseline: str, candidate: str) -> Document:
    """Compare two sessions: selections, the change with its causes, environment, and next steps.

    Times are ns per iteration of the recorded steps. There is no verdict: even identical processes differ.
    """
    names = dict.fromkeys((*ACCOUNTED_FROM, *FACTS, "kinds_of_work", "time_shares", "answers", "session_metrics"))
    tables = {session: {name: lake.read(name, session) for name in names} for session in (baseline, candidate)}
    sides = arm({baseline: tables[baseline]}), arm({candidate: tables[candidate]})
    works = {side.sessions.select("workload", "model_name").row(0) for side in sides}
    alien = other_work(sides[0].accounts, sides[1].accounts) if len(works) > 1 else None
    known = alien is None and all(side.accounts for side in sides)
    replaced = replaced_kernels(sides[0].accounts, sides[1].accounts) if known else []
    split = decompose(*sides, replaced) if known else None
    chosen = selections(*sides, replaced).to_dicts() if alien is None else []
    differing = environment_differences(*sides, interleaved=False).to_dicts()
    hardware = [row for row in differing if row["category"] == "device" and row["key"] in ("product", "arch")]
    hardware = [row for row in hardware if row["baseline"].lower() != row["candidate"].lower()]
    causes = [] if split is None else split.causes.to_dicts()
    document: Document = {
        "baseline": _side(sides[0], tables[baseline]),
        "candidate": _side(sides[1], tables[candidate]),
        "hardware_differs": [*map(difference_in_words, hardware), *_unknown_device(*sides)],
        "other_work": alien,
        "workload_differs": _workload(*sides),
        "selections": [{**row, "in_words": selection_in_words(row)} for row in chosen],
        **_verdict(sides, split, chosen, causes, bool(hardware or _unknown_device(*sides))),
        "change": None if split is None else _change(split, sides),
        "causes": [{**row, "in_words": cause_in_words(row)} for row in causes],
        "not_split": {session: why for side in sides for session, why in side.left_out.items()},
        "environment": [{**row, "in_words": difference_in_words(row)} for row in differing],
    }
    document["kinds"] = _kinds(tables[baseline], tables[candidate]) if hardware else []
    return document


def _side(side: Arm, tables: dict[str, pl.DataFrame]) -> Document:
    session = side.sessions.row(0, named=True)
    device = side.devices.sort("device_id").row(0, named=True) if side.devices.height else {}
    one = side.accounts[0] if side.accounts else None
    shares = tables["time_shares"].filter(pl.col("reason").is_null())
    disturbed = disturbed_ratios(tables["session_metrics"]).get_column("disturbed_ratio")
    return {
        **{key: session[key] for key in ("session_id", *_WORKLOAD, "provider", "backend", "precision", "host")},
        "product": device.get("product"),
        "arch": device.get("arch"),
        "clock_mhz": one and one.clock_mhz,
        "iteration_ns": one and one.time_ns / one.steps,
        "latency_ns": one and one.latency_ns,
        "steps": one and one.steps,
        "step": one and one.rule,
        "disturbed_ratio": disturbed.item() if len(disturbed) else None,
        "busy_ratio": one.busy_ns / one.time_ns if one and one.time_ns else None,
        "shares": dict(shares.select(pl.col("share").cast(pl.String), "share_ratio").iter_rows()),
    }


def _unknown_device(baseline: Arm, candidate: Arm) -> list[str]:
    """If only one session has a recorded device, name the other one, whose device may be different."""
    known = [
        side.devices.select(pl.any_horizontal(pl.col("product", "arch").is_not_null()).any()).item()
        for side in (baseline, candidate)
    ]
    if bool(known[0]) == bool(known[1]):
        return []
    return [f"the {'candidate' if known[0] else 'baseline'}'s device is not recorded"]


def _workload(baseline: Arm, candidate: Arm) -> list[str]:
    """List how the work of the two sessions differs; facts that one side lacks are left out."""
    before, after = (side.sessions.row(0, named=True) for side in (baseline, candidate))
    captured = "capture" in (before["source_kind"], after["source_kind"])
    return [
        f"{key.replace('_', ' ')}: {before[key]} → {after[key]}"
        for key in _WORKLOAD
        if None not in (before[key], after[key]) and before[key] != after[key] and not (captured and key == _OF_A_FILE)
    ]


def _verdict(
    sides: tuple[Arm, Arm],
    split: Decomposition | None,
    chosen: list[Document],
    causes: list[Document],
    other_hardware: bool,
) -> Document:
    """Return the keys for scripts. Two sessions are only described: more iterations do not make them comparable."""
    one, other = (side.accounts[0] if side.accounts else None for side in sides)
    latencies = [None if account is None else account.latency_ns for account in (one, other)]
    times = [None if account is None else account.time_ns / account.steps for account in (one, other)]
    source = "unprofiled iterations" if None not in latencies else "recorded iterations"
    before, after = latencies if None not in latencies else times
    if None in latencies and one is not None and other is not None and one.rule != other.rule:
        before = after = None  # an iteration and a complete recording have no ratio
    first = next((row for row in causes if row["kind"] != "unexplained" and row["in_sum"]), None)
    suspected = selection_in_words(chosen[0]) if chosen else cause_in_words(first) if first else None
    return {
        "regression": False,
        "verdict": "described",
        "verdict_reason": "two single sessions are described, not judged: processes of identical code differ as much",
        "severity": None,
        "confidence": None,
        "latency_delta_pct": 100 * (after / before - 1) if before and after is not None else None,
        "latency_from": source if before and after is not None else None,
        "suspected_cause": suspected,
        "evidence": _evidence(one, other),
        "recommendation": _next(sides, other_hardware),
    }


def _evidence(one: Account | None, other: Account | None) -> dict[str, float | None]:
    keys = ("kernel_launch_count_delta", "avg_kernel_duration_delta", "cpu_overhead_delta", "synchronization_delta")
    if one is None or other is None:
        return dict.fromkeys(keys)

    def figures(account: Account) -> list[float | None]:
        kernels = account.groups.filter(pl.col("category") != COPY)
        count, busy = int(kernels.get_column("count").sum()), int(kernels.get_column("busy_ns").sum())
        host, waits = (None if all_ is None else all_ / account.steps for all_ in (account.host_ns, account.waits))
        return [count / account.steps, busy / count if count else None, host, waits]

    pairs = zip(keys, figures(one), figures(other), strict=True)
    return {key: None if before is None or after is None else after - before for key, before, after in pairs}


def _next(sides: tuple[Arm, Arm], other_hardware: bool) -> str:
    if other_hardware:
        return "compare on one device: run both on the same GPU, alternating, at least five fresh processes each"
    live = all(side.sessions.item(0, "source_kind") == "live" for side in sides)
    again = "`aaco run` each" if live else "record each"
    return (
        f"{again} in at least five fresh processes, alternating on one device, before anything is called a regression"
    )


def _change(split: Decomposition, sides: tuple[Arm, Arm]) -> Document:
    return {
        "baseline_ns": split.baseline_ns,
        "candidate_ns": split.candidate_ns,
        "delta_ns": split.change_ns,
        "closure_ratio": split.closure_ratio,
        "steps": [side.accounts[0].steps for side in sides],
        "step": [side.accounts[0].rule for side in sides],
    }


def _kinds(before: dict[str, pl.DataFrame], after: dict[str, pl.DataFrame]) -> list[dict[str, Any]]:
    """List kinds of work of sessions on different devices: time per iteration and fraction of each device's roof."""
    columns = ("time_ns", "roof", "roof_ratio", "roof_source", "dtype")
    frames = []
    for tables in (before, after):
        repeated = tables["answers"].get_column("repetitions").drop_nulls()
        per = int(repeated[0]) if len(repeated) else 1
        rows = tables["kinds_of_work"].select(pl.col("kind").cast(pl.String), *columns)
        frames.append(rows.with_columns(pl.col("time_ns") / per))
    both = frames[0].join(frames[1], on="kind", how="full", coalesce=True, suffix="_candidate")
    total = pl.sum_horizontal(pl.col("time_ns", "time_ns_candidate").fill_null(0))
    return both.sort(total, "kind", descending=[True, False]).to_dicts()


_EVIDENCE: Final = ("kernel_launch_count_delta", "avg_kernel_duration_delta", "cpu_overhead_delta")


def stored_difference_document(lake: TraceLake, file: Path, stored: StoredBaseline, session: str) -> Document:
    """Compare the session's latencies with those in the file, in ns; script keys are the same as for a difference.

    `differs` lists facts in the file that contradict the session; in that case there is no ratio.
    """
    facts = lake.read("sessions", session).row(0, named=True)
    devices = lake.read("devices", session).get_column("arch").drop_nulls()
    known = {**facts, "arch": devices[0] if len(devices) else None}
    differs = [
        f"{name.replace('_', ' ')}: {stated} → {known[name]}"
        for name, stated in stored.facts.items()
        if known.get(name) is not None and _alike(stated) != _alike(known[name])
    ]
    unprofiled = (pl.col("pass") == "latency") & (pl.col("phase") == "measure")
    rows = lake.read("session_metrics", session).filter(unprofiled)
    ours: dict[str, float | None] = dict(rows.select("metric", "value").iter_rows())
    metrics: list[Document] = [
        {"metric": name, "baseline_ns": theirs, "candidate_ns": (own := ours.get(name))}
        | {"ratio": None if own is None or differs else own / theirs}
        for name, theirs in stored.latencies_ns.items()
    ]
    first = next((float(row["ratio"]) for row in metrics if row["ratio"] is not None), None)
    return {
        "baseline": {"name": stored.name, "file": str(file), **stored.facts},
        "candidate": {name: known[name] for name in ("session_id", "model_name", "batch_size", "precision", "arch")},
        "regression": False,
        "verdict": "inconclusive",
        "verdict_reason": "the baseline file holds figures and no sessions, so how far they scatter is not known",
        "severity": None,
        "confidence": None,
        "latency_delta_pct": None if first is None else 100 * (first - 1),
        "suspected_cause": None,
        "evidence": dict.fromkeys(_EVIDENCE),
        "recommendation": "measure the baseline again beside the candidate: "
        "`aaco compare --baseline SPEC --candidate SPEC`",
        "differs": differs,
        "metrics": metrics,
        "refused": list(stored.refused),
        "not_compared": list(stored.not_compared),
    }


def _alike(fact: object) -> str:
    """Normalize spellings of a fact: fp16 is float16."""
    return str(fact).lower().replace("float", "fp")
