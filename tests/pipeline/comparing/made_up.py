"""Campaigns whose sessions nobody measured: their plan, their rows, and iterations of a known median."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing.measuring import publish_members
from aaco_pipeline.pipeline.comparing.plan import Plan, Subject, new_plan, write_plan
from tests.report.made_up import rows_of

ITERATIONS: Final = 60
REQUEST: Final = MeasurementRequest(model="control_flow")
BASELINE: Final = Subject(REQUEST, Path("/models/old.onnx"), "ab" * 32)
OTHER: Final = replace(BASELINE, artefact=Path("/models/new.onnx"), artefact_sha256="cd" * 32)


def planned(
    lake: TraceLake,
    candidate: Subject = OTHER,
    *,
    baseline: Subject = BASELINE,
    blocks: int = 5,
    traced_blocks: int = 0,
    **more: Any,
) -> Plan:
    arms: Mapping[Any, Subject] = {"baseline": baseline, "candidate": candidate}
    plan = new_plan("compare", arms, blocks=blocks, traced_blocks=traced_blocks, seed=1, **more)
    write_plan(lake, plan)
    return plan


def publish_latency(lake: TraceLake, session: str, median_ns: float, seed: int) -> None:
    """A session without a trace, of iterations about that median."""
    noise = np.random.default_rng(seed).normal(0, 0.01, ITERATIONS)
    took = np.rint(median_ns * (1 + noise)).astype(np.int64)
    ends = np.cumsum(took)
    iterations = pl.DataFrame({"iteration": range(ITERATIONS), "start_ns": ends - took, "end_ns": ends})
    told = iterations.with_columns(latency_ns=pl.Series(took), phase=pl.lit("measure")).with_columns(
        pl.lit("latency").alias("pass")
    )
    tables = {
        "sessions": rows_of("sessions", [{"source_kind": "live", "host": "node1"}]),
        "environment": rows_of("environment", [{"category": "boot", "key": "id", "value": "boot"}]),
        "iterations": rows_of("iterations", told.to_dicts()),
    }
    lake.publish(session, "capture", tables)


def measured(
    lake: TraceLake,
    plan: Plan,
    ratio: float = 1.0,
    state: str = "finished",
    traced: Mapping[str, Sequence[str]] | None = None,
) -> list[str]:
    """Publish all blocks of latency, where the candidate takes `ratio` times as long, and sessions that were traced."""
    rows: list[dict[str, Any]] = []
    for block in range(plan.blocks):
        for position, arm in enumerate(plan.order(block)):
            session = lake.new_session(arm)
            rows.append(
                {"block": block, "position": position, "arm": arm, "session_id": session, "purpose": "latency"}
                | {"state": state}
            )
            if state == "finished":
                wander = 1e6 * (1 + 0.01 * np.sin(block))
                own = 1 + 0.002 * np.cos(3 * block + position)
                publish_latency(lake, session, wander * own * (ratio if arm == "candidate" else 1.0), len(rows))
    for name, sessions in (traced or {}).items():
        for place, session in enumerate(sessions):
            where = {"block": plan.blocks + place, "position": 0 if name == "baseline" else 1}
            rows.append({**where, "arm": name, "session_id": session, "purpose": "trace", "state": "finished"})
    publish_members(lake, plan.campaign, pl.DataFrame(rows, schema=polars_types("campaign_sessions")))
    return [str(one["session_id"]) for one in rows]


def verdict_row(verdict: str, **changed: Any) -> dict[str, Any]:
    """A primary row of `verdicts` as the statistics make it for such a verdict."""
    effect, low, high = {
        "regressed": (1.05, 1.03, 1.07),
        "regressed between nights": (1.05, 1.03, 1.07),
        "improved": (0.9, 0.88, 0.92),
        "equivalent": (1.001, 0.998, 1.004),
        "inconclusive": (1.01, 0.98, 1.04),
    }.get(verdict, (None, None, None))
    return {
        "baseline": "baseline",
        "candidate": "candidate",
        "metric": "latency_p50",
        "role": "primary",
        "verdict": verdict,
        "effect_ratio": effect,
        "ci_low": low,
        "ci_high": high,
        "threshold_ratio": 0.01,
        "minimum_detectable_ratio": None if effect is None else 0.02,
        "blocks": 10,
        "sessions_candidate": 10,
        "sessions_baseline": 10,
        "reasons": ["the whole interval speaks for itself"],
        **changed,
    }


def judged(lake: TraceLake, plan: Plan, *rows: Mapping[str, Any], **tables: Sequence[Mapping[str, Any]]) -> None:
    """Publish verdicts, and other tables of a judgement, as they are given."""
    frames = {name: rows_of(name, made) for name, made in {"verdicts": rows, **tables}.items()}
    frames = {name: frame.drop("campaign_id", strict=False) for name, frame in frames.items()}
    lake.publish(plan.campaign, "judging", frames, scope="campaign")
