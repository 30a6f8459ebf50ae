"""Verdicts on real sessions of a GPU, whose arms have a known cause."""

import json
from pathlib import Path

import polars as pl
import pytest

from aaco_pipeline.statistics.verdicts.comparison import Plan, compare
from aaco_pipeline.statistics.verdicts.session_quantiles import session_quantiles
from tests.places import SHARED
from tests.statistics.verdicts.campaigns import EMPTY_LEDGER

GPU_SESSIONS = SHARED / "gpu_sessions" / "sessions"
HOSTS = SHARED / "regression" / "gpu_hosts"
FACTS = {"campaign_id": "c", "workload": "step", "fingerprint": "f", "boot_id": "b", "cache_state": "warm"}


def summed_up(sessions: list[tuple[str, str, int, list[int]]], device: str) -> pl.DataFrame:
    frame = pl.DataFrame(sessions, schema=["session_id", "arm", "block", "latency_ns"], orient="row")
    numbered = frame.with_columns(iteration=pl.int_ranges(pl.col("latency_ns").list.len()))
    found = session_quantiles(numbered.explode("iteration", "latency_ns"))
    return found.with_columns(host=pl.lit(device), device=pl.lit(device), **{k: pl.lit(v) for k, v in FACTS.items()})


def on_host(path: Path) -> pl.DataFrame:
    sessions = json.loads(path.read_text())["sessions"]
    return summed_up(
        [(f"{s['arm']}{s['block']}", s["arm"], s["block"], s["device_bound"]) for s in sessions], path.stem
    )


def verdict(sessions: pl.DataFrame, candidate: str) -> dict[str, object]:
    plan = Plan("baseline", candidate, (sessions.get_column("block").n_unique(),))
    return compare(sessions, plan, EMPTY_LEDGER).filter(pl.col("role") == "primary").row(0, named=True)


@pytest.mark.skipif(not GPU_SESSIONS.is_dir(), reason="the shared GPU sessions are not here; set AACO_SHARED")
def test_arms_with_a_known_cause_get_the_verdict_that_it_has() -> None:
    sessions = []
    for path in sorted(GPU_SESSIONS.glob("*.json")):
        recorded = json.loads(path.read_text())
        latency = recorded["latency_ns"][recorded["warmup"] :]
        sessions.append((path.stem, recorded["arm"], int(path.stem[1:3]), latency))
    frame = summed_up(sessions, "gpu")
    more = verdict(frame, "extra_launches")
    assert more["verdict"] == "regressed"
    assert float(str(more["ci_low"])) <= 1.040 <= float(str(more["ci_high"]))
    assert [verdict(frame, arm)["verdict"] for arm in ("baseline_repeat", "host_delay")] == ["equivalent"] * 2


@pytest.mark.skipif(not HOSTS.is_dir(), reason="the shared sessions of GPU hosts are not here; set AACO_SHARED")
def test_a_busy_host_is_reported_and_two_hosts_are_not_compared() -> None:
    quiet, busy = on_host(HOSTS / "host_b.json"), on_host(HOSTS / "host_c.json")
    for arm in ("baseline_repeat", "extra_kernel"):
        row = verdict(busy, arm)
        assert row["verdict"] == "inconclusive"
        assert isinstance(row["reasons"], list) and row["reasons"][0].startswith("a busy host")
    assert verdict(quiet, "baseline_repeat")["verdict"] == "equivalent"
    other = busy.filter(pl.col("arm") == "baseline").with_columns(arm=pl.lit("elsewhere"))
    assert verdict(pl.concat([quiet, other]), "elsewhere")["verdict"] == "hardware differs"
