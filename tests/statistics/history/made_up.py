"""Nights made for tests: log levels with a known change, and rows as `night_levels` gives them."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.statistics.history.changes import OF_THE_NIGHT

Floats = npt.NDArray[np.float64]
FIRST_NIGHT = datetime(2026, 3, 1, 22, tzinfo=UTC)


def noise(nights: int, deviation: float = 0.02, seed: int = 0) -> Floats:
    """Independent normal nights."""
    made: Floats = np.random.default_rng(seed).standard_normal(nights) * deviation
    return made


def step(nights: int, at: int, height: float) -> Floats:
    """0 before the night `at`, `height` from it on."""
    return np.where(np.arange(nights) >= at, height, 0.0)


def unknown(nights: int) -> Floats:
    """Errors of nights of one session each."""
    return np.full(nights, np.nan)


def night_rows(
    level: Floats, paired: Floats | None = None, arm: str = "candidate", files: Sequence[str] | None = None
) -> pl.DataFrame:
    """One series: log levels about a millisecond, log ratios to a baseline whose file may change."""
    count = len(level)
    rows = pl.DataFrame(
        {
            "campaign": [f"nightly-{night:03}" for night in range(count)],
            "started_at": [FIRST_NIGHT + timedelta(days=night) for night in range(count)],
            "level_ns": np.rint(1e6 * np.exp(level)).astype(np.int64),
            "fingerprint": ["f"] * count,
            "sessions": [10] * count,
        }
    ).with_columns(
        workload=pl.lit("resnet50"),
        backend=pl.lit("cpu"),
        host=pl.lit("node1"),
        metric=pl.lit("latency_p50"),
        arm=pl.lit(arm),
        error_ratio=pl.lit(0.005),
    )
    if paired is not None:
        rows = rows.with_columns(
            paired_with=pl.lit("baseline"),
            paired_artefact_sha256=pl.Series(files or ["ab" * 32] * count),
            paired_blocks=pl.lit(10),
            paired_ratio=pl.Series(np.exp(paired)),
            paired_error_ratio=pl.lit(0.005),
        )
    types = polars_types("nights", *OF_THE_NIGHT)
    missing = [pl.lit(None, dtype).alias(name) for name, dtype in types.items() if name not in rows.columns]
    return rows.with_columns(missing).select(types.keys()).cast(types)  # type: ignore[arg-type]
