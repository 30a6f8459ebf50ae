"""`aaco record`: what it tells, what it leaves, and its exit codes."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Aaco, Refused


def test_a_recording_is_left_where_it_is_asked_for(aaco: Aaco, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    aaco("record", "--runs", "1", "--workload", "small", "--output", str(folder), "--", "true")
    capture = json.loads((folder / "capture.json").read_text())
    assert capture["workload"] == {"kind": "program", "name": "small", "command": ["true"]}


def test_the_recorder_is_written_as_one_file(aaco: Aaco, tmp_path: Path) -> None:
    told = aaco("record", "--archive", str(tmp_path / "aaco-record.pyz")).stdout
    assert "python3 aaco-record.pyz --output FOLDER -- PROGRAM" in told
    assert (tmp_path / "aaco-record.pyz").is_file()


@pytest.mark.parametrize(
    ("code", "arguments", "words"),
    [
        (2, (), "no program; give it after --"),
        (2, ("--", "no-such-program"), "no such program in PATH"),
        (2, ("--runs", "0", "--", "true"), "runs is 0"),
        (2, ("--archive", "x.pyz", "--", "true"), "leave the program out"),
        (2, ("--trace", "off", "--counters", "basic", "--", "true"), "the traced run's profiler counts"),
        (2, ("--count-first", "3", "--", "true"), "give --counters, too"),
    ],
)
def test_what_cannot_be_recorded_is_refused_in_one_line(
    code: int, arguments: tuple[str, ...], words: str, refused: Refused
) -> None:
    assert words in refused(code, "record", *arguments)


def test_a_program_that_fails_is_kept_and_told_by_the_exit_code(aaco: Aaco, tmp_path: Path) -> None:
    told = aaco("record", "--output", str(tmp_path / "made"), "--", "sh", "-c", "exit 9")
    assert (told.returncode, told.stderr.splitlines()[-1]) == (
        3,
        "aaco: sh: run_1 ended with status 9; its partial recording is kept",
    )
    assert json.loads((tmp_path / "made/run_1/run.json").read_text())["status"] == 9
