"""A program runs to its end or to a limit, and nothing that it started goes on."""

import sys
import time
from pathlib import Path

import pytest

from aaco_pipeline.resources.toolchains.limited import Limits, ending, run_limited

LIMITS = Limits(memory_bytes=512 << 20, cpu_seconds=1, file_bytes=1 << 20)


def run(program: str, folder: Path, limit_seconds: float = 30.0, limits: Limits | None = LIMITS) -> int | None:
    command = [sys.executable, "-I", "-S", "-c", program]
    return run_limited(command, folder, log=folder / "log", limit_seconds=limit_seconds, limits=limits)


def test_a_program_runs_in_its_folder_with_what_it_is_given(tmp_path: Path) -> None:
    program = "import os, sys; print(os.getcwd(), os.environ, sys.argv[1:]); raise SystemExit(7)"
    command = [sys.executable, "-I", "-S", "-c", program, "; exit 0"]
    log = tmp_path / "log"
    environment = {"LC_ALL": "C"}
    status = run_limited(command, tmp_path, log=log, limit_seconds=30, limits=LIMITS, environment=environment)
    assert status == 7
    assert log.read_text() == f"{tmp_path} environ({{'LC_ALL': 'C'}}) ['; exit 0']\n"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("while True: pass", "signal SIGXCPU"),
        ("import mmap; mmap.mmap(-1, 1 << 30)", "status 1"),
        ("open('large', 'wb').write(bytes(2 << 20))", "status 1"),
        # Its output counts: the traceback has no room either, so that Python ends with 120.
        ("import os\nwhile True: os.write(1, bytes(1 << 16))", "status 120"),
    ],
)
def test_more_than_the_limits_is_not_to_be_had(program: str, words: str, tmp_path: Path) -> None:
    status = run(program, tmp_path)
    assert status
    assert ending(status) == words
    assert all(path.stat().st_size <= LIMITS.file_bytes for path in tmp_path.iterdir())
    assert run("pass", tmp_path) == 0


def test_without_limits_there_are_none(tmp_path: Path) -> None:
    assert run("import mmap; mmap.mmap(-1, 1 << 30)", tmp_path, limits=None) == 0
    with pytest.raises(FileNotFoundError):
        run_limited([str(tmp_path / "none")], tmp_path, log=tmp_path / "log", limit_seconds=1)


def test_at_its_limit_it_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    program = "import os, time\nif os.fork() == 0:\n    open('child', 'w').write(str(os.getpid()))\ntime.sleep(600)"
    assert run(program, tmp_path, 1.0) is None
    child = Path("/proc") / (tmp_path / "child").read_text()
    while child.exists() and (child / "stat").read_text().split()[2] not in "ZX":
        time.sleep(0.01)
