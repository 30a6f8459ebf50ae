"""Pages and traces in Dagster: assets that somebody asks for, with a link, and that are never stale or failed."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from aaco_pipeline.assets.stage import views
from aaco_pipeline.automation.resources import LakeResource, session_partitions
from aaco_pipeline.automation.stage_assets import stage_assets
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.on_demand import address_of
from aaco_pipeline.resources.measure.runner import InferenceRunner
from tests.conftest import CapturedLake
from tests.places import CONFIGS

TAGS_OF_VERSIONS = ("dagster/code_version", "dagster/data_version", "dagster/input_data_version")


@pytest.fixture
def lake(captured: CapturedLake, lake_path: Path) -> TraceLake:
    return captured.copy(lake_path)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as made:
        yield made


def materialized(lake: TraceLake, instance: dg.DagsterInstance, session: str) -> dg.ExecuteInProcessResult:
    """Both views of a session, as a person asks for them on the page of their assets."""
    assert session_partitions.name is not None
    instance.add_dynamic_partitions(session_partitions.name, [session])
    resources = {"lake": LakeResource(path=str(lake.path)), "runner": InferenceRunner(configs=str(CONFIGS))}
    return dg.materialize(
        stage_assets(),
        partition_key=session,
        instance=instance,
        resources=resources,
        selection=[*views()],
        raise_on_error=False,
    )


def test_a_view_that_is_asked_for_is_made_and_one_click_away(
    captured: CapturedLake, lake: TraceLake, instance: dg.DagsterInstance
) -> None:
    session = captured.sessions["squeezenet"]
    before = lake.manifest(session)
    result = materialized(lake, instance, session)
    assert result.success
    found = {
        event.materialization.asset_key.to_user_string(): event.materialization
        for event in result.get_asset_materialization_events()
    }
    files = {"perfetto_trace": ("trace", lake.trace(session)), "report": ("report", lake.report(session))}
    assert found.keys() == files.keys() == views().keys()
    for view, (label, path) in files.items():
        told = found[view].metadata
        assert told[label] == dg.MetadataValue.url(address_of(path))
        assert told[f"{label}_bytes"] == dg.MetadataValue.int(path.stat().st_size)
        assert "dagster/row_count" not in told
        assert found[view].partition == session
        assert not [tag for tag in found[view].tags or {} if tag.startswith(TAGS_OF_VERSIONS)], "it would become stale"
    assert found["report"].metadata["answer"].value
    assert list(result.get_asset_check_evaluations()) == []
    after = lake.manifest(session)
    assert (after.entries, after.stages, after.expected) == (before.entries, before.stages, before.expected)


def test_one_that_cannot_be_made_fails_in_dagster_and_leaves_its_session_whole(
    captured: CapturedLake, lake: TraceLake, instance: dg.DagsterInstance
) -> None:
    session = captured.sessions["squeezenet"]
    (entry,) = lake.manifest(session).of_table("iterations")
    (lake.path / entry.file).unlink()
    result = materialized(lake, instance, session)
    assert not result.success
    assert lake.progress(session).is_whole
    assert [one.failure for one in lake.manifest(session).stages if one.failure is not None] == []
