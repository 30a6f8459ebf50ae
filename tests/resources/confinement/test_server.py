"""However a child that reads a capture ends, it is one line naming the capture, and the next one is read."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from aaco_pipeline.errors import CaptureError, LakeError, UnavailableError
from aaco_pipeline.resources.confinement import server
from tests.places import ROOT
from tests.resources.confinement.conftest import ROOMY, Ask


def line_of(error: BaseException, about: Path) -> str:
    """The one line of an error, without the name of what it is about."""
    line = str(error)
    assert "\n" not in line
    assert line.startswith(f"{about}: ")
    return line.removeprefix(f"{about}: ")


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL, signal.SIGBUS, signal.SIGSYS])
def test_a_child_that_dies_by_a_signal_is_one_line(number: signal.Signals, ask: Ask, tmp_path: Path) -> None:
    with pytest.raises(CaptureError) as caught:
        ask("die", signal=int(number))
    words = f"reading it crashed the reader ({signal.strsignal(number)}); not read"
    assert line_of(caught.value, tmp_path / "capture") == words
    assert ask("nothing") == "done"


def test_what_a_child_says_is_never_shown(ask: Ask, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CaptureError) as caught:
        ask("chat")
    assert line_of(caught.value, tmp_path / "capture") == "its reader left no answer (ended with 7); not read"
    assert "secret" not in "".join(capfd.readouterr())


def test_memory_is_bounded(ask: Ask, tmp_path: Path) -> None:
    with pytest.raises(CaptureError) as caught:
        ask("swell", times=100)
    words = "reading it took more than 1.0 GiB of memory; not read"
    assert line_of(caught.value, tmp_path / "capture") == words
    with pytest.raises(CaptureError) as caught:
        ask("abort")
    assert line_of(caught.value, tmp_path / "capture") == words
    assert ask("swell", times=10) == 10


def test_time_is_bounded_whether_it_is_used_or_waited(ask: Ask, tmp_path: Path) -> None:
    with pytest.raises(CaptureError) as caught:
        ask("sleep", replace(ROOMY, wall_seconds=0.2))
    assert line_of(caught.value, tmp_path / "capture") == "reading it took more than 0 s; not read"
    with pytest.raises(CaptureError) as caught:
        ask("spin", replace(ROOMY, cpu_seconds=1))
    assert line_of(caught.value, tmp_path / "capture") == "reading it took more than 1 s of CPU time; not read"


def test_no_file_grows_beyond_its_bound(ask: Ask, tmp_path: Path) -> None:
    with pytest.raises(CaptureError) as caught:
        ask("write", bytes=2 << 20)
    assert "crashed" in line_of(caught.value, tmp_path / "capture") or "no answer" in str(caught.value)


@pytest.mark.parametrize("says", ["", "{", "[3]", "3", "null", "[" * 100_000, '{"error": {}}', '{"error": 3}'])
def test_an_answer_that_makes_no_sense_is_one_line(says: str, ask: Ask, tmp_path: Path) -> None:
    with pytest.raises(CaptureError) as caught:
        ask("babble", says=says)
    assert "left no answer" in line_of(caught.value, tmp_path / "capture")


def test_results_are_gone_when_they_were_taken_and_when_there_were_none(ask: Ask) -> None:
    ask("nothing")
    with pytest.raises(CaptureError):
        ask("be silent")
    assert list(Path(tempfile.gettempdir()).iterdir()) == []


def test_a_server_that_died_is_one_line_and_the_next_request_starts_another(ask: Ask) -> None:
    first = ask("server")
    os.kill(first, signal.SIGKILL)
    with pytest.raises(UnavailableError, match=r"ended by itself: .*; try again"):
        ask("nothing")
    second = ask("server")
    assert second not in (first, os.getpid())
    assert ask("server") == second, "one server answers all that follow"


def test_an_interrupt_ends_the_child_with_its_server_and_the_next_request_is_answered_anew(ask: Ask) -> None:
    before = ask("server")
    interrupt = threading.Timer(0.3, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        ask("sleep")
    interrupt.join()
    assert not Path(f"/proc/{before}").exists()
    assert ask("nothing") == "done"
    assert list(Path(tempfile.gettempdir()).iterdir()) == []


def test_what_a_reader_needs_not_is_not_told(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    server._STARTED.pop().close()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    told = ask("environment")
    assert "AWS_SECRET_ACCESS_KEY" not in told
    assert "hunter2" not in str(told)


def test_no_room_for_results_is_the_machines(ask: Ask, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(LakeError, match="nowhere: No such file or directory; make room"):
        ask("nothing")


FORKS: Final = """
import os
from pathlib import Path
from aaco_pipeline.resources.confinement import server
from tests.resources.confinement.conftest import ROOMY
server._MODULE = "tests.resources.confinement.misbehaving_server"
def asked():
    with server.answered({"does": "server"}, Path.cwd(), [], [], ROOMY) as (answer, _):
        return answer["came"]
own = asked()
if not (child := os.fork()):
    assert asked() != own, "the fork has a server of its own"
    raise SystemExit(5)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 5
assert asked() == own, "its parent keeps its own"
"""


def test_a_fork_of_the_program_has_a_server_of_its_own_and_leaves_the_other_alone() -> None:
    ended = subprocess.run([sys.executable, "-c", FORKS], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
