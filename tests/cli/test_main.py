"""The command as a whole: help, version, where the lake is, JSON everywhere, and how errors are shown."""

import errno
import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from shutil import copyfile
from typing import Final

import pytest

from aaco_pipeline import __version__
from aaco_pipeline.cli.commands import cli
from aaco_pipeline.cli.main import main
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.project import LAKE_VARIABLE, Project
from tests.cli.commands import COMMANDS
from tests.cli.conftest import Aaco, Refused

#: For every command that shows data, arguments with which it only looks.
LOOKS: Final = {
    "ls": (),
    "show": (),
    "check": (),
    "report": (),
    "sql": ("SELECT 1 AS one",),
    "tables": (),
    "info": (),
    "doctor": (),
    "alerts": (),
}
#: Commands whose JSON is tested where the command is: they change the lake, take two sessions, or show no data.
ELSEWHERE: Final = {
    *("record", "amend", "diff", "run", "sweep", "capture", "ingest", "calibrate", "rm", "gc", "compact"),
    *("reanalyse", "ui", "init", "quiet", "perfetto", "compare", "optimize", "replay", "bisect", "nightly"),
    "baseline",
}


def test_help_lists_every_command_and_every_exit_code(aaco: Aaco) -> None:
    answer = aaco("--help")
    assert (answer.returncode, answer.stderr) == (0, "")
    for command in COMMANDS:
        assert f"\n  {command} " in answer.stdout
    text = " ".join(answer.stdout.split())
    for code in (
        *("0 done", "1 internal", "2 bad", "3 model", "4 hardware", "5 reg", "6 cap", "7 inc", "8 lake"),
        *("9 the rec", "130"),
    ):
        assert code in text
    assert aaco("-h").stdout == answer.stdout


def test_without_arguments_the_help_is_shown(aaco: Aaco) -> None:
    answer = aaco()
    assert (answer.returncode, answer.stderr, answer.stdout) == (0, "", aaco("--help").stdout)


def test_version_is_the_packages(aaco: Aaco) -> None:
    answer = aaco("--version")
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, f"aaco, version {__version__}\n", "")


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_and_each_of_its_options_is_described(aaco: Aaco, command: str) -> None:
    answer = aaco(command, "--help")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.startswith(f"Usage: aaco {command} ")
    assert COMMANDS[command].help
    assert ("--lake PATH" in answer.stdout) == (
        command not in ("init", "baseline", "replay", "quiet")
    )  # no lake, or its commands have it


def test_no_command_that_shows_data_is_left_out_below() -> None:
    assert set(COMMANDS) == {*LOOKS, *ELSEWHERE}


@pytest.mark.parametrize("form", [("--json",), ("--format", "json")])
@pytest.mark.parametrize("command", LOOKS)
def test_every_command_that_shows_data_prints_one_json_document(
    aaco: Aaco, command: str, form: tuple[str, ...]
) -> None:
    answer = aaco(command, *LOOKS[command], *form)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert isinstance(json.loads(answer.stdout), list | dict)


def test_lake_may_be_given_before_and_after_the_command_and_beats_the_environment(
    aaco: Aaco, measured: Project, tmp_path: Path
) -> None:
    other = Project(measured.root, tmp_path / "other", measured.dagster_home)
    known = TraceLake(measured.lake).sessions()
    for arguments in (("--lake", str(measured.lake), "ls"), ("ls", "--lake", str(measured.lake))):
        rows = json.loads(aaco(*arguments, "--json", project=other).stdout)
        assert sorted(row["session_id"] for row in rows) == known
    assert json.loads(aaco("ls", "--json", project=other).stdout) == []


def test_the_lake_is_else_beside_the_nearest_dagster_yaml_upward(
    measured: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copyfile(measured.root / "dagster.yaml", tmp_path / "dagster.yaml")
    (tmp_path / "tracelake").symlink_to(measured.lake)
    (tmp_path / "deep" / "deeper").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "deep" / "deeper")
    assert main(["ls"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("2 sessions, ")
    assert last.endswith(f" in {tmp_path / 'tracelake'}")


@pytest.mark.parametrize(
    "command", [("ls",), ("show",), ("report",), ("sql", "SELECT 1"), ("rm", "latest"), ("doctor", "--mend")]
)
def test_where_no_lake_is_a_reading_command_says_so_in_one_line_and_makes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*command]) == 2
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    for part in ("aaco: no lake in ", str(tmp_path), "`aaco run`", "`aaco ingest`", "--lake", LAKE_VARIABLE):
        assert part in line
    assert printed.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [("info",), ("tables", "dispatches"), ("run", "--model", "nonsense")])
