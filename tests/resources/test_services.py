"""Programs that end together: by a signal, by one of them, and however the process that started them ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.user_interface import ROOT, descendants, kill, wait_for

#: A process that starts `services` and says how they ended, as the command does.
STARTER: Final = """
import sys
from pathlib import Path
from aaco_pipeline.resources.services import Service, run_together
folder = Path(sys.argv[1])
folder.mkdir()
services = [Service(f"number {at}", [sys.executable, "-c", text]) for at, text in enumerate(sys.argv[2:])]
print(run_together(services, folder, folder.parent))
"""
SLEEPER: Final = "import time; time.sleep(600)"
MARKED: Final = "the one that is killed"
#: Heeds no signal, and has a child in a session of its own that heeds none either.
STUBBORN: Final = """
import signal, subprocess, sys, time
for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(one, signal.SIG_IGN)
subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)
time.sleep(600)
"""
#: Says something at once, and something else when it is interrupted.
TALKER: Final = """
import sys, time
try:
    print('a warning', file=sys.stderr, flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    sys.exit('Aborted!')
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start programs, `before` being words in front; whatever of them is left in the end is killed."""
    started: list[subprocess.Popen[str]] = []
    known: set[int] = set()

    def starting(*programs: str, before: Sequence[str] = (), errors: int | None = None) -> "subprocess.Popen[str]":
        command = [*before, sys.executable, "-P", "-c", STARTER, str(tmp_path / "sockets"), *programs]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment, start_new_session=True
        )
        started.append(process)
        wait_for(lambda: len(descendants(process.pid)) > len(programs) or process.poll() is not None, lambda: "start")
        known.update(descendants(process.pid))
        return process

    yield starting
    for process in started:
        known.update((process.pid, *descendants(process.pid)))
        process.kill()
        process.communicate()
    for pid in known:
        kill(pid)


def supervisor_of(process: "subprocess.Popen[str]") -> int:
    """The one process that `process` itself started."""
    (pid,) = (pid for pid, command in descendants(process.pid).items() if " -m aaco_pipeline." in command)
    return pid


def nothing_left(pids: Sequence[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("before", [[], ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]], ids=["plain", "ignoring"])
def test_a_signal_ends_all_also_one_that_was_ignored_before(
    start: Start, number: signal.Signals, before: list[str], tmp_path: Path
) -> None:
    process = start(SLEEPER, SLEEPER, before=before)
    pids = list(descendants(process.pid))
    assert len(pids) == 3
    process.send_signal(number)
    told, _ = process.communicate(timeout=300)
    assert told == f"{number}\n"
    assert nothing_left(pids)
    assert not (tmp_path / "sockets").exists()


def test_what_heeds_no_signal_is_killed_with_all_that_it_started(start: Start) -> None:
    process = start(STUBBORN)
    wait_for(lambda: len(descendants(process.pid)) == 3, lambda: "grandchild")
    pids = list(descendants(process.pid))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=300)
    assert nothing_left(pids)


def test_one_that_ends_by_itself_ends_the_others_and_is_named(start: Start) -> None:
    process = start(SLEEPER, "import time; time.sleep(3); raise SystemExit(7)")
    pids = list(descendants(process.pid))
    told, _ = process.communicate(timeout=300)
    assert told == "number 1 ended with exit code 7\n"
    assert nothing_left(pids)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_they_say_is_passed_on_until_they_are_to_end(start: Start, number: signal.Signals) -> None:
    process = start(TALKER, errors=subprocess.PIPE)
    assert process.stderr is not None
    assert process.stderr.readline() == "a warning\n"
    process.send_signal(number)
    assert process.communicate(timeout=300) == (f"{number}\n", "")


def test_the_last_words_of_one_that_ends_by_itself_are_passed_on(start: Start) -> None:
    process = start("import time; time.sleep(3); raise SystemExit('what is wrong')", errors=subprocess.PIPE)
    assert process.communicate(timeout=300) == ("number 0 ended with exit code 1\n", "what is wrong\n")


def test_one_that_is_killed_is_named_with_the_signal(start: Start) -> None:
    process = start(SLEEPER, f"{SLEEPER}  # {MARKED}")

    def marked() -> list[int]:
        return [pid for pid, command in descendants(process.pid).items() if MARKED in command]

    wait_for(lambda: bool(marked()), lambda: "its command, which it has only once it was executed")
    os.kill(marked()[0], signal.SIGKILL)
    assert process.communicate(timeout=300)[0] == "number 1 was killed by SIGKILL\n"


@pytest.mark.parametrize("program", [SLEEPER, STUBBORN], ids=["sleeper", "stubborn"])
def test_all_end_when_the_starting_process_is_killed(start: Start, program: str, tmp_path: Path) -> None:
    process = start(program, SLEEPER)
    pids = list(descendants(process.pid))
    process.kill()
    wait_for(lambda: nothing_left(pids), lambda: f"{descendants(1)}")
    wait_for(lambda: not (tmp_path / "sockets").exists(), lambda: "folder")


def test_all_end_when_the_supervisor_is_killed(start: Start) -> None:
    process = start(STUBBORN, SLEEPER)
    wait_for(lambda: len(descendants(process.pid)) == 4, lambda: "grandchild")
    pids = list(descendants(process.pid))
    os.kill(supervisor_of(process), signal.SIGKILL)
    told, _ = process.communicate(timeout=300)
    assert told == "the supervisor of its services was killed by SIGKILL\n"
    assert nothing_left(pids)


def test_the_next_one_starts_when_the_one_before_answers(tmp_path: Path) -> None:
    place = tmp_path / "answers.sock"
    first = f"""
import socket, time
time.sleep(1)
listening = socket.socket(socket.AF_UNIX)
listening.bind({str(place)!r})
listening.listen()
time.sleep(600)
"""
    second = f"import pathlib; print(pathlib.Path({str(place)!r}).is_socket(), flush=True)"
    code = STARTER.replace("text])", f"text], ready=None if at else {str(place)!r})")
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, str(tmp_path / "sockets"), first, second],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stdout == "True\nnumber 1 ended with exit code 0\n"
