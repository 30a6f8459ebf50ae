"""Campaigns made for tests: sessions with given medians, as `comparison.compare` takes them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from aaco_pipeline.lake.contracts import polars_types

EMPTY_LEDGER = pl.DataFrame(schema={"campaign_id": pl.String(), **polars_types("aa_ledger")})


def arm(name: str, medians: Sequence[float], campaign: str = "c", per_block: int = 1, **facts: Any) -> pl.DataFrame:
    """An arm's sessions in the order of their blocks; every fact may be overridden."""
    count = len(medians)
    values = np.rint(np.asarray(medians) * 1e6).astype(np.int64)
    frame = pl.DataFrame(
        {
            "campaign_id": campaign,
            "workload": "resnet50",
            "session_id": [f"{name}{i}" for i in range(count)],
            "arm": name,
            "block": pl.Series([i // per_block for i in range(count)], dtype=pl.Int32),
            "state": "steady",
            "p50_ns": values,
            "p90_ns": values * 11 // 10,
            "p99_ns": pl.Series([None] * count, dtype=pl.Int64),
            "trimmed_mean_ns": values,
            "reasons": [[] for _ in range(count)],
            "host": "node1",
            "device": "GPU-0",
            "fingerprint": "f",
            "boot_id": "boot",
            "cache_state": "warm",
        },
        schema_overrides={"reasons": pl.List(pl.String)},
    )
    return frame.with_columns(**{key: pl.lit(value) for key, value in facts.items()})


def noise(count: int, deviation: float, seed: int = 0) -> np.ndarray:
    """Medians about 1 whose logs have exactly that deviation and mean 0."""
    drawn = np.random.default_rng(seed).standard_normal(count)
    drawn -= drawn.mean()
    made: np.ndarray = np.exp(drawn / drawn.std(ddof=1) * deviation)
    return made


def campaign(ratio: float, blocks: int = 10, deviation: float = 0.005, **facts: Any) -> pl.DataFrame:
    """Both arms: the baseline's blocks wander by 10 %, the candidate follows them with that ratio and deviation."""
    wander = np.exp(np.random.default_rng(9).normal(0, 0.05, blocks)) if blocks else np.empty(0)
    own = noise(blocks, deviation) if blocks > 1 else np.ones(blocks)
    return pl.concat(
        [arm("baseline", wander.tolist(), **facts), arm("candidate", (wander * own * ratio).tolist(), **facts)]
    )
