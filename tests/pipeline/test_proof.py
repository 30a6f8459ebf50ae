"""The proof that a session's tables are what its raw capture gives: when it holds, and what it names when not."""

import shutil
from pathlib import Path

import pytest

from aaco_pipeline.assets.stage import stages_of, standing
from aaco_pipeline.errors import CaptureError, LakeError
from aaco_pipeline.lake.identity import new_session_id
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.proof import prove
from tests.conftest import CapturedLake
from tests.places import CONFIGS, SHARED
from tests.sessions import replayed, republished, tables_of, taken_in, unlisted


def silent(doing: str, done: int, total: int) -> None:
    """Shows nothing."""


@pytest.fixture
def lake(captured: CapturedLake, lake_path: Path) -> TraceLake:
    return captured.copy(lake_path)


@pytest.fixture
def session(captured: CapturedLake) -> str:
    return captured.sessions["control_flow"]


def test_a_measured_session_is_reproduced_bit_for_bit_and_the_lake_stays_as_it_is(
    lake: TraceLake, session: str
) -> None:
    before = {path: path.stat().st_mtime_ns for path in lake.path.rglob("*")}
    shown: list[tuple[str, int, int]] = []
    proof = prove(lake, session, CONFIGS, lambda *told: shown.append(told))
    assert proof.holds
    assert proof.differences == ()
    expected = standing(lake, session).expected
    assert proof.stages == len(expected)
    assert proof.tables == len(lake.manifest(session).entries)
    assert str(proof) == f"{session}: {proof.stages} stages, {proof.tables} tables, reproduced bit for bit"
    assert shown == [(f"computing {name} of {session}", at, len(expected)) for at, name in enumerate(expected)]
    assert {path: path.stat().st_mtime_ns for path in lake.path.rglob("*")} == before


def test_an_ingested_session_is_reproduced_bit_for_bit(empty_lake: TraceLake) -> None:
    session = taken_in(empty_lake, SHARED / "gpu_sessions/traces/two_streams_overlap.json.gz")
    replayed(empty_lake, session, *stages_of("ingested"))
    assert prove(empty_lake, session, CONFIGS, silent).differences == ()


def test_a_table_that_was_published_otherwise_is_named_with_its_stage_and_what_was_computed_from_it_is_not(
    lake: TraceLake, session: str
) -> None:
    gaps = tables_of(lake, session, "timeline")["gaps"]
    republished(lake, session, "timeline", gaps=gaps.slice(1))
    proof = prove(lake, session, CONFIGS, silent)
    assert not proof.holds
    (told,) = proof.differences
    assert told.startswith(f"gaps of timeline: {gaps.height - 1} rows published, {gaps.height} computed")
    assert str(proof).endswith(f"1 differ: {told}")


def test_a_table_with_as_many_rows_of_other_content_differs(lake: TraceLake, session: str) -> None:
    stats = tables_of(lake, session, "timeline")["kernel_stats"]
    republished(lake, session, "timeline", kernel_stats=stats.with_columns(stats["total_ns"] + 1))
    (told,) = prove(lake, session, CONFIGS, silent).differences
    assert told.startswith(f"kernel_stats of timeline: {stats.height} rows published, {stats.height} computed")


def test_a_stage_that_published_nothing_is_named(lake: TraceLake, captured: CapturedLake) -> None:
    session = captured.sessions["squeezenet"]
    bare = TraceLake(lake.path.parent / "bare")
    shutil.copytree(lake.raw(session), bare.raw(session))
    replayed(bare, session, "session_environment")
    differences = prove(bare, session, CONFIGS, silent).differences
    assert "gaps of timeline is not published" in differences
    assert not [told for told in differences if "session_environment" in told or "of capture" in told]


def test_a_session_without_a_capture_cannot_be_proved(lake: TraceLake) -> None:
    session = new_session_id()
    with pytest.raises(LakeError, match=f"session {session} has no raw capture"):
        prove(lake, session, CONFIGS, silent)


def test_a_damaged_capture_is_its_own_error(lake: TraceLake, session: str) -> None:
    (unlisted(lake.raw(session)) / "onnxruntime_profile.json.gz").write_bytes(b"damaged")
    with pytest.raises(CaptureError, match="onnxruntime_profile"):
        prove(lake, session, CONFIGS, silent)
