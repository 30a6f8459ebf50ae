"""Changes of level, drifts, forecasts and single runs over nights whose truth is known, beside what other tools find.

Series of 60 nights are composed from real fresh processes (`local_sessions.npz`): a slower arm is switched in at a
known night. Even blocks are what the penalty was fixed on, odd ones what is judged; each side has 30, so that series of
60 nights go through them twice. Mozilla's, Tigerbeetle's and NAB's series are data that nothing was fixed on.

Run as `python -m benchmarks.accuracy.history`; exits with 1 when a limit is missed. `--peers PYTHON` names an interpreter that
has apache-otava and ruptures; what is not there is said.
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.statistics.history.anomaly import place_in_history
from aaco_pipeline.statistics.history.changes import with_levels
from aaco_pipeline.statistics.history.forecast import back_test
from aaco_pipeline.statistics.history.levels import find_levels
from aaco_pipeline.statistics.history.nights import OF_THE_NIGHT
from benchmarks.accuracy.history_series import (
    NIGHTS,
    SLOWER,
    Floats,
    Series,
    composed,
    perfherder,
    score,
    simulated,
    sliding_welch,
)
from benchmarks.accuracy.verdicts import HELD_OUT, TUNED_ON, Claims

EACH: Final = 40
MOST_FALSE: Final = 0.2
#: Penalties that ruptures is tried with, in noise variances; the best on the blocks that ours was fixed on is taken.
PENALTIES: Final = (8.0, 10.0, 12.0, 14.0, 16.0, 20.0)
Peers = dict[str, dict[str, Any]]


def ours(values: Floats, errors: Floats | None = None, *, paired: bool = True) -> list[int]:
    unknown = np.full(len(values), np.nan) if errors is None else errors
    return [change.start for change in find_levels(values, unknown, paired=paired).changes]


def peers(python: str | None, series: list[Floats]) -> Peers:
    """What the tools that this interpreter has find; empty without one."""
    if python is None:
        print("       apache-otava, ruptures: peer not installed (--peers PYTHON names an interpreter that has them)")
        return {}
    asked = json.dumps({"series": [one.tolist() for one in series], "penalties": PENALTIES})
    script = Path(__file__).with_name("history_peers.py")
    done = subprocess.run([python, str(script)], input=asked, capture_output=True, text=True, check=True, env={})
    answers: Peers = json.loads(done.stdout)
    return answers


def best_of_each(found: Peers, series: list[Series]) -> dict[str, str]:
    """The setting of each tool with the highest F1, by the tool's name."""
    scores = {name: score(series, answer["found"]).f1 for name, answer in found.items()}
    tools = {name: " ".join(name.split()[:-1]) for name in scores}
    return {tool: max((n for n in scores if tools[n] == tool), key=scores.__getitem__) for tool in tools.values()}


def composed_series(claims: Claims, shared: Path, python: str | None) -> None:
    """F1 on held-out blocks beside the best peer given the same pairing, false changes, detection."""
    for canary in (3, 1):
        tuned, judged = (composed(shared, blocks, EACH, canary, 1) for blocks in (TUNED_ON, HELD_OUT))
        print(f"composed of {3 * 4 * EACH} series, canary of {canary} session(s) a night, candidate of one")
        settings = best_of_each(peers(python, [one.paired for one in tuned]), tuned)
        found = peers(python, [one.paired for one in judged])
        rivals = {name: score(judged, found[name]["found"]) for name in settings.values()}
        rivals["apache-otava p<0.001"] = score(judged, found["apache-otava p<0.001"]["found"]) if found else None  # type: ignore[assignment]
        rivals = {name: one for name, one in rivals.items() if one is not None}
        rivals["sliding Welch p<0.01"] = score(judged, [sliding_welch(one.paired) for one in judged])
        rivals["Perfherder t>7"] = score(judged, [perfherder(one.paired) for one in judged])
        for name, theirs in rivals.items():
            print(f"       {name}: {theirs}")
        print(f"       ours, blocks it was fixed on: {score(tuned, [ours(one.paired) for one in tuned])}")
        got = score(judged, [ours(one.paired) for one in judged])
        best = max(rivals, key=lambda name: rivals[name].f1)
        what = f"paired, held-out blocks, above the best peer ({best}, {rivals[best].f1:.3f})"
        claims.state(what, got, got.f1 > rivals[best].f1)
        nulls = 3 * EACH
        false = f"{got.false_per_null:.3f} (at most {MOST_FALSE})"
        claims.state(f"  false changes a series, {nulls} of identical code", false, got.false_per_null <= MOST_FALSE)
        raw = score(judged, [ours(one.candidate, paired=False) for one in judged])
        claims.state("  raw series", raw, raw.false_per_null <= MOST_FALSE)


