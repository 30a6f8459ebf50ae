"""Materialize the asset as in the interface: typed configuration in, the answer and a table out."""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest

from aaco_pipeline.automation.optimization import optimization
from aaco_pipeline.automation.resources import LakeResource
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.optimizing.sources import copy_samples
from aaco_pipeline.resources.measure.runner import InferenceRunner
from aaco_pipeline.resources.project_settings import TRUSTED_FOLDERS_FILE
from benchmarks.reliability.hostile_paths import CASES, Kind, handed_over, laid_out, made, was_run
from tests.pipeline.optimizing.stand_in import SOURCE, costing


def materialized(lake: TraceLake, instance: dg.DagsterInstance, **config: object) -> dg.ExecuteInProcessResult:
    """The asset with the folder `mine` beside the lake as the one that its settings name."""
    (configs := lake.path.with_name("configs")).mkdir(exist_ok=True)
    (configs / TRUSTED_FOLDERS_FILE).write_text("folders: [../mine]\n")
    return dg.materialize(
        [optimization],
        instance=instance,
        resources={"lake": LakeResource(path=str(lake.path)), "runner": InferenceRunner(configs=str(configs))},
        run_config={"ops": {"optimization": {"config": config}}},
        raise_on_error=False,
    )


def test_it_says_what_was_found_and_names_the_search(
    empty_lake: TraceLake, source: Path, offering: Callable[..., None], instance: dg.DagsterInstance
) -> None:
    offering(costing(8000))
    named = {"source": str(source), "harness": "twice_harness.py"}
    done = materialized(empty_lake, instance, **named, target="cpu", budget_seconds=60.0)
    assert done.success
    (event,) = done.asset_materializations_for_node("optimization")
    (search,) = empty_lake.read("optimizations").get_column("campaign_id")
    assert event.metadata["optimization"].value == search
    assert "twice is 1.25" in str(event.metadata["answer"].value)
    assert "| confirmation | 1.250 \\[1.250, 1.250\\] | confirmed: 16 of 16" in str(event.metadata["attempts"].value)
    assert "\n+    int cost = 8000;\n" in str(event.metadata["change"].value)
    assert source.read_bytes() == SOURCE


def test_a_run_never_replaces_a_source_and_never_chooses_the_settings(
    empty_lake: TraceLake, source: Path, instance: dg.DagsterInstance
) -> None:
    with pytest.raises(dg.DagsterInvalidConfigError, match="apply"):
        materialized(empty_lake, instance, source=str(source), apply=True)
    (own := source.with_name("configs")).mkdir()
    (own / TRUSTED_FOLDERS_FILE).write_text(f"folders: [{source.parent}]\n")
    elsewhere = {"runner": {"config": {"configs": str(own)}}, "lake": {"config": {"path": str(source.parent)}}}
    done = dg.materialize(
        [optimization],
        instance=instance,
        resources={"lake": LakeResource(path=str(empty_lake.path)), "runner": InferenceRunner(configs="nowhere")},
        run_config={"ops": {"optimization": {"config": {"source": str(source)}}}, "resources": elsewhere},
        raise_on_error=False,
    )
    (failed,) = [event for event in done.all_events if event.is_step_failure]
    failure = failed.step_failure_data.user_failure_data
    assert failure is not None
    assert "nowhere/trusted_folders.yaml names these folders" in (failure.description or "")


@pytest.mark.nightly
@pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="there is no C++ compiler")
def test_a_real_run_takes_source_and_harness_of_a_named_folder(
    empty_lake: TraceLake, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    copy_samples(mine := tmp_path / "mine" / "sub")
    done = materialized(empty_lake, instance, source="sub/row_dot.hip", target="cpu", budget_seconds=0.001)
    assert done.success
    hashes = empty_lake.read("optimizations").select("source_sha256", "harness_sha256").row(0)
    read = (mine / "row_dot.hip", mine / "row_dot_harness.py")
    assert hashes == tuple(hashlib.sha256(one.read_bytes()).hexdigest() for one in read)


@pytest.mark.parametrize("kind", ["source", "harness"])
@pytest.mark.parametrize("name", ["absolute, elsewhere", "a linked folder at depth 3", "an open descriptor in proc"])
def test_a_run_executes_nothing_from_elsewhere(name: str, kind: Kind, tmp_path: Path) -> None:
    place = laid_out(tmp_path / "place", kind, tmp_path / "ran")
    with made(CASES[name], place) as path:
        assert not handed_over(place, path)
    assert not was_run(place, tmp_path / "ran")


@pytest.mark.parametrize("config", [{"source": "/nowhere.hip"}, {}, {"source": "x", "target": "tpu"}])
def test_what_is_wrongly_configured_fails_before_the_lake_is_written(
    empty_lake: TraceLake, offering: Callable[..., None], instance: dg.DagsterInstance, config: dict[str, object]
) -> None:
    offering()
    try:
        assert not materialized(empty_lake, instance, **config).success
    except dg.DagsterInvalidConfigError:
        assert config != {"source": "/nowhere.hip"}
    assert empty_lake.read("optimizations").is_empty()
