"""Figures about generating tokens: time to the first token, time per token, and tokens per second.

An iteration is one token of a request, `token_index` its position. Definitions follow vLLM's benchmark (time per output
token, inter-token latency); another tool's "inter-token latency" may be what is called time per output token here.
"""

import polars as pl

from aaco_pipeline.analysis.sessions.metrics import METRICS, quantile_rows


def requests(iterations: pl.DataFrame) -> pl.DataFrame:
    """One row per request: `pass`, `phase`, `request`, `tokens`, `first_token_ns`, `end_to_end_ns`, `per_token_ns`.

    A request begins with the token of index 0; its end-to-end time is the sum of its tokens', because what lies between
    them is the reading of counters. `per_token_ns` (float) = (end to end - first token) / (tokens - 1);
    null for a request of one token. Empty for iterations that are not tokens.
    """
    return (
        iterations.drop_nulls("token_index")
        .sort("pass", "iteration")
        .with_columns(request=(pl.col("token_index") == 0).cum_sum().over("pass") - 1)
        .group_by("pass", "request", maintain_order=True)
        .agg(
            pl.col("phase").first(),
            tokens=pl.len(),
            first_token_ns=pl.col("latency_ns").first(),
            end_to_end_ns=pl.col("latency_ns").sum(),
        )
        .with_columns(
            per_token_ns=pl.when(pl.col("tokens") > 1).then(
                (pl.col("end_to_end_ns") - pl.col("first_token_ns")) / (pl.col("tokens") - 1)
            )
        )
    )


def units_of_work(iterations: pl.DataFrame) -> pl.DataFrame:
    """What one may compare within a session, in order: `iteration`, `run`, `time_ns` of the measured, unprofiled units.

    A unit is an iteration, or a whole request where iterations are tokens, for these grow slower with the cache.
    """
    measured = iterations.filter((pl.col("pass") == "latency") & (pl.col("phase") == "measure")).sort("iteration")
    if measured.get_column("token_index").null_count() == measured.height:
        return measured.select("iteration", "run", time_ns="latency_ns")
    first = measured.filter(pl.col("token_index") == 0).get_column("iteration")
    return requests(measured).select(first, run=pl.lit(None, pl.Int32), time_ns="end_to_end_ns")


def generation_metrics(iterations: pl.DataFrame, batch_size: int, prompt_tokens: int) -> pl.DataFrame:
    """Rows of `session_metrics` for a session that generated tokens, over the measured requests of each pass.

    time_to_first_token and request_latency (one value per request), time_per_output_token (one per request of two
    tokens or more) and inter_token_latency (every gap between tokens, pooled), each as _p50, _p90 and _p99 with the
    interval of `quantile_interval`; output_tokens_per_s = all tokens of the batch / time the requests took;
    output_tokens_per_s_per_user = 1 / mean time per output token; prefill_tokens_per_s = tokens of the batch's prompts
    / mean time to the first token.
    """
    rows: list[dict[str, object]] = []
    for (name,), of_pass in requests(iterations).group_by("pass", maintain_order=True):
        measured = of_pass.filter(pl.col("phase") == "measure")
        if measured.is_empty():
            continue
        gaps = iterations.filter(
            (pl.col("pass") == name) & (pl.col("phase") == "measure") & (pl.col("token_index") > 0)
        ).get_column("latency_ns")
        first, per_token = measured.get_column("first_token_ns"), measured.get_column("per_token_ns").drop_nulls()
        for metric, values in (
            ("time_to_first_token", first),
            ("time_per_output_token", per_token),
            ("inter_token_latency", gaps),
            ("request_latency", measured.get_column("end_to_end_ns")),
        ):
            rows.extend({"pass": name, **row} for row in quantile_rows(metric, values))
        rates = {
            "output_tokens_per_s": _rate(
                batch_size * int(measured.get_column("tokens").sum()), measured["end_to_end_ns"].sum()
            ),
            "output_tokens_per_s_per_user": _rate(1, per_token.mean()),
            "prefill_tokens_per_s": _rate(batch_size * prompt_tokens, first.mean()),
        }
        rows.extend(
            {"pass": name, "metric": metric, "value": rate, "unit": "token/s", "n": measured.height}
            for metric, rate in rates.items()
        )
    return pl.DataFrame([{**row, "phase": "measure"} for row in rows], schema=METRICS)


def _rate(tokens: int, duration_ns: object) -> float | None:
    return tokens * 1e9 / duration_ns if isinstance(duration_ns, int | float) and duration_ns > 0 else None
