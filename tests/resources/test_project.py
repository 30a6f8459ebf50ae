"""Locations of the lake and the instance, seen from any folder with any variables set."""

from pathlib import Path

import pytest

from aaco_pipeline.errors import UsageError
from aaco_pipeline.resources.project import DEFAULTS, HOME_VARIABLE, LAKE_VARIABLE, Project, find_project


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project's folder."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "dagster.yaml").touch()
    return folder


def test_lake_and_instance_lie_beside_the_nearest_settings_upward(root: Path) -> None:
    deep = root / "a" / "b"
    deep.mkdir(parents=True)
    assert find_project(start=deep) == Project(root, root / "tracelake", root / ".dagster_home")


def test_the_nearest_settings_win_over_those_above(root: Path) -> None:
    inner = root / "inner"
    inner.mkdir()
    (inner / "dagster.yaml").touch()
    assert find_project(start=inner).root == inner


def test_a_folder_called_as_the_settings_or_a_file_called_as_the_lake_is_neither(root: Path) -> None:
    inner = root / "inner"
    (inner / "dagster.yaml").mkdir(parents=True)
    (inner / "tracelake").touch()
    assert find_project(start=inner).root == root


def test_a_lake_alone_makes_a_project_of_its_folder_too(root: Path) -> None:
    deep = root / "inner" / "deep"
    deep.mkdir(parents=True)
    (root / "inner" / "tracelake").mkdir()
    assert find_project(start=deep) == Project(
        root / "inner", root / "inner" / "tracelake", root / "inner" / ".dagster_home"
    )


def test_the_argument_wins_over_the_variable_and_the_variable_over_the_default(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_project(start=root).lake == root / "tracelake"
    monkeypatch.setenv(LAKE_VARIABLE, str(tmp_path / "by_variable"))
    assert find_project(start=root).lake == tmp_path / "by_variable"
    assert find_project(tmp_path / "by_argument", root).lake == tmp_path / "by_argument"


def test_a_lake_elsewhere_has_its_instance_inside_it(root: Path, tmp_path: Path) -> None:
    assert find_project(tmp_path / "other", root).dagster_home == tmp_path / "other" / ".dagster_home"


def test_the_default_lake_named_outright_keeps_its_instance(root: Path) -> None:
    """One lake, one instance, whichever way one comes to it."""
    assert find_project(root / "tracelake", root) == find_project(start=root)
    assert find_project(root / "tracelake", root.parent).dagster_home == find_project(start=root).dagster_home


def test_the_variable_for_dagsters_home_wins(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    assert find_project(start=root).dagster_home == tmp_path / "home"
    assert find_project(tmp_path / "other", root).dagster_home == tmp_path / "home"


def test_paths_are_absolute_and_a_tilde_is_home(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(root)
    assert find_project("relative").lake == root / "relative"
    assert find_project("~/mine").lake == tmp_path / "mine"


@pytest.mark.parametrize("variable", [LAKE_VARIABLE, HOME_VARIABLE])
def test_an_empty_variable_is_as_good_as_none(variable: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "")
    assert find_project(start=root) == Project(root, root / "tracelake", root / ".dagster_home")


def test_without_a_lake_the_error_says_where_none_is_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"no lake in {tmp_path} .*`aaco run` .*--lake PATH or {LAKE_VARIABLE}"):
        find_project(start=tmp_path)


def test_where_a_lake_may_be_made_it_is_here_with_its_instance_beside_it(tmp_path: Path) -> None:
    assert find_project(start=tmp_path, new=True) == Project(
        tmp_path, tmp_path / "tracelake", tmp_path / ".dagster_home"
    )


def test_a_lake_upward_wins_over_a_new_one_here(root: Path) -> None:
    deep = root / "deep"
    deep.mkdir()
    assert find_project(start=deep, new=True) == find_project(start=root)


def test_a_projects_own_settings_hold_and_else_the_packages(root: Path) -> None:
    project = find_project(start=root)
    assert project.configs == root / "configs"
    assert project.settings("dagster.yaml") == root / "dagster.yaml"
    assert project.settings("workspace.yaml") == DEFAULTS / "workspace.yaml"


@pytest.mark.parametrize("new", [False, True])
def test_finding_a_project_makes_nothing(root: Path, new: bool) -> None:
    find_project(start=root, new=new)
    assert [path.name for path in root.iterdir()] == ["dagster.yaml"]
