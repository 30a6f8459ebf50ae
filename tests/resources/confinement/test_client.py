"""The doors give what reading in the same process gives, and say in evidence how the reader was confined.

However a child that reads a capture ends, it is one line naming the capture, and the next one is read.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from aaco_pipeline.capture import discovery, ingested
from aaco_pipeline.errors import CaptureError, LakeError, UnavailableError
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.resources import ingestion
from aaco_pipeline.resources.confinement import client
from aaco_pipeline.resources.confinement.client import CONFINEMENT, Frames, Question
from aaco_pipeline.resources.confinement.requests import bounds_for
from tests.formats.examples import EXAMPLES
from tests.places import ROOT
from tests.resources.confinement.conftest import ROOMY, Ask


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A raw folder of one small capture, copied by a confined child."""
    folder = tmp_path_factory.mktemp("raw")
    EXAMPLES["rocprofv3_csv"](folder / "in")
    (run,) = client.discover_runs(folder / "in").runs
    (folder / "raw").mkdir()
    client.copy_capture(run, folder / "raw", "test")
    return folder / "raw"


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_confined_child_finds_what_this_process_finds(name: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    EXAMPLES[name](tmp_path / "in")
    found = client.discover_runs(tmp_path / "in")
    assert found == discovery.discover_runs(tmp_path / "in")
    (run,) = found.runs
    assert run.digest == ingestion.capture_digest(run)
    run.digest = None
    assert client.capture_digest(run) == ingestion.capture_digest(run)


def test_a_confined_child_reads_what_this_process_reads(raw: Path) -> None:
    ours, theirs = ingested.read(raw), client.open_capture(raw)
    assert theirs.facts() == ours.facts()
    assert set(theirs.tables()) == set(ours.tables())
    assert all(theirs.tables()[name].equals(frame) for name, frame in ours.tables().items())
    assert theirs.evidence("files")[:-1] == ours.evidence("files")
    assert theirs.model() is None
    theirs.require_whole()
    assert client.open_capture(raw) is theirs, "read once"


@pytest.mark.parametrize("missing", [[], ["no Landlock: Function not implemented", "no network namespace: denied"]])
def test_what_could_not_be_confined_is_said_in_evidence(
    missing: list[str], raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = client.open_capture(raw)
    monkeypatch.setitem(theirs._answer, "unconfined", missing)
    reason = "; ".join(missing) or None
    assert theirs.evidence("files")[-1] == Evidence(CONFINEMENT, "partial" if missing else "present", reason, "reader")


def test_a_capture_that_a_reader_refuses_is_refused_by_the_door(raw: Path, tmp_path: Path) -> None:
    shutil.copytree(raw, tmp_path / "raw")
    (tmp_path / "raw/files/1_kernel_trace.csv").write_text("Kind,Kernel_Name\n")
    with pytest.raises(CaptureError, match="raw/files: holds 0 runs, expected one"):
        client.open_capture(tmp_path / "raw").require_whole()


def test_a_table_that_could_not_be_read_is_reported_when_it_is_taken(
    raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = client.open_capture(raw)
    told = {"error": {"kind": "LakeError", "line": "no room", "cause": None}}
    monkeypatch.setitem(theirs._answer, "tables", {**theirs._answer["tables"], "kernels": told})
    assert theirs.tables()["dispatches"].height == 1
    with pytest.raises(LakeError, match="no room"):
        theirs.tables()["kernels"]
    with pytest.raises(LakeError, match="no room"):
        theirs.require_whole()


def test_a_table_that_was_not_left_or_is_none_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "0.arrow").write_bytes(b"not arrow at all")
    (tmp_path / "1.arrow").symlink_to("/etc/passwd")
    (tmp_path / "2.arrow").mkdir()
    question = Question(tmp_path, is_ingested=True, bounds=bounds_for(0))
    frames = Frames(tmp_path, question.folder)
    for name in ("0.arrow", "1.arrow", "2.arrow", "9.arrow"):
        with pytest.raises(CaptureError, match="its reader left no such table"):
            frames[name]


def test_a_link_or_nothing_at_the_door_is_refused_in_this_process(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    for name, words in (("link", "a link; links are not followed"), ("gone", "no such file or folder")):
        with pytest.raises(CaptureError, match=words):
            client.discover_runs(tmp_path / name)


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


def test_what_a_reader_needs_not_is_not_reported(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    client._STARTED.pop().close()
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
from aaco_pipeline.resources.confinement import client
from tests.resources.confinement.conftest import ROOMY
client._MODULE = "tests.resources.confinement.misbehaving_server"
def asked():
    with client.answered({"does": "server"}, Path.cwd(), [], [], ROOMY) as (answer, _):
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
