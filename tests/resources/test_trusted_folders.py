"""What a run of Dagster may read: files of the folders that are named, whatever is done to get at others."""

from pathlib import Path

import pytest

from aaco_pipeline.errors import UsageError
from aaco_pipeline.resources.trusted_folders import FILE, trusted_folders
from benchmarks.reliability.hostile_paths import CASES, Kind, laid_out, made

TRIES = 300


@pytest.mark.parametrize("kind", ["source", "harness"])
@pytest.mark.parametrize("name", CASES)
def test_a_hostile_path_gives_nothing_from_outside(name: str, kind: Kind, tmp_path: Path) -> None:
    place = laid_out(tmp_path / "place", kind, tmp_path / "ran")
    trusted = trusted_folders(place.root / "configs")
    with made(CASES[name], place) as path:
        for _ in range(TRIES if "swapped" in name else 1):
            try:
                content = trusted.read(trusted.locate(path))
            except (UsageError, FileNotFoundError) as error:
                assert "\n" not in str(error)
            else:
                assert content == place.inside
                assert "swapped" in name


def test_a_name_that_leads_elsewhere_after_it_was_located_is_refused(tmp_path: Path) -> None:
    place = laid_out(tmp_path / "place", "source", tmp_path / "ran")
    trusted = trusted_folders(place.root / "configs")
    path = trusted.locate(str(place.harmless("sub")))
    place.trusted.joinpath("sub").rename(place.root / "aside")
    place.link(place.hostile.parent, "sub")
    with pytest.raises(UsageError, match="a link, sub, leads to it"):
        trusted.read(path)


def test_a_refusal_names_the_path_the_file_and_what_to_add(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        trusted_folders(tmp_path).locate("/etc/passwd")
    said = str(caught.value)
    assert said.startswith("'/etc/passwd' ")
    assert f"{tmp_path / FILE} names these folders" in said
    assert "add a line `- FOLDER` under `folders:`" in said


def test_what_lies_in_a_folder_is_read_by_its_path_and_by_its_name(tmp_path: Path) -> None:
    place = laid_out(tmp_path / "place", "source", tmp_path / "ran")
    path = place.harmless("sub")
    (tmp_path / "shown").symlink_to(place.trusted)
    (place.root / "configs" / FILE).write_text(f"folders:\n  - {tmp_path / 'shown'}\n")
    trusted = trusted_folders(place.root / "configs")
    assert trusted.read(trusted.locate(f"sub/{path.name}")) == place.inside
    assert trusted.read(trusted.locate(str(tmp_path / "shown" / "sub" / path.name))) == place.inside
    with pytest.raises(UsageError):
        trusted.locate(str(path))  # the folder is named by its link alone


def test_without_a_file_the_samples_alone_are_allowed(tmp_path: Path) -> None:
    trusted = trusted_folders(tmp_path)
    sample = trusted.locate("row_dot.hip")
    assert b"__global__" in trusted.read(sample)
    assert trusted.read(trusted.locate(str(sample.with_name("row_dot_harness.py"))))
    assert len(trusted.folders) == 1


@pytest.mark.parametrize("text", ["folders: /tmp", "folders: [1]", "folders: ['']", "folder: []"])
def test_a_wrong_file_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(UsageError, match=FILE) as caught:
        trusted_folders(tmp_path)
    assert "\n" not in str(caught.value)
