"""A session beside the figures of a baseline file: described, and never judged, for there is nothing to judge it by."""

from pathlib import Path
from typing import Any, Final

import polars as pl

from aaco_pipeline.capture.stored_baseline import StoredBaseline
from aaco_pipeline.lake.store import TraceLake

Document = dict[str, Any]

_EVIDENCE: Final = ("kernel_launch_count_delta", "avg_kernel_duration_delta", "cpu_overhead_delta")


def stored_difference_document(lake: TraceLake, file: Path, stored: StoredBaseline, session: str) -> Document:
    """The session's latencies beside those of the file, ns; the keys that scripts read are those of a difference.

    `differs` is what the file states and the session contradicts, and then there is no ratio.
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
        "recommendation": "measure what the file was made of again beside the candidate: "
        "`aaco compare --baseline SPEC --candidate SPEC`",
        "differs": differs,
        "metrics": metrics,
        "refused": list(stored.refused),
        "not_compared": list(stored.not_compared),
    }


def _alike(fact: object) -> str:
    """A fact without the ways in which the same is spelt: fp16 is float16."""
    return str(fact).lower().replace("float", "fp")
