"""The doors give what reading in the same process gives, and say in evidence how the reader was confined."""

import shutil
from pathlib import Path

import pytest

from aaco_pipeline.capture import discovery, ingested
from aaco_pipeline.errors import CaptureError, LakeError
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.resources import ingestion
from aaco_pipeline.resources.confinement import doors
from aaco_pipeline.resources.confinement.bounds import bounds_for
from aaco_pipeline.resources.confinement.results import CONFINEMENT, Frames, Question
from tests.formats.examples import EXAMPLES


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A raw folder of one small capture, copied by a confined child."""
    folder = tmp_path_factory.mktemp("raw")
    EXAMPLES["rocprofv3_csv"](folder / "in")
    (run,) = doors.discover_runs(folder / "in").runs
    (folder / "raw").mkdir()
    doors.copy_capture(run, folder / "raw", "test")
    return folder / "raw"


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_confined_child_finds_what_this_process_finds(name: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    EXAMPLES[name](tmp_path / "in")
    found = doors.discover_runs(tmp_path / "in")
    assert found == discovery.discover_runs(tmp_path / "in")
    (run,) = found.runs
    assert run.digest == ingestion.capture_digest(run)
    run.digest = None
    assert doors.capture_digest(run) == ingestion.capture_digest(run)


def test_a_confined_child_reads_what_this_process_reads(raw: Path) -> None:
    ours, theirs = ingested.read(raw), doors.open_capture(raw)
    assert theirs.facts() == ours.facts()
    assert set(theirs.tables()) == set(ours.tables())
    assert all(theirs.tables()[name].equals(frame) for name, frame in ours.tables().items())
    assert theirs.evidence("files")[:-1] == ours.evidence("files")
    assert theirs.model() is None
    theirs.require_whole()
    assert doors.open_capture(raw) is theirs, "read once"


@pytest.mark.parametrize("missing", [[], ["no Landlock: Function not implemented", "no network namespace: denied"]])
def test_what_could_not_be_confined_is_said_in_evidence(
    missing: list[str], raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = doors.open_capture(raw)
    monkeypatch.setitem(theirs._answer, "unconfined", missing)
    reason = "; ".join(missing) or None
    assert theirs.evidence("files")[-1] == Evidence(CONFINEMENT, "partial" if missing else "present", reason, "reader")


def test_a_capture_that_a_reader_refuses_is_refused_by_the_door(raw: Path, tmp_path: Path) -> None:
    shutil.copytree(raw, tmp_path / "raw")
    (tmp_path / "raw/files/1_kernel_trace.csv").write_text("Kind,Kernel_Name\n")
    with pytest.raises(CaptureError, match="raw/files: holds 0 runs, expected one"):
        doors.open_capture(tmp_path / "raw").require_whole()


def test_a_table_that_could_not_be_read_is_told_when_it_is_taken(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = doors.open_capture(raw)
    told = {"error": {"kind": "LakeError", "line": "no room", "cause": None}}
    monkeypatch.setitem(theirs._answer, "tables", {**theirs._answer["tables"], "kernels": told})
    assert theirs.tables()["dispatches"].height == 1
    with pytest.raises(LakeError, match="no room"):
        theirs.tables()["kernels"]
    with pytest.raises(LakeError, match="no room"):
        theirs.require_whole()


def test_a_table_that_was_not_left_or_is_none_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "0.arrow").write_bytes(b"not arrow at all")
    (tmp_path / "1.arrow").symlink_to("/etc/passwd")
    (tmp_path / "2.arrow").mkdir()
    question = Question(tmp_path, is_ingested=True, bounds=bounds_for(0))
    frames = Frames(tmp_path, question.folder)
    for name in ("0.arrow", "1.arrow", "2.arrow", "9.arrow"):
        with pytest.raises(CaptureError, match="its reader left no such table"):
            frames[name]


def test_a_link_or_nothing_at_the_door_is_refused_in_this_process(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    for name, words in (("link", "a link; links are not followed"), ("gone", "no such file or folder")):
        with pytest.raises(CaptureError, match=words):
            doors.discover_runs(tmp_path / name)
