"""A torn manifest is made anew from what the tables' files say of themselves, and says what they cannot know."""

import json
from pathlib import Path

import pytest

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.health import faults, mend
from aaco_pipeline.lake.manifest import Manifest
from aaco_pipeline.lake.rebuilding import rebuild_manifest
from aaco_pipeline.lake.store import TraceLake
from tests.lake.published import SESSION, Filled, Metrics, Snapshot, file_of, kernels


def publish(lake: TraceLake, metrics: Metrics, filled: Filled) -> None:
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0), "kernels": kernels(filled, "gemm")}, code_version="1")
    lake.publish(SESSION, "b_c", {"kernels": kernels(filled, "softmax"), "markers": filled("markers", {"name": []})})


@pytest.fixture
def populated(lake: TraceLake, metrics: Metrics, filled: Filled) -> TraceLake:
    lake.expect(SESSION, ["a", "b_c", "d"])
    publish(lake, metrics, filled)
    return lake


def tear(lake: TraceLake) -> Path:
    path = lake.manifest_path(SESSION, "session")
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    return path


def test_what_is_published_is_found_again_and_every_stage_has_to_run_again(
    populated: TraceLake, metrics: Metrics, filled: Filled, snapshot: Snapshot
) -> None:
    whole, before = populated.manifest(SESSION), snapshot(populated.path)
    path = tear(populated)
    (fault,) = faults(populated)
    assert (fault.path, fault.session) == (path, SESSION)
    assert mend(populated, fault)
    found = populated.manifest(SESSION)
    assert found.entries == tuple(entry for entry in whole.entries if entry.file)
    progress = populated.progress(SESSION)
    assert [state.stage for state in progress.failed] == ["a", "b_c"]
    assert all("manifest was torn" in (state.failure or "") for state in progress.failed)
    assert (progress.published, progress.is_whole) == ((), False)
    assert faults(populated) == []
    populated.expect(SESSION, ["a", "b_c", "d"])
    publish(populated, metrics, filled)
    assert snapshot(populated.path) == before


def test_a_file_that_is_torn_or_anothers_is_not_taken(populated: TraceLake) -> None:
    kept = [populated.path / entry.file for entry in populated.manifest(SESSION).of_table("kernels")]
    torn = file_of(populated, "session_metrics")
    tear(populated)
    torn.write_bytes(torn.read_bytes()[:-1] + b"?")
    for stranger in (f"iterations/session_id={SESSION}/{kept[0].name}", f"kernels/session_id={SESSION}/{torn.name}"):
        path = populated.path / stranger
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(kept[0].read_bytes())
    assert {entry.file for entry in rebuild_manifest(populated, SESSION).entries} == {
        path.relative_to(populated.path).as_posix() for path in kept
    }


def test_of_two_files_of_a_table_none_is_taken(populated: TraceLake, metrics: Metrics, filled: Filled) -> None:
    """Which of them was published is not known; the stage runs again."""
    first = file_of(populated, "session_metrics")
    content = first.read_bytes()
    populated.publish(SESSION, "a", {"session_metrics": metrics(2.0), "kernels": kernels(filled, "gemm")})
    first.write_bytes(content)
    tear(populated)
    assert {(e.table, e.stage) for e in rebuild_manifest(populated, SESSION).entries} == {
        ("kernels", "a"),
        ("kernels", "b_c"),
    }
    assert {fault.kind for fault in faults(populated)} == {"orphan file"}


def test_a_manifest_that_is_whole_or_newer_is_left_alone(populated: TraceLake) -> None:
    before = populated.manifest(SESSION)
    assert rebuild_manifest(populated, SESSION) == before
    path = populated.manifest_path(SESSION, "session")
    document = {key: value for key, value in json.loads(path.read_bytes()).items() if key != "digest"}
    path.write_text(json.dumps({**document, "manifest_version": 99}))
    content = path.read_bytes()
    with pytest.raises(LakeError, match="newer"):
        rebuild_manifest(populated, SESSION)
    (fault,) = faults(populated)
    assert (fault.mendable, fault.session) == (False, None)
    assert path.read_bytes() == content


def test_a_campaign_is_rebuilt_too(lake: TraceLake, filled: Filled) -> None:
    lake.publish("nightly", "comparison", {"verdicts": filled("verdicts", {"metric": ["x"]})}, scope="campaign")
    entries = lake.manifest("nightly", "campaign").entries
    lake.manifest_path("nightly", "campaign").write_text("{")
    (fault,) = faults(lake)
    assert (fault.mendable, fault.session) == (True, None)
    assert mend(lake, fault)
    found = lake.manifest("nightly", "campaign")
    assert isinstance(found, Manifest)
    assert found.entries == entries
    assert lake.read("verdicts").height == 1
