"""Campaigns whose truth is known, resampled from real sessions or simulated on three levels.

Each maker returns the sessions of many campaigns in one frame, as `comparison.compare` takes them.
"""

import json
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.statistics.session_quantiles import session_quantiles

BASELINE: Final = "baseline"
CANDIDATE: Final = "candidate"
WORKLOADS: Final = ("gemm", "pyobj", "stream")
_TIMES: Final = ("p50_ns", "p90_ns", "p99_ns", "trimmed_mean_ns")
_NO_FACTS: Final = {"host": "h", "device": "d", "fingerprint": "f", "boot_id": "b", "cache_state": "warm"}

Picks = npt.NDArray[np.int64]


def local_sessions(shared: Path) -> tuple[pl.DataFrame, npt.NDArray[np.int64]]:
    """The sessions of `local_sessions.npz`, a row each with its number in `place`, and their latencies by place."""
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
