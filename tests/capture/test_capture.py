"""The one door to what was recorded: the right kind for a folder, opened once for one content, and its digests."""

import shutil
from pathlib import Path
from typing import BinaryIO

import pytest

from aaco_pipeline import capture
from aaco_pipeline.capture import content_digest, file_digests, open_capture, raw_bytes
from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.parsing.regular_files import open_regular
from aaco_pipeline.lake.store import TraceLake
from tests.conftest import CapturedLake
from tests.places import SHARED
from tests.sessions import taken_in, unlisted


@pytest.fixture
def raw(captured: CapturedLake, tmp_path: Path) -> Path:
    """A measured session's raw folder, to do anything with."""
    return unlisted(shutil.copytree(captured.lake.raw(captured.sessions["control_flow"]), tmp_path / "raw"))


def test_a_folder_is_opened_as_the_kind_that_it_is(raw: Path, empty_lake: TraceLake) -> None:
    assert open_capture(raw).facts().kind == "measured"
    session = taken_in(empty_lake, SHARED / "gpu_sessions/traces/two_streams_overlap.json.gz")
    assert open_capture(empty_lake.raw(session)).facts().kind == "ingested"


def test_the_same_content_is_opened_once_and_another_anew(raw: Path) -> None:
    first = open_capture(raw)
    assert open_capture(raw) is first
    (raw / "another.json").write_text("{}")
    assert open_capture(raw) is not first


def test_a_capture_whose_first_place_is_gone_is_read_at_the_other(raw: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(raw, tmp_path / "copy")
    open_capture(raw)
    shutil.rmtree(raw)
    assert open_capture(copy).tables()["dispatches"].height > 0
    assert open_capture(copy).tables()["sessions"].height == 1


def test_an_ingested_capture_is_parsed_once_wherever_it_then_lies(empty_lake: TraceLake, tmp_path: Path) -> None:
    raw = empty_lake.raw(taken_in(empty_lake, SHARED / "gpu_sessions/traces/two_streams_overlap.json.gz"))
    first = open_capture(raw)
    first.tables()
    moved = raw.rename(tmp_path / "moved")
    assert open_capture(moved) is first
    assert first.tables()["dispatches"].height > 0


def test_without_a_folder_there_is_no_capture_and_the_error_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="nowhere: no capture here; ingest or measure the session again"):
        open_capture(tmp_path / "nowhere")


def test_a_folder_that_holds_no_capture_is_a_capture_error(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"capture\.json"):
        open_capture(tmp_path)


def test_the_digest_is_of_names_and_content(raw: Path) -> None:
    before = content_digest(raw)
    assert [name for name, _ in file_digests(raw)] == sorted(path.name for path in raw.iterdir())
    assert raw_bytes(raw) == sum(path.stat().st_size for path in raw.iterdir())
    (raw / "host.json").rename(raw / "hosts.json")
    assert content_digest(raw) != before
    (raw / "hosts.json").rename(raw / "host.json")
    assert content_digest(raw) == before
    (raw / "host.json").write_bytes((raw / "host.json").read_bytes() + b" ")
    assert content_digest(raw) != before


def test_a_file_that_did_not_change_is_read_once(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def counting(path: Path) -> BinaryIO:
        opened.append(path.name)
        return open_regular(path)

    monkeypatch.setattr(capture, "_DIGESTS", {})
    monkeypatch.setattr(capture, "open_regular", counting)
    assert content_digest(raw) == content_digest(raw)
    assert sorted(opened) == sorted(path.name for path in raw.iterdir())
