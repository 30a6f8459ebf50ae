"""`aaco record`: what it tells, what it leaves, and its exit codes.

`aaco capture --print`: the lines it prints are commands for a shell, and say what to do with what they leave.
"""

import json
import shlex
import subprocess
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


def commands(printed: str) -> list[list[str]]:
    """The lines that are no comments, as a shell splits them."""
    return [shlex.split(line) for line in printed.splitlines() if not line.startswith("#")]


def test_one_command_is_printed_for_each_pass_after_the_unprofiled_one(aaco: Aaco) -> None:
    answer = aaco(
        *("capture", "--print", "--release", "7.1", "--counters", "memory", "--arch", "gfx942"),
        *("--thread-trace", "gemm<int>(float*)", "--output", "left here", "--", "python", "train.py", "--name", "a b"),
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    plain, *profiled, home = commands(answer.stdout)
    assert plain == ["python", "train.py", "--name", "a b"]
    assert home == ["aaco", "ingest", "left here"]
    assert [line[0] for line in profiled] == ["rocprofv3"] * 5
    assert [line[1] for line in profiled] == ["--kernel-trace", "--pmc", "--pmc", "--pmc", "--att"]
    assert [line[line.index("-d") + 1] for line in profiled] == [f"left here/pass_{n}" for n in range(1, 6)]
    assert all(line[line.index("--") + 1 :] == plain for line in profiled)
    assert profiled[-1][3:6:2] == [r"gemm<int>\(float\*\)", "[2]"]


def test_without_a_release_the_newest_known_one_is_meant(aaco: Aaco) -> None:
    answer = aaco("capture", "--print", "--", "./app")
    assert "ROCm 7.13" in answer.stdout.splitlines()[0]
    assert len(commands(answer.stdout)) == 3


def test_the_lines_of_the_oldest_release_run_in_a_shell(aaco: Aaco, tmp_path: Path) -> None:
    """Its counters come from a file that the line writes. The rocprofv3 found there is a stand-in: it only leaves files
    where the real one would."""
    answer = aaco("capture", "--print", "--release", "6.2", "--counters", "basic", "--arch", "gfx90a", "--", "true")
    (line,) = [line for line in answer.stdout.splitlines() if line.startswith("mkdir")]
    tool = tmp_path / "rocprofv3"
    tool.write_text(
        '#!/bin/sh\ncat "$2" > read\nmkdir -p "$4/pmc_1" && touch "$4/pmc_1/out_1_counter_collection.csv"\n'
    )
    tool.chmod(0o755)
    subprocess.run(["/bin/sh", "-c", line], cwd=tmp_path, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=True)
    assert (tmp_path / "read").read_text().startswith("pmc: GRBM_COUNT GRBM_GUI_ACTIVE SQ_WAVES")
    assert (tmp_path / "aaco-capture" / "pass_2" / "out_1_counter_collection.csv").exists()


@pytest.mark.parametrize("option", [("--profile",), ("--counters", "basic"), ("--thread-trace", "auto")])
def test_run_refuses_to_profile_the_processor_before_a_session_begins(
    option: tuple[str, ...], refused: Refused, aaco: Aaco
) -> None:
    before = aaco("ls", "--json").stdout
    assert "rocprofv3 sees AMD GPUs only" in refused(2, "run", "--model", "squeezenet", *option)
    assert aaco("ls", "--json").stdout == before


@pytest.mark.parametrize(
    ("code", "arguments", "words"),
    [
        (2, (), "nothing to do without --print; profile a model with `aaco run --profile`"),
        (2, ("--", "./app"), "nothing to do without --print"),
        (2, ("--print",), "no program; give it after --"),
        (2, ("--print", "--counters", "basic", "--", "./app"), "add --arch"),
        (2, ("--print", "--counters", "x", "--arch", "gfx942", "--", "./app"), "unknown set 'x'"),
        (2, ("--print", "--thread-trace", "auto", "--", "./app"), "auto needs a trace to choose from"),
        (2, ("--print", "--release", "new", "--", "./app"), "'new' is no ROCm release"),
        (4, ("--print", "--release", "6.0", "--", "./app"), "not supported"),
        (4, ("--print", "--release", "6.4", "--thread-trace", "k", "--", "./app"), "has none; install ROCm 7.0"),
        (4, ("--print", "--counters", "memory", "--arch", "gfx1100", "--", "./app"), "names none for gfx1100"),
    ],
)
def test_what_cannot_be_printed_is_refused_in_one_line(
    code: int, arguments: tuple[str, ...], words: str, refused: Refused
) -> None:
    assert words in refused(code, "capture", *arguments)
