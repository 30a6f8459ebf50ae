"""The workflow that docs/ci.md shows: YAML with the steps that it promises, whose every `aaco` line is a command.

Everything a reading command prints has a total order: the same bytes each time, whatever runs in parallel.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any, Final

import click
import pytest
import yaml

from aaco_pipeline.cli.commands import cli
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.project import HOME_VARIABLE, LAKE_VARIABLE, Project
from tests.cli.commands import COMMANDS
from tests.cli.conftest import Aaco
from tests.places import ROOT

PAGE = (ROOT / "docs" / "ci.md").read_text("utf-8")


def steps() -> list[dict[str, Any]]:
    (shown,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    workflow = yaml.safe_load(shown)
    assert workflow[True] == "pull_request"  # YAML reads `on` as a truth
    (job,) = workflow["jobs"].values()
    found: list[dict[str, Any]] = job["steps"]
    return found


def commands() -> list[list[str]]:
    lines = [line for step in steps() for line in step.get("run", "").splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("aaco ")]


def test_every_command_of_the_workflow_is_one() -> None:
    assert [arguments[0] for arguments in commands()] == ["compare", "report", "report"]
    for arguments in commands():
        name, command, rest = cli.resolve_command(click.Context(cli, info_name="aaco"), arguments)
        assert command is not None
        command.make_context(name, rest)


def test_what_is_kept_is_what_was_written() -> None:
    written = {arguments[arguments.index("--output") + 1] for arguments in commands()}
    (kept,) = (step["with"]["path"].split() for step in steps() if "upload-artifact" in step.get("uses", ""))
    assert written == {"verdict.md", "page/verdict.html", "page/junit.xml"}
    assert kept == ["verdict.json", "page/"]
    (told,) = (step for step in steps() if "GITHUB_STEP_SUMMARY" in step.get("run", ""))
    assert "cat verdict.md" in told["run"]
    assert told["if"].startswith("always()")  # a regression ends the step before it


def test_the_page_names_every_form() -> None:
    option = next(one for one in COMMANDS["compare"].params if one.name == "form" and one.type.name == "choice")
    assert isinstance(option.type, click.Choice)
    named = re.findall(r"^\| `([a-z-]+)` \|", PAGE.split("## ")[0], re.MULTILINE)
    assert sorted(named) == sorted({*option.type.choices, "--format"})


#: Polars' and DuckDB's threads and the seed of Python's sets in a process beside this one, which has as many as the
#: machine and a seed by chance. In each, every document is read at least twice, as every one has two forms or more.
POLARS_THREADS, DUCKDB_THREADS, SEED = 1, 3, 3
WIDTH: Final = "160"
#: Runs the commands on its standard input and writes what each printed, with the file that it wrote.
READER: Final = """
import contextlib, io, json, pathlib, sys
import duckdb
connect = duckdb.connect
def connected(*arguments, config, **more):
    return connect(*arguments, config={**config, "threads": int(sys.argv[1])}, **more)
duckdb.connect = connected
from aaco_pipeline.cli.main import main
told = []
for command in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = main(command)
    page = pathlib.Path(command[-1]).read_text() if "--output" in command else ""
    told.append([code, printed.getvalue() + page])
json.dump(told, sys.stdout)
"""


@pytest.fixture
def ingested(aaco: Aaco, copied: Project, tmp_path: Path) -> Project:
    """The measured sessions, and a capture in which kernels tie in time, name and place."""
    capture = tmp_path / "capture"
    capture.mkdir()
    head = '"Kind","Agent_Id","Queue_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id",'
    rows = (
        f'"KERNEL_DISPATCH","Agent {place % 2 + 1}",1,{place % 3},{place},{place % 7},"scale<{place % 7}>(float*)",'
        f"{place},{1000 * (place // 7)},{1000 * (place // 7) + 500},64,640\n"
        for place in range(1, 141)
    )
    heading = head + '"Start_Timestamp","End_Timestamp","Workgroup_Size_X","Grid_Size_X"\n'
    (capture / "out_kernel_trace.csv").write_text(heading + "".join(rows))
    assert aaco("ingest", str(capture), "--workload", "ties", project=copied).returncode == 0
    return copied


@pytest.mark.parametrize("number", [2, pytest.param(1, marks=pytest.mark.nightly)], ids=["ties", "measured"])
def test_every_reading_command_prints_the_same_bytes_each_time(
    number: int, aaco: Aaco, ingested: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = (lake := TraceLake(ingested.lake)).sessions()[number]
    page = tmp_path / "report.html"
    commands = [["ls"], ["ls", "--json"], ["tables"], ["tables", "--json"], ["tables", "dispatches"]]
    commands += [["sql", "SELECT * FROM kernel_history"], ["sql", "SELECT * FROM latest_sessions", "--format", "csv"]]
    kernel = str(lake.read("kernels", session).item(0, "kernel_id"))
    shown: tuple[list[str], ...] = ([], ["--critical-path"], ["--kernel", kernel])
    commands += [["show", session, *more, *form] for more in shown for form in ([], ["--json"])]
    commands += [["report", session, "--format", form] for form in ("markdown", "json")]
    commands += [["report", session, "--output", str(page)]]
    before = copytree(ingested.lake, tmp_path / "before")
    environment = {"POLARS_MAX_THREADS": str(POLARS_THREADS), "PYTHONHASHSEED": str(SEED), "COLUMNS": WIDTH}
    environment |= {LAKE_VARIABLE: str(ingested.lake), HOME_VARIABLE: str(ingested.dagster_home)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", READER, str(DUCKDB_THREADS)],
        input=json.dumps(commands),
        cwd=ingested.root,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    rmtree(ingested.lake)  # with the page that was kept, so that this process makes it, too
    before.rename(ingested.lake)
    monkeypatch.setenv("COLUMNS", WIDTH)
    for command, (code, text) in zip(commands, json.loads(done.stdout), strict=True):
        here = aaco(*command, project=ingested)
        written = page.read_text() if "--output" in command else ""
        assert (code, here.returncode) == (0, 0), (command, text, here.stderr)
        assert here.stdout + written == text, command
