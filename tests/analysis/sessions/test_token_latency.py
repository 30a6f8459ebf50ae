"""Token figures against arithmetic done by hand on a few requests."""

import polars as pl
import pytest

from aaco_pipeline.analysis.sessions.metrics import latency_metrics
from aaco_pipeline.analysis.sessions.token_latency import generation_metrics, requests
from aaco_pipeline.lake.contracts import polars_types


def iterations(*of_requests: tuple[str, list[int]], name: str = "latency") -> pl.DataFrame:
    """Requests as (phase, the time of each token), with 5 ns between one token's end and the next one's start."""
    rows: list[tuple[object, ...]] = []
    clock = 0
    for phase, tokens in of_requests:
        for index, taken in enumerate(tokens):
            rows.append((name, len(rows), phase, clock, clock + taken, taken, 1, 0, index))
            clock += taken + 5
    columns = ["pass", "iteration", "phase", "start_ns", "end_ns", "latency_ns", "cpu_time_ns", "run_delay_ns"]
    return pl.DataFrame(rows, schema=[*columns, "token_index"], orient="row")


TWO = iterations(("warmup", [900, 90, 90]), ("measure", [1000, 100, 120]), ("measure", [1200, 140, 110]))


def test_a_request_lasts_as_long_as_its_tokens() -> None:
    rows = requests(TWO).select("phase", "tokens", "first_token_ns", "end_to_end_ns", "per_token_ns").rows()
    assert rows == [
        ("warmup", 3, 900, 1080, 90.0),
        ("measure", 3, 1000, 1220, 110.0),
        ("measure", 3, 1200, 1450, 125.0),
    ]


def test_figures_of_two_requests() -> None:
    found = dict(generation_metrics(TWO, batch_size=4, prompt_tokens=50).select("metric", "value").iter_rows())
    assert found["time_to_first_token_p50"] == 1000
    assert found["time_to_first_token_p90"] == 1200
    assert found["time_per_output_token_p50"] == 110.0
    assert found["inter_token_latency_p50"] == 110
    assert found["inter_token_latency_p99"] == 140
    assert found["request_latency_p90"] == 1450
    assert found["output_tokens_per_s"] == pytest.approx(4 * 6 / (1220 + 1450) * 1e9)
    assert found["output_tokens_per_s_per_user"] == pytest.approx(1e9 / 117.5)
    assert found["prefill_tokens_per_s"] == pytest.approx(4 * 50 / 1100 * 1e9)


def test_warm_up_requests_count_in_no_figure() -> None:
    slow = iterations(("warmup", [10**9, 10**9, 10**9]), ("measure", [1000, 100, 120]))
    fast = iterations(("measure", [1000, 100, 120]))
    assert generation_metrics(slow, 1, 1).rows() == generation_metrics(fast, 1, 1).rows()


def test_a_request_of_one_token_has_no_time_per_token() -> None:
    found = generation_metrics(iterations(("measure", [1000]), ("measure", [1100])), 1, 8)
    values = dict(found.select("metric", "value").iter_rows())
    assert values["time_per_output_token_p50"] is None
    assert values["inter_token_latency_p50"] is None
    assert values["output_tokens_per_s_per_user"] is None
    assert values["output_tokens_per_s"] == pytest.approx(2e9 / 2100)


def test_each_pass_has_figures_of_its_own() -> None:
    both = pl.concat([TWO, iterations(("measure", [5000, 500, 500]), name="trace")])
    first = generation_metrics(both, 1, 1).filter(pl.col("metric") == "time_to_first_token_p50")
    assert dict(first.select("pass", "value").iter_rows()) == {"latency": 1000, "trace": 5000}


def test_only_warm_up_gives_no_rows() -> None:
    assert generation_metrics(iterations(("warmup", [1, 1])), 1, 1).is_empty()


def test_throughput_of_tokens_is_named_so() -> None:
    metrics = latency_metrics(TWO, pl.DataFrame(schema=polars_types("iteration_blocks")), 4)
    (unit,) = metrics.filter(pl.col("metric") == "throughput").get_column("unit")
    assert unit == "token/s"
