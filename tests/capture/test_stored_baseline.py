"""Baseline files of earlier tools: both forms are read, what cannot be is refused by name, what is none is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aaco_pipeline.capture.stored_baseline import read_stored_baseline
from aaco_pipeline.errors import CaptureError


def metric(mean: Any, **more: Any) -> dict[str, Any]:
    return {"mean": mean, "stddev": 0.0, "min": mean, "max": mean, "count": 10, "unit": "", **more}


def managed(metrics: dict[str, Any], **more: Any) -> dict[str, Any]:
    version = {"version": "1.0.0", "created_at": 1.7e9, "is_active": True}
    return {"name": "nightly", "model_name": "net", "version": version, "metrics": metrics, "metadata": {}, **more}


def written(folder: Path, document: object) -> Path:
    (folder / "baseline.json").write_text(json.dumps(document))
    return folder / "baseline.json"


def test_means_over_samples_are_latencies_in_nanoseconds(tmp_path: Path) -> None:
    metrics = {
        "latency_p50_ms": metric(2.5),
        "p99_us": metric(4_000),
        "latency": metric(2.6, unit="ms"),
        "mem": metric(7),
    }
    stored = read_stored_baseline(written(tmp_path, managed(metrics)))
    assert stored.latencies_ns == {"latency_p50": 2.5e6, "latency_p99": 4e6, "latency_mean": 2.6e6}
    assert (stored.name, stored.facts) == ("nightly", {"model_name": "net"})
    assert (stored.refused, stored.not_compared) == ((), ("mem",))


def test_a_workload_with_its_kernels_states_its_hardware(tmp_path: Path) -> None:
    document = {
        "metadata": {
            "baseline_id": "b1",
            "gpu_arch": "gfx942",
            "model_name": "net",
            "batch_size": 64,
            "precision": "fp16",
        },
        "workload": {"total_time_ms": 12.5, "memory_peak_mb": 8500, "compute_pct": 172.5},
        "kernels": {
            "gemm": {"latency_us": 125.4, "flops": 17.2e12, "occupancy": 0.88},
            "relu": {"latency_us": 8.5, "flops": 5e7, "occupancy": 1.3},
        },
    }
    stored = read_stored_baseline(written(tmp_path, document))
    assert stored.latencies_ns == {"latency_mean": 12.5e6}
    assert stored.facts == {"model_name": "net", "batch_size": 64, "precision": "fp16", "arch": "gfx942"}
    assert stored.refused == (
        "compute_pct: 172.5 % is more than all of it",
        "gemm.flops in latency_us: 1.37e+17 flop/s is more than any device carries out",
        "relu.occupancy: 1.3 is more than all of it: overlapping work was summed",
    )


@pytest.mark.parametrize(
    ("name", "figure", "why"),
    [
        ("power_w", metric(0), "0 is a reading that failed"),
        ("gpu_temperature", metric(0.0), "0 is a reading that failed"),
        ("latency_p90_ms", metric(0), "0 is a reading that failed"),
        ("latency_p90_ms", metric(-1), "-1 is below 0"),
        ("kernel_active_ratio", metric(4.0), "4 is more than all of it: overlapping work was summed"),
        ("gpu_util", metric(250), "250 % is more than all of it"),
        ("latency_p90_ms", metric("fast"), "'fast' is no figure"),
        ("latency_p90_ms", metric(None), "None is no figure"),
        ("latency_p90_ms", metric(True), "True is no figure"),
        ("latency_p90_ms", metric(float("nan")), "nan is no figure"),
        ("latency_p90_ms", metric(3, count=0), "it rests on no sample"),
        ("latency_p90_ms", metric(3, max=2.5, min=1), "its mean 3 lies outside its own 1 to 2.5"),
    ],
)
def test_what_cannot_be_is_refused_by_name_and_the_rest_is_read(
    name: str, figure: dict[str, Any], why: str, tmp_path: Path
) -> None:
    stored = read_stored_baseline(written(tmp_path, managed({"latency_p50_ms": metric(2.5), name: figure})))
    assert stored.refused == (f"{name}: {why}",)
    assert stored.latencies_ns == {"latency_p50": 2.5e6}


@pytest.mark.parametrize(("lower", "upper"), [("p50", "p90"), ("p90", "p99"), ("p50", "p99")])
def test_quantiles_that_contradict_each_other_are_both_refused(lower: str, upper: str, tmp_path: Path) -> None:
    metrics = {f"latency_{lower}_ms": metric(3), f"latency_{upper}_ms": metric(2), "latency_mean_ms": metric(2.5)}
    stored = read_stored_baseline(written(tmp_path, managed(metrics)))
    assert stored.latencies_ns == {"latency_mean": 2.5e6}
    assert stored.refused == (f"latency_{lower} and latency_{upper}: the lower quantile is the longer one",)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ([], "is no baseline that is known"),
        ({"metrics": {}}, "is no baseline that is known"),
        ({"metadata": {}, "workload": 3}, "is no baseline that is known"),
        (managed({}), "holds no latency that can be believed; name figures as"),
        (managed({"latency_p50": metric(2.5)}), "holds no latency that can be believed; name figures as"),
        (managed({"latency_p50_ms": metric(0)}), "holds no latency that can be believed: latency_p50_ms: 0 is a"),
        (
            managed({"latency_p50_ms": metric(2)}, metadata={"method": "MOVING_AVERAGE"}),
            "method is MOVING_AVERAGE: it follows what it is compared with; pin a measurement",
        ),
    ],
)
def test_what_is_no_baseline_is_refused_in_one_line(document: object, words: str, tmp_path: Path) -> None:
    path = written(tmp_path, document)
    with pytest.raises(CaptureError) as refused:
        read_stored_baseline(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert words in str(refused.value)
    assert refused.value.exit_code == 6


def test_what_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text("{")
    with pytest.raises(CaptureError, match="cannot be read as JSON"):
        read_stored_baseline(tmp_path / "b.json")


VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.sampled_from(["", "ms", "latency_p50_ms"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["latency_p50_ms", "mean", "min", "max", "unit", "count", "flops"]), inner)
    ),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(metrics=VALUES, workload=VALUES, kernels=VALUES)
def test_whatever_a_file_holds_it_is_read_or_refused(metrics: Any, workload: Any, kernels: Any, tmp_path: Path) -> None:
    for document in (managed(metrics), {"metadata": {}, "workload": workload, "kernels": kernels}):
        try:
            stored = read_stored_baseline(written(tmp_path, document))
        except CaptureError:
            continue
        assert all(time > 0 for time in stored.latencies_ns.values())
