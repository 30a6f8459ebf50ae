"""How quiet the machine was, and the session's figures with and without the iterations that it disturbed."""

from typing import Any, Final

import numpy as np
import polars as pl

from aaco_pipeline.analysis.delays.grades import CLEAN, DISTURBED
from aaco_pipeline.analysis.sessions.metrics import quantile_interval

#: Figures over the clean iterations alone, beside those over all: never in place of them.
_FIGURES: Final = {"latency_p50_undisturbed": 0.50, "latency_p99_undisturbed": 0.99}
_SCHEMA: Final = {
    **{"metric": pl.String, "pass": pl.String, "phase": pl.String, "value": pl.Float64, "unit": pl.String},
    **{"n": pl.Int64, "ci_low": pl.Float64, "ci_high": pl.Float64},
}


def quietness_metrics(iterations: pl.DataFrame, grades: pl.DataFrame, probes: pl.DataFrame) -> pl.DataFrame:
    """Rows of `session_metrics`: of the measured iterations of each pass that can be judged what share was disturbed,
    null where none can; figures over the clean ones, of nearest rank as `latency_p50` is; of the probes what share of
    their time vanished without an event of the kernel.
    """
    rows: list[dict[str, Any]] = []
    measured = iterations.filter(pl.col("phase") == "measure").join(grades, on=["pass", "iteration"])
    for (name,), some in measured.sort("pass", "iteration").group_by("pass", maintain_order=True):
        of = {"pass": name, "phase": "measure"}
        disturbed = some.filter(pl.col("grade") == DISTURBED).height
        judged = disturbed + some.filter(pl.col("grade") == CLEAN).height
        ratio = disturbed / judged if judged else None
        rows.append({**of, "metric": "disturbed_ratio", "value": ratio, "unit": "ratio", "n": judged})
        clean = np.sort(some.filter(pl.col("grade") == CLEAN).get_column("latency_ns").drop_nulls().to_numpy())
        values = {metric: quantile_interval(clean, at)[0] for metric, at in _FIGURES.items()} if len(clean) else {}
        if len(clean):
            values["latency_mean_undisturbed"] = float(clean.mean())
        rows += [{**of, "metric": key, "value": one, "unit": "ns", "n": len(clean)} for key, one in values.items()]
    known = probes.drop_nulls("unseen_ns")
    if known.height:
        spent = int((known.get_column("end_ns") - known.get_column("start_ns")).sum())
        share = int(known.get_column("unseen_ns").sum()) / spent if spent else None
        rows.append({"metric": "unseen_pause_ratio", "value": share, "unit": "ratio", "n": known.height})
    return pl.DataFrame(rows, schema=_SCHEMA)