def whose(claims: Claims, shared: Path) -> None:
    """Delay, interval of place and effect, and whose a change is: a slower arm the code's, a slower host the host's."""
    judged = composed(shared, HELD_OUT, 15, 3, 2)
    delays: dict[str, list[int]] = {arm: [] for arm in SLOWER}
    code: list[str | None] = []
    host: list[str | None] = []
    for one in judged:
        if one.at is None:
            moved = np.where(np.arange(NIGHTS) >= 30, 0.10, 0.0)
            changes = _changes(one.candidate + moved, one.canary + moved).filter(pl.col("of") == "raw")
            host += changes.filter(pl.col("effect_ratio") > 1.05).get_column("owed_to").to_list()
            continue
        changes = _changes(one.candidate, one.canary)
        near = changes.filter((pl.col("night") - one.at).abs() <= 3)
        delays[str(one.arm)] += near.filter(pl.col("of") == "paired").get_column("delay_nights").to_list()
        if one.arm == "b10":
            code += near.filter(pl.col("of") == "raw").get_column("owed_to").to_list()
    for arm, nights in delays.items():
        told = f"{np.median(nights):.0f} nights at the median, {np.quantile(nights, 0.9):.0f} in nine of ten"
        print(f"       delay of +{arm[1:]} %: {told} ({len(nights)} found)")
    for what, owed, rightly in (("slower arm", code, "code"), ("slower host", host, "host")):
        right, unknown = (owed.count(each) / max(len(owed), 1) for each in (rightly, None))
        told = f"{right:.0%} (at least 95 %), nobody's {unknown:.0%}"
        claims.state(f"raw changes of a 10 % {what} ({len(owed)}): the {rightly}'s", told, right >= 0.95)


def _changes(candidate: Floats, canary: Floats) -> pl.DataFrame:
    """Rows of `change_points` of one series, with the place of their first night."""
    count = len(candidate)
    rows = {
        "campaign": [f"{night:03}" for night in range(count)],
        "started_at": [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=night) for night in range(count)],
        "level_ns": np.rint(np.exp(candidate)).astype(np.int64),
        "paired_ratio": np.exp(candidate - canary),
        **dict.fromkeys(("workload", "backend", "host", "metric", "arm", "paired_artefact_sha256"), ["x"] * count),
        "sessions": [1] * count,
    }
    types = polars_types("nights", *OF_THE_NIGHT)
    frame = pl.DataFrame(rows).with_columns(
        pl.lit(None, dtype).alias(name) for name, dtype in types.items() if name not in rows
    )
    _, changes = with_levels(frame.select(types.keys()))
    return changes.with_columns(night=pl.col("campaign").cast(pl.Int64))


