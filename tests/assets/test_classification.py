"""The stage `classification`: on real GPU traces with a cause by construction, and on sessions measured here."""

import json
from collections.abc import Callable
from typing import Any, Final

import polars as pl
import pytest

from aaco_pipeline.assets.stage import Outcome, Session, materialize
from aaco_pipeline.lake.store import TraceLake
from tests.places import CONFIGS, SHARED
from tests.sessions import made_by, replayed, republished, tables_of, taken_in

TRACES: Final = SHARED / "gpu_sessions" / "traces"
#: Class and resource that are what the index calls a trace's only cause; traces of another kind have no single one.
CAUSES: Final = {
    "compute_bound": ("device", "compute_matrix"),
    "memory_bound": ("device", "memory_dram"),
    "launch_bound": ("launch", None),
    "sync_bound": ("sync", None),
    "copy_bound": ("copy", None),
    "host_bound": ("host", None),
}
JUDGED: Final = ("critical_path", "roofline")


def single_causes() -> dict[str, str]:
    if not (TRACES / "index.json").is_file():
        return {}
    index = json.loads((TRACES / "index.json").read_text())["traces"]
    return {name: one["cause_by_construction"] for name, one in index.items() if one["cause_by_construction"] in CAUSES}


@pytest.fixture(scope="module")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[TraceLake, str]]:
    """A lake into which a trace by name is taken once, as far as the stage before this one."""
    lake = TraceLake(tmp_path_factory.mktemp("traces") / "lake")
    known: dict[str, str] = {}

    def session(name: str) -> tuple[TraceLake, str]:
        if name not in known:
            known[name] = taken_in(lake, TRACES / f"{name}.json.gz")
            replayed(lake, known[name], *JUDGED)
        return lake, known[name]

    return session


def of_session(outcome: Outcome) -> dict[str, Any]:
    return outcome.tables["bottlenecks"].filter(pl.col("scope") == "session").row(0, named=True)


@pytest.mark.parametrize("name", single_causes() or ["none"])
def test_a_trace_built_to_have_one_cause_gets_it(name: str, ingested: Callable[[str], tuple[TraceLake, str]]) -> None:
    lake, session = ingested(name)
    outcome = made_by(lake, session, "classification")
    row, (told,) = of_session(outcome), outcome.tables["answers"].rows(named=True)
    expected = CAUSES[single_causes()[name]]
    assert (told["class"], told["resource"]) == expected
    assert row["label"] == expected[0]
    assert row["evidence"][0]["signal"] == f"share_{expected[0]}"
    assert row["score"] == pytest.approx(row["evidence"][0]["value"])
    saved = told["saves_at_most_ns"] / told["window_ns"]
    assert f"at most {100 * saved:.1f} %" in row["recommendation"]
    # A cause goes with more than its own share; what the device does itself cannot go altogether.
    assert saved < row["score"] if expected[0] == "device" else row["score"] - 0.01 < saved <= 1


@pytest.mark.parametrize("name", single_causes() or ["none"])
def test_the_shares_are_the_window_exactly(name: str, ingested: Callable[[str], tuple[TraceLake, str]]) -> None:
    tables = made_by(*ingested(name), "classification").tables
    shares = tables["time_shares"].filter(pl.col("reason").is_null())
    assert shares.get_column("time_ns").sum() == tables["answers"].item(0, "window_ns")
    assert set(shares.get_column("grade")) == {"observed"}


def test_without_shapes_no_resource_is_named_and_no_saving_promised(empty_lake: TraceLake) -> None:
    session = taken_in(empty_lake, TRACES / "gemm_bf16_4096.json.gz")
    replayed(empty_lake, session, *JUDGED)
    inputs = tables_of(empty_lake, session, "kernel_trace")["operator_inputs"]
    republished(empty_lake, session, "kernel_trace", operator_inputs=inputs.clear())
    materialize(Session(empty_lake, session, CONFIGS), ["roofline"])
    outcome = made_by(empty_lake, session, "classification")
    (told,) = outcome.tables["answers"].rows(named=True)
    assert (told["class"], told["resource"], told["saves_at_most_ns"]) == ("device", None, None)
    assert "saves" not in of_session(outcome)["recommendation"]


def test_an_answer_is_found_again(ingested: Callable[[str], tuple[TraceLake, str]]) -> None:
    lake, session = ingested("item_each_kernel")
    first, second = (made_by(lake, session, "classification").tables for _ in range(2))
    assert all(first[name].equals(second[name]) for name in first)


def test_a_measured_session_and_each_of_its_kernels_are_judged(lake: TraceLake, session: str) -> None:
    outcome = made_by(lake, session, "classification")
    found = outcome.tables["bottlenecks"]
    kernels = lake.read("kernel_stats", session).get_column("kernel_id")
    assert found.filter(pl.col("scope") == "kernel").get_column("kernel_id").to_list() == kernels.to_list()
    assert found.filter(pl.col("scope") == "session").height == 1
    answer = outcome.tables["answers"].row(0, named=True)
    shares = outcome.tables["time_shares"].filter(pl.col("reason").is_null())
    assert shares.get_column("time_ns").sum() == answer["window_ns"]
    assert shares.get_column("share_ratio").sum() == pytest.approx(1)
    assert answer["window_rule"] == "measured iterations without a profiler"
    assert answer["class"] in {*shares.get_column("share"), "contention"}
    labelled = found.drop_nulls("label").filter(pl.col("scope") == "kernel")
    assert labelled.get_column("score").is_between(0.1, 1.0).all()
    assert labelled.get_column("recommendation").null_count() == 0
    assert found.filter(pl.col("label").is_null()).get_column("score").drop_nulls().is_empty()


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["tiny_kernels_500", "gemm_bf16_4096", "host_work_between"])
def test_without_evidence_a_real_trace_keeps_its_class_or_has_none(name: str, empty_lake: TraceLake) -> None:
    session = taken_in(empty_lake, TRACES / f"{name}.json.gz")
    replayed(empty_lake, session, *JUDGED)
    whole = made_by(empty_lake, session, "classification").tables["answers"].item(0, "class")
    published = tables_of(empty_lake, session, "kernel_trace")
    again = ["completeness", "timeline", "critical_path", "model_graph", "roofline"]
    for table in ("api_calls", "operator_inputs", "markers"):
        empty_lake.publish(session, "kernel_trace", {**published, table: published[table].clear()})
        materialize(Session(empty_lake, session, CONFIGS), again)
        after = made_by(empty_lake, session, "classification").tables["answers"].item(0, "class")
        assert after in (whole, "unknown", "incomplete"), table
        if table == "api_calls" and whole in ("launch", "host"):
            assert after != whole, "nothing is left that could tell"
