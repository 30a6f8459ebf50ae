"""What the tests of the command share: one lake that `aaco run` filled, copies of it, and calling the command."""

import io
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from pathlib import Path
from shutil import copyfile, copytree
from typing import Final

import pytest

import aaco_pipeline
from aaco_pipeline.cli.main import main
from aaco_pipeline.lake.files import TEMPORARY_PREFIX
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.doctor import examine
from aaco_pipeline.resources.project import HOME_VARIABLE, LAKE_VARIABLE, Project

ROOT: Final = Path(aaco_pipeline.__file__).parents[1]
RUNS: Final = (
    ("--model", "squeezenet", "--iterations", "5", "--warmup", "1"),
    ("--model", "control_flow", "--iterations", "5", "--warmup", "1"),
)

Aaco = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory, cache_folder: Path) -> Project:
    """A lake with a session of squeezenet and a later one of control_flow, made by `aaco run`. Look, do not touch."""
    folder = tmp_path_factory.mktemp("measured")
    project = Project(ROOT, folder / "lake", folder / "home")
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()):
        patch.chdir(ROOT)
        patch.setenv(LAKE_VARIABLE, str(project.lake))
        patch.setenv(HOME_VARIABLE, str(project.dagster_home))
        for arguments in RUNS:
            assert main(["run", *arguments]) == 0
    return project


@pytest.fixture
def copied(measured: Project, tmp_path: Path) -> Project:
    """The same lake at another place, to do anything with."""
    project = Project(ROOT, tmp_path / "lake", tmp_path / "home")
    copytree(measured.lake, project.lake)
    return project


@pytest.fixture
def elsewhere(copied: Project, tmp_path: Path) -> Project:
    """The copied lake, with a project folder of its own whose registries a test may write."""
    root = tmp_path / "project"
    (root / "configs").mkdir(parents=True)
    copyfile(ROOT / "dagster.yaml", root / "dagster.yaml")
    return Project(root, copied.lake, copied.dagster_home)


@pytest.fixture
def aaco(measured: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Aaco:
    """Call the command in this process, by default on `measured`; what it returned and printed."""

    def call(*arguments: str, project: Project = measured) -> "subprocess.CompletedProcess[str]":
        monkeypatch.chdir(project.root)
        monkeypatch.setenv(LAKE_VARIABLE, str(project.lake))
        monkeypatch.setenv(HOME_VARIABLE, str(project.dagster_home))
        capsys.readouterr()
        code = main(list(arguments))
        printed = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, printed.out, printed.err)

    return call


@pytest.fixture
def refused(aaco: Aaco) -> Callable[..., str]:
    """Call the command, expecting the exit code and one line on standard error; that line without its `aaco: `."""

    def call(code: int, *arguments: str, **project: Project) -> str:
        answer = aaco(*arguments, **project)
        lines = answer.stderr.splitlines()
        assert (answer.returncode, answer.stdout, len(lines)) == (code, "", 1), answer
        assert lines[0].startswith("aaco: ")
        return lines[0].removeprefix("aaco: ")

    return call


@pytest.fixture
def untouched(aaco: Aaco) -> Callable[[Project], AbstractContextManager[None]]:
    """A block that must leave the lake as it was: same sessions, nothing to mend, no leftovers."""

    @contextmanager
    def watch(project: Project) -> Iterator[None]:
        lake = TraceLake(project.lake)
        before = aaco("ls", "--json", project=project).stdout
        yield
        assert aaco("ls", "--json", project=project).stdout == before
        assert examine(lake, pytest.fail) == []
        for folder in ("raw", "launches", "manifests"):
            assert list((project.lake / folder).glob(f"{TEMPORARY_PREFIX}*")) == []
        assert lake.requests() == []

    return watch
