"""`aaco init`: the package's settings as files to edit, nothing overwritten, and they then hold."""

from pathlib import Path

import pytest

from aaco_pipeline.cli.main import main
from aaco_pipeline.resources.configuration import load_models
from aaco_pipeline.resources.project import DEFAULTS, find_project
from tests.places import ROOT

WRITTEN = [
    "configs/backends.yaml",
    "configs/bottleneck_rules.yaml",
    "configs/counter_sets.yaml",
    "configs/language_model.yaml",
    "configs/models.yaml",
    "configs/nightly.yaml",
    "configs/notifications.yaml",
    "configs/retention.yaml",
    "configs/trusted_folders.yaml",
    "dagster.yaml",
    "workspace.yaml",
]


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_init_writes_the_files_of_the_checkout_byte_for_byte_and_says_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init"]) == 0
    assert files(tmp_path) == {name: (ROOT / name).read_bytes() for name in WRITTEN}
    assert not any(path.is_symlink() for path in tmp_path.rglob("*"))
    *names, last = capsys.readouterr().out.splitlines()
    assert names == WRITTEN
    assert last.endswith(" Next: aaco run --model squeezenet")


@pytest.mark.parametrize("name", WRITTEN)
def test_the_checkout_shows_the_packages_files_by_relative_links(name: str) -> None:
    link = ROOT / name
    assert link.is_symlink()
    assert not link.readlink().is_absolute()
    assert link.resolve() == DEFAULTS / name
    assert sorted(str(path.relative_to(DEFAULTS)) for path in DEFAULTS.rglob("*") if path.is_file()) == WRITTEN


def test_init_makes_the_folder_it_is_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "my work" / "here"
    assert main(["init", str(folder)]) == 0
    assert sorted(files(folder)) == WRITTEN
    assert capsys.readouterr().out.endswith(f"Next: cd '{folder}' && aaco run --model squeezenet\n")


def test_init_overwrites_nothing_and_names_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "configs").mkdir()
    own = {"dagster.yaml": b"mine", "configs/models.yaml": b"mine, too"}
    for name, content in own.items():
        (tmp_path / name).write_bytes(content)
    assert main(["init", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert all(str(tmp_path / name) in line for name in own)
    assert printed.out == ""
    assert files(tmp_path) == own


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["init", str(tmp_path / "file" / "below")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(tmp_path / "file") in line


def test_what_a_person_writes_then_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init"]) == 0
    (tmp_path / "configs" / "models.yaml").write_text("models: {mine: {path: mine.onnx}}\n")
    project = find_project(start=tmp_path / "configs")
    assert project.root == tmp_path
    assert list(load_models(project.configs / "models.yaml")) == ["mine"]
    assert project.settings("dagster.yaml") == tmp_path / "dagster.yaml"
