"""Verdicts on sessions whose truth is known: false alarms, power, coverage.

Campaigns are resampled from real sessions or simulated on three levels. Rules were fixed on even blocks and host a; the
rest is judged. Exits with 1 when a limit is missed.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy import stats

from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.statistics.verdicts.comparison import LEAST_CANARY_NIGHTS, Plan, compare, compare_between_nights
from aaco_pipeline.statistics.verdicts.decision import ledger_rows
from aaco_pipeline.statistics.verdicts.effects import LEAST_BLOCKS
from aaco_pipeline.statistics.verdicts.session_quantiles import session_quantiles
from benchmarks.common import SHARED, Claims

BASELINE: Final = "baseline"
CANDIDATE: Final = "candidate"
WORKLOADS: Final = ("gemm", "pyobj", "stream")
_TIMES: Final = ("p50_ns", "p90_ns", "p99_ns", "trimmed_mean_ns")
_NO_FACTS: Final = {"host": "h", "device": "d", "fingerprint": "f", "boot_id": "b", "cache_state": "warm"}

Picks = npt.NDArray[np.int64]


def local_sessions(shared: Path) -> tuple[pl.DataFrame, npt.NDArray[np.int64]]:
    """The sessions of `local_sessions.npz`, one row each with its number in `place`, and their latencies by place."""
    stored = np.load(shared / "regression" / "local_sessions.npz", allow_pickle=False)
    latency = stored["latency_ns"].astype(np.int64)
    count, each = latency.shape
    place = pl.Series(np.arange(count))
    about = pl.DataFrame({"place": place, "workload": stored["workload"], "arm": stored["arm"]})
    about = about.with_columns(session_id=pl.format("s{}", place), block=pl.Series(stored["block"].astype(np.int32)))
    iterations = about.select(pl.all().repeat_by(each).explode()).with_columns(
        iteration=pl.Series(np.tile(np.arange(each), count)), latency_ns=pl.Series(latency.ravel())
    )
    found = session_quantiles(iterations.drop("place", "workload"))
    return found.join(about.select("session_id", "place", "workload"), on="session_id").sort("place"), latency


def host_sessions(shared: Path, host: str, work: str) -> pl.DataFrame:
    """The sessions of one of `gpu_hosts`, of its device-bound or launch-bound step."""
    recorded = json.loads((shared / "regression" / "gpu_hosts" / f"{host}.json").read_text())
    sessions = [
        (f"{host} block {each['block']} {each['arm']}", each["arm"], each["block"], each[work])
        for each in recorded["sessions"]
    ]
    device = recorded["sessions"][0]["gpu"].split(",")[0]
    return _summed_up(sessions).with_columns(
        workload=pl.lit(work), host=pl.lit(host), device=pl.lit(device), boot_id=pl.lit(recorded["boot_id"])
    )


def gpu_sessions(shared: Path) -> pl.DataFrame:
    """The sessions of `gpu_sessions`, without their warm-up."""
    sessions = []
    for path in sorted((shared / "gpu_sessions" / "sessions").glob("*.json")):
        recorded = json.loads(path.read_text())
        block = int(path.stem[1:3])
        sessions.append((path.stem, recorded["arm"], block, recorded["latency_ns"][recorded["warmup"] :]))
    return _summed_up(sessions)


def _summed_up(sessions: list[tuple[str, str, int, list[int]]]) -> pl.DataFrame:
    names = ("session_id", "arm", "block", "latency_ns")
    frame = pl.DataFrame(sessions, schema=names, orient="row").with_columns(pl.col("block").cast(pl.Int32))
    numbered = frame.with_columns(iteration=pl.int_ranges(pl.col("latency_ns").list.len()))
    return session_quantiles(numbered.explode("iteration", "latency_ns")).with_columns(
        campaign_id=pl.lit("recorded"), workload=pl.lit("step"), **{name: pl.lit(v) for name, v in _NO_FACTS.items()}
    )


def interleaved(sessions: pl.DataFrame, blocks: Picks, size: int, trials: int, candidate: str = "a") -> Picks:
    """Places of the sessions of campaigns of one workload, (trials, blocks, 2) with the baseline's first.

    Each has `size` of the given blocks with one session an arm. The baseline is an `a` session of the block; the
    candidate another of its `a` sessions, or its session of another arm.
    """
    random = np.random.default_rng(size)
    of_arm = {
        arm: sessions.filter(pl.col("arm") == arm).sort("block", "place").get_column("place").to_numpy()
        for arm in ("a", candidate)
    }
    total = sessions.get_column("block").n_unique()
    chosen = np.stack([random.choice(blocks, size, replace=False) for _ in range(trials)])
    four = of_arm["a"].reshape(total, 4)[chosen]
    two = np.take_along_axis(four, random.permuted(np.tile(np.arange(4), (trials, size, 1)), axis=2)[:, :, :2], 2)
    other = two[:, :, 1] if candidate == "a" else of_arm[candidate].reshape(total)[chosen]
    return np.stack([two[:, :, 0], other], axis=2)


def campaigns(sessions: pl.DataFrame, places: Picks) -> pl.DataFrame:
    """The campaigns of the sessions at these places, (trials, blocks, 2)."""
    trials, size, _ = places.shape
    picked = pl.DataFrame(
        {
            "place": places.ravel(),
            "campaign_id": np.repeat(np.arange(trials), 2 * size),
            "block": np.tile(np.repeat(np.arange(size, dtype=np.int32), 2), trials),
            "arm": np.tile([BASELINE, CANDIDATE], trials * size),
        }
    ).with_columns(campaign_id=pl.format("trial {}", "campaign_id"))
    kept = sessions.drop("arm", "block")
    return picked.join(kept, on="place", maintain_order="left").with_columns(
        **{name: pl.lit(value) for name, value in _NO_FACTS.items()}
    )


def times_longer(sessions: pl.DataFrame, factor: float, arm: str = CANDIDATE) -> pl.DataFrame:
    """The same campaigns with every time of that arm multiplied."""
    longer = [
        pl.when(pl.col("arm") == arm).then((pl.col(name) * factor).round().cast(pl.Int64)).otherwise(name).alias(name)
        for name in _TIMES
    ]
    return sessions.with_columns(longer)


def resampled_blocks(sessions: pl.DataFrame, trials: int, least: int, seed: int) -> pl.DataFrame:
    """Campaigns of as many blocks, drawn with replacement from those of one, at least `least` different ones."""
    random = np.random.default_rng(seed)
    blocks = sessions.get_column("block").unique().sort().to_numpy()
    drawn = random.choice(blocks, (20 * trials, len(blocks)))
    different = (np.diff(np.sort(drawn, axis=1), axis=1) > 0).sum(axis=1) + 1
    drawn = drawn[different >= least][:trials]
    picks = pl.DataFrame(
        {
            "block": drawn.ravel(),
            "campaign_id": np.repeat(np.arange(trials), len(blocks)),
            "drawn": np.tile(np.arange(len(blocks), dtype=np.int32), trials),
        }
    ).with_columns(campaign_id=pl.format("trial {}", "campaign_id"))
    joined = picks.join(sessions.drop("campaign_id"), on="block", maintain_order="left")
    return joined.drop("block").rename({"drawn": "block"})


def three_levels(trials: int, size: int, seed: int, arms: tuple[str, ...] = (BASELINE, CANDIDATE)) -> pl.DataFrame:
    """Simulated campaigns of identical code, with about the noise of the real sessions on each level.

    Blocks wander (deviation 2 %, lag-1 correlation 0.5), sessions differ by 2.5 % with the tails of a t of 5 degrees,
    iterations by 3 % with lag-1 correlation 0.5; 64 of them a session.
    """
    random = np.random.default_rng(seed)
    iterations = 64
    block = _wandering(random.standard_normal((trials, size)), 0.5) * 0.02
    session = random.standard_t(5, (trials, size, len(arms))) * 0.025 / np.sqrt(5 / 3)
    noise = _wandering(random.standard_normal((trials, size, len(arms), iterations)), 0.5) * 0.03
    log = np.log(1e6) + block[:, :, None, None] + session[:, :, :, None] + noise
    count = trials * size * len(arms)
    each = pl.DataFrame(
        {
            "place": np.arange(count),
            "arm": np.tile(arms, trials * size),
            "block": np.tile(np.repeat(np.arange(size, dtype=np.int32), len(arms)), trials),
        }
    ).with_columns(session_id=pl.format("s{}", "place"))
    frame = (
        each.drop("place")
        .select(pl.all().repeat_by(iterations).explode())
        .with_columns(
            iteration=pl.Series(np.tile(np.arange(iterations), count)),
            latency_ns=pl.Series(np.rint(np.exp(log)).astype(np.int64).ravel()),
        )
    )
    found = session_quantiles(frame).join(each.select("session_id", "place"), on="session_id")
    return found.with_columns(
        campaign_id=pl.format("trial {}", pl.col("place") // (len(arms) * size)),
        workload=pl.lit("simulated"),
        **{name: pl.lit(value) for name, value in _NO_FACTS.items()},
    )


def _wandering(noise: npt.NDArray[np.float64], correlation: float) -> npt.NDArray[np.float64]:
    """Unit noise with that correlation of neighbours along the last axis."""
    made = noise.copy()
    for place in range(1, noise.shape[-1]):
        fresh = np.sqrt(1 - correlation**2) * noise[..., place]
        made[..., place] = correlation * made[..., place - 1] + fresh
    return made


TRIALS: Final = 1_000
SIMULATED: Final = 2_000
RESAMPLED: Final = 1_000
SIZES: Final = (5, 10, 20)
POLICY: Final = 0.01
#: Sessions of +2, +5 and +10 %: which share is to be detected, and which called regressed, at ten blocks.
POWER: Final = {"b2": (0.67, 0.26), "b5": (0.93, 0.89), "b10": (0.99, 0.98)}
JUDGED: Final = ("regressed", "improved", "equivalent")
#: Blocks that no rule was fixed on, and those that the rules were fixed on.
HELD_OUT: Final = np.arange(1, 60, 2)
TUNED_ON: Final = np.arange(0, 60, 2)
ALL_BLOCKS: Final = np.arange(60)
#: A campaign of fewer different blocks is not judged, so none has fewer by drawing some twice.
DIFFERENT: Final = LEAST_BLOCKS
_EMPTY_LEDGER: Final = pl.DataFrame(schema={"campaign_id": pl.String(), **polars_types("aa_ledger")})
_PAIRS_OF_HOSTS: Final = (("host_a", "host_b"), ("host_a", "host_c"), ("host_b", "host_c"))


def judged(sessions: pl.DataFrame, candidate: str = CANDIDATE, looks: tuple[int, ...] | None = None) -> pl.DataFrame:
    """The verdicts on P50 of these campaigns; all are planned to end with the blocks that they have."""
    plan = Plan(BASELINE, candidate, looks or (sessions.get_column("block").n_unique(),), POLICY)
    return compare(sessions, plan, _EMPTY_LEDGER).filter(pl.col("metric") == "latency_p50")


def share(verdicts: pl.DataFrame, condition: pl.Expr) -> float:
    return float(verdicts.select(condition.fill_null(False).mean()).item())


EXCLUDES_ONE: Final = (pl.col("ci_low") > 1) | (pl.col("ci_high") < 1)
CHANGED: Final = pl.col("verdict").is_in(["regressed", "improved"])


def upper_limit(found: float, trials: int) -> float:
    """The upper 95 % limit of a share (Clopper and Pearson, one-sided)."""
    count = round(found * trials)
    return float(stats.beta.ppf(0.95, count + 1, trials - count)) if count < trials else 1.0


def recorded_identical(claims: Claims, sessions: pl.DataFrame) -> None:
    """False alarms, coverage and printed minimum detectable effects on identical code."""
    for size in SIZES:
        verdicts, effects = [], []
        for workload in WORKLOADS:
            of_workload = sessions.filter(pl.col("workload") == workload)
            made = campaigns(of_workload, interleaved(of_workload, HELD_OUT, size, TRIALS))
            verdicts.append(judged(made))
            slower = judged(times_longer(made, 1.05))
            effects.append(((slower["ci_low"] <= 1.05) & (slower["ci_high"] >= 1.05)).mean())
            if size == 10:
                detectable = float(verdicts[-1].get_column("minimum_detectable_ratio").median() or 0)  # type: ignore[arg-type]
                # An effect is detected where it lifts the lower limit above 1.
                needed = float((1 / verdicts[-1].get_column("ci_low").drop_nulls()).quantile(0.8) or 0) - 1
                ratio = detectable / needed
                what = f"{workload}: median minimum detectable effect over the one found in 80 %, 10 blocks"
                claims.state(what, f"{detectable:.4f} / {needed:.4f} = {ratio:.2f} (0.8 to 1.2)", 0.8 <= ratio <= 1.2)
        all_verdicts = pl.concat(verdicts)
        alarms, changed = share(all_verdicts, EXCLUDES_ONE), share(all_verdicts, CHANGED)
        count = all_verdicts.height
        known = share(all_verdicts, pl.col("ci_low").is_not_null())
        what = f"identical code, {size} blocks, {count} trials: interval excludes 1 (an interval in {known:.1%})"
        claims.state(what, f"{alarms:.2%} (at most 6 %)", alarms <= 0.06)
        claims.state("  regressed or improved", f"{changed:.2%} (at most 1 %)", changed <= 0.01)
        if size == 10:
            coverage = float(np.mean(effects))  # type: ignore[arg-type]
            claims.state("  coverage of +5 %", f"{coverage:.1%} (93 to 97 %)", 0.93 <= coverage <= 0.97)


def recorded_slower(claims: Claims, sessions: pl.DataFrame) -> None:
    """Power against arms that do more work, at ten blocks; on the blocks the rules were fixed on for comparison."""
    for arm, (least_detected, least_regressed) in POWER.items():
        for words, blocks in (("held-out blocks", HELD_OUT), ("all", ALL_BLOCKS), ("fixed on", TUNED_ON)):
            found = []
            for workload in WORKLOADS:
                of_workload = sessions.filter(pl.col("workload") == workload)
                found.append(judged(campaigns(of_workload, interleaved(of_workload, blocks, 10, TRIALS, arm))))
            detected = [share(each, pl.col("ci_low") > 1) for each in found]
            regressed = [share(each, pl.col("verdict") == "regressed") for each in found]
            each = ", ".join(f"{w} {d:.2f}/{r:.2f}" for w, d, r in zip(WORKLOADS, detected, regressed, strict=True))
            what = (
                f"+{arm[1:]} %, {words}: {np.mean(detected):.3f} detected, {np.mean(regressed):.3f} regressed ({each})"
            )
            if blocks is TUNED_ON:
                print(f"       {what}")
            else:
                kept = bool(np.mean(detected) >= least_detected and np.mean(regressed) >= least_regressed)
                claims.state(what, f"at least {least_detected}, {least_regressed}", kept)


def simulated(claims: Claims) -> None:
    """False alarms and coverage where all three levels are known, and over the looks of a growing campaign."""
    made = three_levels(SIMULATED, max(SIZES), 11)
    for size in SIZES:
        verdicts = judged(made.filter(pl.col("block") < size))
        alarms = share(verdicts, EXCLUDES_ONE)
        limit = upper_limit(alarms, SIMULATED)
        claims.state(f"simulated, {size} blocks", f"{alarms:.2%}, at most {limit:.2%} (8 %)", limit <= 0.08)
        known = verdicts.filter(pl.col("ci_low").is_not_null())
        coverage = 1 - share(known, EXCLUDES_ONE)
        claims.state("  coverage", f"{coverage:.1%} of {known.height} (93 to 97 %)", 0.93 <= coverage <= 0.97)
    looked = [judged(made.filter(pl.col("block") < size), looks=SIZES) for size in SIZES]
    excluded = pl.concat(each.select("campaign_id", out=EXCLUDES_ONE) for each in looked)
    ever = float(excluded.group_by("campaign_id").agg(pl.col("out").any()).get_column("out").mean())  # type: ignore[arg-type]
    naive = [judged(made.filter(pl.col("block") < size)).select("campaign_id", out=EXCLUDES_ONE) for size in SIZES]
    peeked = float(pl.concat(naive).group_by("campaign_id").agg(pl.col("out").any()).get_column("out").mean())  # type: ignore[arg-type]
    what = f"looks at {SIZES}: any of them excludes 1"
    claims.state(what, f"{ever:.2%} (at most 6 %); without the rule {peeked:.2%}", ever <= 0.06)


def from_the_ledger(claims: Claims, sessions: pl.DataFrame) -> None:
    """The floor of identical code and its confidence, from trials on some blocks, on trials on the others."""
    plan = Plan(BASELINE, CANDIDATE, (10,), POLICY)
    rows = []
    for workload in WORKLOADS:
        of_workload = sessions.filter(pl.col("workload") == workload)
        known, new = (campaigns(of_workload, interleaved(of_workload, b, 10, 300)) for b in (TUNED_ON, HELD_OUT))
        designs = known.select("campaign_id", "workload", "host").unique().with_columns(sessions_per_block=1, blocks=10)
        ledger = ledger_rows(compare(known, plan, _EMPTY_LEDGER), designs)
        rows.append(compare(new, plan, ledger).filter(pl.col("metric") == "latency_p50"))
    verdicts = pl.concat(rows)
    changed, floor = share(verdicts, CHANGED), verdicts.get_column("floor_ratio").unique().sort().to_list()
    words = ", ".join(f"{each:.3f}" for each in floor)
    claims.state(
        f"identical code against its floors ({words}): changed", f"{changed:.2%} (at most 1 %)", changed <= 0.01
    )


def speed(claims: Claims, latency: Picks) -> None:
    """CPU seconds of the quantiles of 3,000 sessions of 400 iterations."""
    twice = np.tile(latency, (2, 1))[:3_000]
    count, each = twice.shape
    frame = pl.DataFrame({"session_id": [f"s{i}" for i in range(count)], "arm": "a", "block": range(count)})
    frame = frame.select(pl.all().repeat_by(each).explode()).with_columns(
        iteration=pl.Series(np.tile(np.arange(each), count)), latency_ns=pl.Series(twice.ravel())
    )
    began = time.process_time()
    session_quantiles(frame)
    spent = time.process_time() - began
    claims.state(f"{count} sessions of {each} iterations", f"{spent:.2f} s CPU (at most 1)", spent <= 1)


def withheld(claims: Claims, sessions: pl.DataFrame) -> None:
    """Without a baseline in the same blocks, and between nights without a canary, nothing is claimed."""
    of_workload = sessions.filter(pl.col("workload") == "gemm")
    made = times_longer(campaigns(of_workload, interleaved(of_workload, HELD_OUT, 10, TRIALS)), 1.1)
    stored = compare(made, Plan(BASELINE, CANDIDATE, (10,), POLICY, design="stored baseline"), _EMPTY_LEDGER)
    claimed = share(stored, pl.col("verdict").is_in(JUDGED))
    claims.state(f"+10 % on {TRIALS} stored baselines: a verdict", f"{claimed:.0%} (0 %)", claimed == 0)
    nights = pl.DataFrame({"host": ["h"] * (LEAST_CANARY_NIGHTS - 1), "level_ns": [1e6] * (LEAST_CANARY_NIGHTS - 1)})
    few = made.filter(pl.col("campaign_id").is_in([f"trial {trial}" for trial in range(100)]))
    kept_back = share(compare_between_nights(few, nights, BASELINE, CANDIDATE), pl.col("verdict") == "withheld")
    claims.state("  between nights with 19 canary nights: withheld", f"{kept_back:.0%} (100 %)", kept_back == 1)


def known_causes(claims: Claims, shared: Path) -> None:
    """Arms of one GPU program with a known cause."""
    sessions = gpu_sessions(shared)
    found = {arm: judged(sessions, arm) for arm in ("baseline_repeat", "extra_launches", "host_delay")}
    rows = {arm: verdicts.row(0, named=True) for arm, verdicts in found.items()}
    told = {
        arm: f"{r['verdict']}, {r['effect_ratio']:.4f} ({r['ci_low']:.4f} to {r['ci_high']:.4f})"
        for arm, r in rows.items()
    }
    same, more, delay = (rows[arm] for arm in found)
    claims.state("gpu_sessions, baseline_repeat", told["baseline_repeat"], same["verdict"] != "regressed")
    kept = more["verdict"] == "regressed" and more["ci_low"] <= 1.040 <= more["ci_high"]
    claims.state("gpu_sessions, extra_launches (regressed, 1.040 inside)", told["extra_launches"], kept)
    claims.state("gpu_sessions, host_delay (equivalent)", told["host_delay"], delay["verdict"] == "equivalent")
    again = share(judged(resampled_blocks(sessions, RESAMPLED, DIFFERENT, 3), "baseline_repeat"), CHANGED)
    claims.state(f"  baseline_repeat in {RESAMPLED} resamples: changed", f"{again:.1%} (at most 1 %)", again <= 0.01)


def three_hosts(claims: Claims, shared: Path) -> None:
    """Identical code and one more kernel on two quiet hosts and a busy one."""
    for host in ("host_a", "host_b", "host_c"):
        for work in ("device_bound", "launch_bound"):
            sessions = host_sessions(shared, host, work)
            drawn = resampled_blocks(sessions, RESAMPLED, DIFFERENT, 5)
            repeated = resampled_blocks(sessions, RESAMPLED, 1, 5)
            row = judged(sessions, "baseline_repeat").row(0, named=True)
            again = share(judged(drawn, "baseline_repeat"), CHANGED)
            kept = row["verdict"] not in ("regressed", "improved") and again <= 0.01
            doubled = share(judged(repeated, "baseline_repeat"), CHANGED)
            told = f"{row['verdict']}; in {RESAMPLED} resamples changed {again:.1%} (at most 1 %)"
            told += f"; {doubled:.1%} where fewer than {DIFFERENT} different blocks may be drawn"
            claims.state(f"{host} {work}, identical", told, kept)
        _one_more_kernel(claims, host, host_sessions(shared, host, "device_bound"))
    differs = 0
    for one, other in _PAIRS_OF_HOSTS:
        pair = [host_sessions(shared, host, "device_bound").filter(pl.col("arm") == BASELINE) for host in (one, other)]
        both = pl.concat([pair[0], pair[1].with_columns(arm=pl.lit(CANDIDATE))])
        differs += (
            judged(resampled_blocks(both, RESAMPLED, DIFFERENT, 7))
            .filter(pl.col("verdict") == "hardware differs")
            .height
        )
    total = len(_PAIRS_OF_HOSTS) * RESAMPLED
    claims.state("one host against another: hardware differs", f"{differs} of {total} (all)", differs == total)


def _one_more_kernel(claims: Claims, host: str, sessions: pl.DataFrame) -> None:
    row = judged(sessions, "extra_kernel").row(0, named=True)
    interval = "none" if row["ci_low"] is None else f"{row['ci_low']:.4f} to {row['ci_high']:.4f}"
    detectable = row["minimum_detectable_ratio"]
    told = f"{row['verdict']}, {interval}, detectable {detectable:.3f}, slow {row['slow_sessions']}"
    if host == "host_c":
        again = judged(resampled_blocks(sessions, RESAMPLED, DIFFERENT, 9), "extra_kernel")
        regressed = share(again, pl.col("verdict") == "regressed")
        busy = row["verdict"] == "inconclusive" and row["reasons"][0].startswith("a busy host")
        what = f"{host}, +1.9 % (inconclusive, contamination named; regressed in resamples {regressed:.1%}, none)"
        claims.state(what, f"{told}; {row['reasons'][0]}", busy and regressed == 0)
    else:
        found = row["ci_low"] is not None and row["ci_low"] > 1
        claims.state(f"{host}, +1.9 % (found, or not detectable)", told, found or detectable > 0.019)


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    if not (SHARED / "regression" / "local_sessions.npz").is_file():
        print(f"{SHARED}: no regression/local_sessions.npz there; set AACO_SHARED")
        return 2
    began = time.process_time()
    claims = Claims()
    sessions, latency = local_sessions(SHARED)
    recorded_identical(claims, sessions)
    recorded_slower(claims, sessions)
    simulated(claims)
    from_the_ledger(claims, sessions)
    withheld(claims, sessions)
    known_causes(claims, SHARED)
    three_hosts(claims, SHARED)
    speed(claims, latency)
    print(f"{claims.missed} missed, {time.process_time() - began:.0f} s CPU")
    return int(claims.missed > 0)


if __name__ == "__main__":
    sys.exit(main())
