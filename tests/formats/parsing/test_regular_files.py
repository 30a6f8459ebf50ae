"""Regular files only, through no link at any depth, and an error names the path that was asked for."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.parsing import regular_files
from aaco_pipeline.formats.parsing.regular_files import entries, files_beneath, is_regular, open_regular, settled


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.symlink_to("/etc/passwd"), "a link; links are not followed"),
        (os.mkfifo, "a named pipe, not a regular file"),
        (lambda path: path.mkdir(), "a folder, not a file"),
    ],
)
def test_what_is_no_regular_file_is_never_opened(make: Callable[[Path], object], words: str, tmp_path: Path) -> None:
    make(tmp_path / "a")
    with pytest.raises(CaptureError, match=words):
        open_regular(tmp_path / "a")
    assert not is_regular(tmp_path / "a")


def test_no_link_above_a_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real/deeper").mkdir(parents=True)
    (tmp_path / "real/deeper/a").write_text("x")
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(CaptureError, match="a link, link, leads to it; links are not followed"):
        open_regular(tmp_path / "link/deeper/a")
    assert not is_regular(tmp_path / "link/deeper/a")
    assert settled(tmp_path / "link/deeper") == tmp_path / "real/deeper", "its user named that one"
    with open_regular(tmp_path / "real/deeper/a") as stream:
        assert stream.read() == b"x"


def test_links_below_a_folder_are_listed_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "in/a").mkdir(parents=True)
    (tmp_path / "in/a/loop").symlink_to(tmp_path / "in")
    (tmp_path / "in/a/file").touch()
    files, others = files_beneath(tmp_path / "in")
    assert files == [tmp_path / "in/a/file"]
    assert [one.path for one in others] == [tmp_path / "in/a/loop"]


def test_an_error_of_the_system_names_the_path_that_was_asked_for(tmp_path: Path) -> None:
    for path in (tmp_path / "gone", tmp_path / "gone/deeper/a"):
        with pytest.raises(FileNotFoundError) as caught:
            open_regular(path)
        assert caught.value.filename == str(path)
    with pytest.raises(FileNotFoundError) as caught:
        entries(tmp_path / "gone")
    assert caught.value.filename == str(tmp_path / "gone")


def test_too_many_files_and_too_deep_folders_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "/".join("abcd")).mkdir(parents=True)
    monkeypatch.setattr(regular_files, "DEEPEST_FOLDER", 2)
    with pytest.raises(CaptureError, match="nested deeper than 2 folders"):
        files_beneath(tmp_path)
    monkeypatch.setattr(regular_files, "MOST_FILES", 1)
    with pytest.raises(CaptureError, match="more than 1 files"):
        files_beneath(tmp_path)