def simulated_nights(claims: Claims) -> None:
    """False changes where nights wander, coverage of place and effect, drifts; ten sessions an arm a night."""
    raw, paired, errors = simulated(200, 3)
    for name, values, error, is_paired in (("raw", raw, errors[0], False), ("paired", paired, errors[1], True)):
        false = float(np.mean([len(ours(*one, paired=is_paired)) for one in zip(values, error, strict=True)]))
        claims.state(
            f"simulated, 200 {name} series: false changes", f"{false:.3f} (at most {MOST_FALSE})", false <= MOST_FALSE
        )
    for height in (0.02, 0.05):
        found = [
            find_levels(one + np.where(np.arange(NIGHTS) >= 35, height, 0), each, paired=True).changes
            for one, each in zip(paired, errors[1], strict=True)
        ]
        steps = [
            change for changes in found for change in changes if abs(change.start - 35) <= 3 and change.kind == "level"
        ]
        place = float(np.mean([step.earliest <= 35 <= step.latest for step in steps]))
        effect = float(np.mean([abs(step.effect - height) <= 2 * step.error for step in steps]))
        claims.state(
            f"  +{height:.0%}: found {len(steps)} of 200; its place and effect in their intervals",
            f"{place:.1%}, {effect:.1%} (at least 90 %)",
            min(place, effect) >= 0.9,
        )
    stairs = 0.005 * np.minimum(np.arange(NIGHTS) // 5, 11)
    kinds = [
        tuple(change.kind for change in find_levels(one + stairs, each, paired=True).changes)
        for one, each in zip(paired, errors[1], strict=True)
    ]
    share = kinds.count(("drift",)) / len(kinds)
    claims.state("  eleven steps of 0.5 %: one drift", f"{share:.1%} (at least 90 %)", share >= 0.9)


def forecast_past(claims: Claims) -> None:
    """Coverage of the 90 % band seven nights ahead, and pinball loss against the last value."""
    raw, _, _ = simulated(30, 5, correlation=0.3)
    for name, slope in (("flat", 0.0), ("+0.1 % a night", 0.001), ("+0.3 % a night", 0.003)):
        tried = [back_test(one + slope * np.arange(NIGHTS)) for one in raw]
        coverage = float(np.mean([one.coverage for one in tried if one]))
        loss = float(np.mean([one.pinball_ratio for one in tried if one]))
        told = f"{coverage:.1%} (80 to 97 %), loss {loss:.2f} of the last value's (below 1)"
        claims.state(f"forecast 7 nights ahead, {name}: coverage", told, 0.8 <= coverage <= 0.97 and loss < 1)


def single_runs(claims: Claims) -> None:
    """One session against 20 nights of its history: identical code, and slower by 10 %."""
    raw, _, _ = simulated(300, 7, correlation=0.3)
    random = np.random.default_rng(0)
    states: dict[float, list[str]] = {1.0: [], 1.1: []}
    for one in raw[:, :21]:
        nights = pl.DataFrame(
            {
                "segment": [0] * 20,
                "level_ns": np.rint(np.exp(one[:20]) * 1e6).astype(np.int64),
                "error_ratio": [0.0079] * 20,
                "sessions": [10] * 20,
            }
        )
        value = np.exp(one[20] + 0.025 * random.standard_normal()) * 1e6
        for ratio, seen in states.items():
            seen.append(place_in_history(nights, round(value * ratio))["state"])
    false = 1 - states[1.0].count("as before") / 300
    slower = states[1.1].count("slower") / 300
    claims.state(
        "one run of identical code: apart", f"{false:.1%} (at most 4 %); +10 % {slower:.0%} slower", false <= 0.04
    )


def speed(claims: Claims, python: str | None) -> None:
    """CPU of the whole search on 10,000 points, with levels and without."""
    random = np.random.default_rng(0)
    noise = random.standard_normal(10_000)
    for what, series in (("100 levels", noise + np.repeat(random.normal(0, 3, 100), 100)), ("no levels", noise)):
        began = time.process_time()
        ours(series)
        spent = time.process_time() - began
        answers = {name: one for name, one in peers(python, [series]).items() if name.endswith(("0.001", " 16"))}
        ratios = [f"{spent / max(one['cpu_s'], 0.01):.2g} times {name}" for name, one in answers.items()]
        told = f"{spent:.2f} s CPU (at most 0.5); {', '.join(ratios) or 'no peer'}"
        claims.state(f"10,000 points, {what}", told, spent <= 0.5)


def other_data(shared: Path, python: str | None) -> None:
    """Series that nothing was fixed on: what is found, beside the labels (Mozilla's are those of the t>7 rule)."""
    folder = shared / "regression"
    cases = [
        case
        for name in ("mozilla_graphserver", "otava_tigerbeetle")
        for case in json.loads(gzip.decompress((folder / f"{name}.json.gz").read_bytes()))
    ]
    logs = [np.log(np.array(case["values"], np.float64)) for case in cases]
    found = peers(python, logs)
    for place, (case, values) in enumerate(zip(cases, logs, strict=True)):
        labels = next(iter(case["labels"].values()))
        levels = find_levels(values, np.full(len(values), np.nan), paired=False)
        told = [
            f"{change.start} {change.effect:+.1%}{' drift' * (change.kind == 'drift')}" for change in levels.changes
        ]
        near = sum(any(abs(change.start - label) <= 5 for change in levels.changes) for label in labels)
        theirs = f"; otava finds {len(found['apache-otava p<0.001']['found'][place])}" if found else ""
        words = ", ".join(told[:8]) + (f" and {len(told) - 8} more" if len(told) > 8 else "")
        print(f"       {case['id']}: {near} of {len(labels)} labels {labels}, found {len(told)}: {words}{theirs}")
    hits = windows = alarms = points = 0
    for case in json.loads(gzip.decompress((folder / "nab_server.json.gz").read_bytes())):
        values = np.array(case["values"], np.float64)
        levels = find_levels(values, np.full(len(values), np.nan), paired=False)
        places = np.sort(
            np.concatenate((np.flatnonzero(levels.outliers), [change.start for change in levels.changes]))
        ).astype(int)
        inside = [any(low <= place <= high for place in places) for low, high in case["windows"]]
        outside = [p for p in places if not any(low <= p <= high for low, high in case["windows"])]
        hits, windows = hits + sum(inside), windows + len(inside)
        alarms, points = alarms + int((np.diff(outside, prepend=-100) > 20).sum()), points + len(values)
    print(
        f"       NAB server metrics: {hits} of {windows} windows hold an outlier or a change; "
        f"{1000 * alarms / points:.2f} episodes outside them a 1,000 points"
    )


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--peers", metavar="PYTHON", help="an interpreter that has apache-otava and ruptures")
    python = asked.parse_args().peers
    shared = Path(os.environ.get("AACO_SHARED", Path(__file__).parents[3] / "shared"))
    if not (shared / "regression" / "local_sessions.npz").exists():
        print(f"{shared}: no recorded sessions; name the folder that holds `regression` in AACO_SHARED")
        return 2
    began = time.process_time()
    claims = Claims()
    composed_series(claims, shared, python)
    whose(claims, shared)
    simulated_nights(claims)
    forecast_past(claims)
    single_runs(claims)
    speed(claims, python)
    other_data(shared, python)
    print(f"{time.process_time() - began:.0f} s CPU, {claims.missed} missed")
    return int(claims.missed > 0)


if __name__ == "__main__":
    sys.exit(main())
