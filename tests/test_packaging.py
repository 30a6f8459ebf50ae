"""The wheel: it holds the package and no more, and from it alone every command works in an empty folder.

Also what people who join find at the top of the repository: it says and runs what is there.
"""

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
import yaml
from hypothesis import settings

from tests.places import ROOT

ENTRY: Final = "from aaco_pipeline.cli.main import entry; entry()"
#: Runs commands one after the other in one process, loads the definitions, and writes what each printed.
EACH: Final = """
import contextlib, io, json, sys
from aaco_pipeline.cli.main import main
told = []
for command in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(command) == 0, command
    told.append(printed.getvalue())
import dagster as dg, aaco_pipeline.definitions as definitions
dg.Definitions.validate_loadable(definitions.defs)
json.dump([*told, str(definitions)], sys.stdout)
"""
KERNEL_TRACE: Final = (
    '"Kind","Agent_Id","Queue_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id",'
    '"Start_Timestamp","End_Timestamp","Private_Segment_Size","Group_Segment_Size","Workgroup_Size_X",'
    '"Workgroup_Size_Y","Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"\n'
    '"KERNEL_DISPATCH",1,1,3,1,1,"vector_add(float*)",1,1000,21000,0,0,64,1,1,1024,1,1\n'
    '"KERNEL_DISPATCH",1,1,3,2,1,"vector_add(float*)",2,30000,52000,0,0,64,1,1,1024,1,1\n'
)

Run = Callable[..., str]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built as `pip wheel` builds it."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, capture_output=True, timeout=120, check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder the wheel is unpacked in. A wheel without compiled parts is installed when it is unpacked."""
    folder = tmp_path_factory.mktemp("site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture
def run(installed: Path, tmp_path: Path) -> Run:
    """Call Python in an empty folder, where the package is the wheel's; what it printed."""
    folder = tmp_path / "empty"
    folder.mkdir()

    def call(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-P", "-c", *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(installed)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return call


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {info.filename: info.file_size for info in archive.infolist()}
    package = {
        path.relative_to(ROOT).as_posix(): path.stat().st_size
        for path in (ROOT / "aaco_pipeline").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name: size for name, size in held.items() if ".dist-info/" not in name} == package
    assert {"aaco_pipeline/py.typed", "aaco_pipeline/defaults/dagster.yaml"} <= package.keys()
    assert {name.partition("/")[2] for name in held if ".dist-info/" in name} == {
        *("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    }


def test_from_the_wheel_alone_an_empty_folder_is_enough(run: Run, installed: Path, tmp_path: Path) -> None:
    here = tmp_path / "empty"
    run(ENTRY, "run", "--model", "squeezenet", "--iterations", "3", "--warmup", "1")
    assert [path.name for path in here.iterdir()] == ["tracelake"]
    capture = tmp_path / "capture"
    capture.mkdir()
    (capture / "7_kernel_trace.csv").write_text(KERNEL_TRACE)
    count = "SELECT count(DISTINCT session_id) AS n, count(*) > 2 AS many FROM dispatches"
    commands = [["ingest", str(capture)], ["ls"], ["show", "latest"], ["sql", count], ["init"]]
    told = dict(
        zip(
            ("ingest", "ls", "show", "sql", "init", "loading"), json.loads(run(EACH, json.dumps(commands))), strict=True
        )
    )
    assert "1 new session of 1 run" in told["ingest"]
    assert "2 sessions, " in told["ls"]
    assert "vector_add" in told["show"]
    assert told["sql"].split()[-4:-2] == ["2", "True"]
    assert (here / "configs" / "counter_sets.yaml").is_file()
    assert str(installed) in told["loading"]


def test_hosted_ci_runs_what_everyone_runs_in_shards_that_leave_nothing_out() -> None:
    job = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]["test"]
    (command,) = [step["run"] for step in job["steps"] if "run" in step]
    assert command.split()[0] == ".ci/run"
    shards = job["strategy"]["matrix"]["shard"]
    assert shards == list(range(1, len(shards) + 1))
    assert f"--splits {len(shards)} " in command
    assert "--group ${{ matrix.shard }}" in command
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_ci_runs_the_same_examples_each_time_and_the_night_others() -> None:
    def recipe(target: str) -> str:
        return subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    ci, nightly = settings.get_profile("ci"), settings.get_profile("nightly")
    assert (ci.derandomize, nightly.derandomize) == (True, False)
    assert (ci.deadline, nightly.deadline) == (None, None)
    assert ci.max_examples < nightly.max_examples
    assert settings().max_examples in (ci.max_examples, nightly.max_examples)  # whatever $CI selected before
    assert "--hypothesis-profile=ci" in recipe("test")
    assert "-m ''" not in recipe("test")
    assert recipe("nightly-tests").count("-m '' --hypothesis-profile=nightly") == 2


def test_hooks_before_a_commit_download_nothing_and_do_what_make_check_does() -> None:
    repositories = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [one["repo"] for one in repositories] == ["local"]
    hooks = repositories[0]["hooks"]
    assert {hook["language"] for hook in hooks} == {"system"}
    assert [hook["entry"].removesuffix(" --fix") for hook in hooks] == ["ruff check", "ruff format", "mypy"]


def test_every_benchmark_is_listed_with_how_to_run_it() -> None:
    for room in ("accuracy", "performance", "reliability", "live"):
        folder = ROOT / "benchmarks" / room
        scripts = [*folder.glob("*.py"), *(path.parent for path in folder.glob("*/__main__.py"))]
        named = {path.stem for path in scripts if path.is_dir() or "__main__" in path.read_text()}
        assert named <= set(re.findall(r"`(\w+)", (folder / "README.md").read_text())), room
