"""A command makes its file, or it is said why not, and nothing that it started goes on."""

import sys
import time
from pathlib import Path

import pytest

from aaco_pipeline.errors import UsageError
from aaco_pipeline.resources.toolchains.making import TOLD_LINES, MakeError, make, words_of


def run(program: str, tmp_path: Path, limit_seconds: float = 60.0, *more: str) -> Path:
    output = tmp_path / "out"
    words = [sys.executable, "-c", program, "{output}", *more]
    make(words, "abc", output, tmp_path, log=tmp_path / "make.log", limit_seconds=limit_seconds)
    return output


def test_revision_and_output_are_put_in_their_places_and_no_shell_reads_them(tmp_path: Path) -> None:
    program = "import os, sys; open(sys.argv[1], 'w').write(sys.argv[2] + os.getcwd())"
    output = run(program, tmp_path, 60.0, "--rev={revision}; echo $HOME")
    assert output.read_text() == f"--rev=abc; echo $HOME{tmp_path}"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("raise SystemExit(3)", "ended with status 3"),
        ("import os; os.kill(os.getpid(), 9)", "ended with signal SIGKILL"),
        ("pass", "ended well and left no file at {output}"),
        ("import os, sys; os.mkdir(sys.argv[1])", "ended well and left no file at {output}"),
    ],
)
def test_why_nothing_was_made_is_said(program: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(MakeError) as raised:
        run(program, tmp_path)
    assert str(raised.value) == f"{Path(sys.executable).name} {words}"
    assert raised.value.exit_code == 3


def test_the_last_lines_of_what_it_printed_are_kept(tmp_path: Path) -> None:
    program = "import sys\nfor n in range(99999): print(n)\nsys.stderr.write('no such header\\n'); raise SystemExit(1)"
    with pytest.raises(MakeError) as raised:
        run(program, tmp_path)
    assert len(raised.value.lines) == TOLD_LINES
    assert {"no such header", "99998"} <= set(raised.value.lines)


def test_at_its_limit_it_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid))\n"
        "time.sleep(600)"
    )
    with pytest.raises(MakeError, match=r"took more than 1\.5 s"):
        run(program, tmp_path, 1.5)
    child = Path("/proc") / (tmp_path / "child").read_text()
    while child.exists() and (child / "stat").read_text().split()[2] not in "ZX":
        time.sleep(0.01)


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(MakeError, match="/no/make: No such file"):
        make(["/no/make", "{output}"], "abc", tmp_path / "out", tmp_path, log=tmp_path / "log", limit_seconds=1)


@pytest.mark.parametrize(
    ("command", "words"),
    [("sh 'build", "is not a command: No closing quotation"), ("make all", "put {output} where"), ("", "put {output}")],
)
def test_what_is_no_command_is_refused(command: str, words: str) -> None:
    with pytest.raises(UsageError) as raised:
        words_of(command)
    assert words in str(raised.value)
