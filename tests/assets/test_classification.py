"""The stage that names bottlenecks: on real GPU traces with a cause by construction, and on sessions measured here."""

import json
from collections.abc import Callable
from typing import Any, Final

import polars as pl
import pytest

from aaco_pipeline.analysis.bottlenecks.rules import Rules
from aaco_pipeline.assets.capture import describe_capture
from aaco_pipeline.assets.classification import STAGE, TABLES, read_classification
from aaco_pipeline.assets.critical_path import read_critical_path
from aaco_pipeline.assets.inference_run import read_inference_run
from aaco_pipeline.assets.kernel_trace import read_kernel_trace
from aaco_pipeline.assets.roofline import read_roofline
from aaco_pipeline.assets.session_environment import read_environment
from aaco_pipeline.assets.stage import Outcome
from aaco_pipeline.assets.timeline import read_timeline
from aaco_pipeline.capture.discovery import discover_runs
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.identity import new_session_id
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import conform
from aaco_pipeline.resources.bottleneck_rules import BUILT_IN_RULES, load_bottleneck_rules
from aaco_pipeline.resources.ingestion import copy_capture
from tests.places import SHARED

TRACES: Final = SHARED / "gpu_sessions" / "traces"
#: Labels that are what the index calls a trace's only cause; traces of another kind have no single one.
LABELS: Final = {
    "compute_bound": "compute_matrix",
    "memory_bound": "memory_dram",
    "launch_bound": "launch",
    "sync_bound": "sync",
    "copy_bound": "copy",
    "host_bound": "host",
}
STAGES: Final[tuple[tuple[str, Callable[[TraceLake, str], Outcome]], ...]] = (
    ("capture", describe_capture),
    ("session_environment", read_environment),
    ("inference_run", read_inference_run),
    ("kernel_trace", read_kernel_trace),
    ("timeline", read_timeline),
    ("critical_path", read_critical_path),
    ("roofline", read_roofline),
)


def single_causes() -> dict[str, str]:
    if not (TRACES / "index.json").is_file():
        return {}
    index = json.loads((TRACES / "index.json").read_text())["traces"]
    return {name: one["cause_by_construction"] for name, one in index.items() if one["cause_by_construction"] in LABELS}


@pytest.fixture(scope="module")
def rules() -> Rules:
    return load_bottleneck_rules(BUILT_IN_RULES)


@pytest.fixture(scope="module")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[TraceLake, str]]:
    """A lake into which a trace by name is taken once, as far as the stage before this one."""
    if not TRACES.is_dir():
        pytest.skip(f"{TRACES} is not there; set AACO_SHARED")
    lake = TraceLake(tmp_path_factory.mktemp("traces") / "lake")
    known: dict[str, str] = {}

    def session(name: str) -> tuple[TraceLake, str]:
        if name not in known:
            (run,) = discover_runs(TRACES / f"{name}.json.gz").runs
            known[name] = new_session_id()
            with lake.receive_raw(known[name]) as folder:
                copy_capture(run, folder, name)
            for stage, read in STAGES:
                lake.publish(known[name], stage, read(lake, known[name]).tables)
        return lake, known[name]

    return session


def of_session(outcome: Outcome) -> dict[str, Any]:
    return outcome.tables["bottlenecks"].filter(pl.col("scope") == "session").row(0, named=True)


@pytest.mark.parametrize("name", single_causes() or ["none"])
def test_a_trace_built_to_have_one_cause_gets_it(
    name: str, ingested: Callable[[str], tuple[TraceLake, str]], rules: Rules
) -> None:
    lake, session = ingested(name)
    row = of_session(read_classification(lake, session, rules))
    expected = LABELS[single_causes()[name]]
    assert row["label"] == expected
    assert row["evidence"][0]["signal"] == f"share_{expected}"
    assert row["score"] == pytest.approx(row["evidence"][0]["value"])
    assert f"at most {100 * row['score']:.1f} %" in row["recommendation"]


def test_without_shapes_a_busy_device_is_not_given_a_label(
    ingested: Callable[[str], tuple[TraceLake, str]], rules: Rules, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, session = ingested("gemm_bf16_4096")
    monkeypatch.setattr("aaco_pipeline.assets.roofline._operator_shapes", lambda raw: None)
    lake.publish(session, "roofline", read_roofline(lake, session).tables)
    row = of_session(read_classification(lake, session, rules))
    assert (row["label"], row["runner_up"], row["score"], row["recommendation"]) == (None, None, None, None)
    assert row["missing"][0] == "nearest_roof"
    assert not [name for name in row["missing"] if name.startswith("share_compute")]


def test_a_label_is_found_again(ingested: Callable[[str], tuple[TraceLake, str]], rules: Rules) -> None:
    lake, session = ingested("item_each_kernel")
    first, second = (read_classification(lake, session, rules).tables["bottlenecks"] for _ in range(2))
    assert first.equals(second)


@pytest.mark.parametrize("model", ["control_flow", "squeezenet"])
def test_a_measured_session_and_each_of_its_kernels_are_judged(captured: Any, model: str, rules: Rules) -> None:
    lake, session = captured.lake, captured.sessions[model]
    outcome = read_classification(lake, session, rules)
    assert STAGE == "classification"
    assert set(outcome.tables) == set(TABLES)
    for name, frame in outcome.tables.items():
        conform(contract(name), frame, session)
    found = outcome.tables["bottlenecks"]
    kernels = lake.read("kernel_stats", session).get_column("kernel_id")
    assert found.filter(pl.col("scope") == "kernel").get_column("kernel_id").to_list() == kernels.to_list()
    assert found.filter(pl.col("scope") == "session").height == 1
    labelled = found.drop_nulls("label")
    assert labelled.get_column("score").is_between(0.1, 1.0).all()
    assert labelled.get_column("recommendation").null_count() == 0
    assert found.filter(pl.col("label").is_null()).get_column("score").null_count() == found.height - labelled.height