def test_what_needs_no_lake_and_what_fails_before_it_begins_makes_nothing_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*command]) == (2 if command[0] == "run" else 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("nonsense",), ("'nonsense'",)),
        (("run",), ("--model",)),
        (("sql",), ("STATEMENT",)),
        (("rm",), ("SESSION",)),
        (("ls", "-n", "0"), ("-n",)),
        (("ls", "--format", "xml"), ("--format", "xml")),
        (("ui", "--port", "99999"), ("--port",)),
        (("ls", "--lake"), ("--lake",)),
    ],
)
def test_wrong_usage_exits_with_2_and_names_what_was_wrong(
    refused: Refused, arguments: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    line = refused(2, *arguments)
    for part in parts:
        assert part in line


@pytest.mark.parametrize(
    "error",
    [
        sqlite3.OperationalError("database or disk is full"),
        sqlite3.OperationalError("disk I/O error"),
        OSError(errno.ENOSPC, "No space left on device"),
    ],
)
def test_a_full_disk_is_no_bug_wherever_it_is_met(
    error: Exception, aaco: Aaco, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: TraceLake, **_: object) -> None:
        raise RuntimeError("as the storage below Dagster wraps it") from error

    monkeypatch.setattr(TraceLake, "catalogue", broken)
    answer = aaco("ls")
    assert (answer.returncode, answer.stdout) == (8, "")
    assert answer.stderr.startswith("aaco: a disk is full or fails; make room")
    assert answer.stderr.count("\n") == 1


def test_a_bug_exits_with_1_shows_its_traceback_and_says_that_it_is_one(
    aaco: Aaco, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: TraceLake, **_: object) -> None:
        raise ZeroDivisionError("a bug for the test")

    monkeypatch.setattr(TraceLake, "catalogue", broken)
    answer = aaco("ls")
    assert (answer.returncode, answer.stdout) == (1, "")
    assert "ZeroDivisionError: a bug for the test" in answer.stderr
    assert answer.stderr.splitlines()[-1].startswith("aaco: internal fault: this is a bug")


def test_an_interrupt_exits_with_130_without_a_traceback(aaco: Aaco, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: TraceLake, **_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(TraceLake, "catalogue", interrupted)
    answer = aaco("ls")
    assert (answer.returncode, answer.stdout) == (130, "")
    assert answer.stderr.strip() == "aaco: interrupted; nothing is half-published"


def test_output_that_nobody_reads_to_its_end_is_no_error(measured: Project) -> None:
    code = "from aaco_pipeline.cli.main import entry; entry()"
    command = [sys.executable, "-P", "-c", code, "--lake", str(measured.lake), "sql", "SELECT * FROM range(200000)"]
    with subprocess.Popen(
        [*command, "--format", "csv"], cwd=measured.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "range\n"
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (("--help",), {"dagster", "polars", "duckdb", "numpy", "onnxruntime", "onnx", "rich"}),
        (("ls",), {"dagster", "polars", "onnxruntime", "onnx"}),
        (("show",), {"dagster", "polars", "onnxruntime", "onnx"}),
        (("sql", "SELECT * FROM latest_sessions"), {"dagster", "polars", "onnxruntime", "onnx"}),
    ],
)
def test_looking_imports_no_heavy_package(measured: Project, arguments: tuple[str, ...], absent: set[str]) -> None:
    code = (
        "import sys; from aaco_pipeline.cli.main import main; assert main(sys.argv[2:]) == 0; "
        "sys.exit(', '.join(set(sys.argv[1].split(',')) & sys.modules.keys()) or 0)"
    )
    command = [sys.executable, "-P", "-c", code, ",".join(absent), "--lake", str(measured.lake), *arguments]
    done = subprocess.run(command, cwd=measured.root, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_error_that_is_its_own_context_is_reported_and_not_looked_into_for_ever(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = RuntimeError("one"), RuntimeError("two")
    first.__cause__, second.__context__ = second, first

    def fails(*arguments: object, **more: object) -> None:
        raise first

    monkeypatch.setattr(cli, "main", fails)
    assert main([]) == 1
    assert "internal fault" in capsys.readouterr().err
