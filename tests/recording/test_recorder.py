"""Contents of a recording, and what it leaves: right times, whole folders, and nothing running."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from aaco_pipeline.errors import LakeError, UnavailableError, UsageError
from aaco_pipeline.recording import recorder
from aaco_pipeline.recording.keeper import descendants
from aaco_pipeline.recording.profilers import rocprofv3
from aaco_pipeline.recording.recorder import Recorded, record
from aaco_pipeline.recording.request import RecordRequest
from aaco_pipeline.recording.runs import TAIL_BYTES
from aaco_pipeline.resources.measure import measurement_slot
from tests.places import ROOT

Record = Callable[..., Recorded]
LINGERS = "import time; time.sleep(600)"
RECORD_ALONE = """
import sys
from pathlib import Path
from aaco_pipeline.recording.__main__ import main
from aaco_pipeline.resources.measure import measurement_slot
measurement_slot.PLACES = [Path(sys.argv[1])]
sys.exit(main(sys.argv[2:]))
"""


@pytest.fixture
def recorded(tmp_path: Path) -> Record:
    """Records a Python program, once unless told otherwise."""

    def make(*command: str, **settings: Any) -> Recorded:
        return record(
            RecordRequest(command, **{"runs": 1, "trace": "off", "quiet": True, **settings}), tmp_path / "made", print
        )

    return make


def python(text: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", text)


def document(made: Recorded, name: str = "run_1/run.json") -> dict[str, Any]:
    return dict(json.loads((made.folder / name).read_text()))


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_times_and_memory_are_those_that_the_program_has_of_itself(recorded: Record) -> None:
    made = recorded(
        *python(
            "import os, time, resource\n"
            "start = time.monotonic_ns(); held = bytes(range(256)) * (64 << 12)\n"
            "while time.process_time() < 0.2: pass\n"
            "print(start, time.monotonic_ns(), os.getpid(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)"
        )
    )
    run = document(made)
    start, end, pid, peak = map(int, (made.folder / "run_1/stdout_tail").read_text().split())
    assert run["start_monotonic_ns"] < start < end < run["end_monotonic_ns"]
    assert (run["process_id"], run["status"], run["signal"], run["timed_out"]) == (pid, 0, None, False)
    assert 200_000_000 <= run["user_ns"] + run["system_ns"] <= run["end_monotonic_ns"] - run["start_monotonic_ns"]
    assert peak <= run["max_rss_bytes"] <= peak + (1 << 20)
    assert run["clocks_before"]["monotonic_ns"] < run["start_monotonic_ns"]


def test_what_the_program_waited_for_counts_and_each_run_is_a_fresh_process(recorded: Record) -> None:
    burning = "import time\nwhile time.process_time() < 0.1: pass"
    made = recorded("sh", "-c", f"{sys.executable} -I -S -c '{burning}' | cat", runs=2, warmup_runs=1)
    runs = [document(made, f"run_{number}/run.json") for number in (1, 2, 3)]
    assert len({run["process_id"] for run in runs}) == 3
    assert all(run["user_ns"] + run["system_ns"] >= 100_000_000 for run in runs)
    capture = document(made, "capture.json")
    names = ["run_1", "run_2", "run_3"]
    assert [(one["name"], one["kind"], one["folder"]) for one in capture["passes"]] == [(n, "run", n) for n in names]
    assert [segment["label"] for segment in document(made, "telemetry.json")["segments"]] == names
    assert document(made, "host.json")["facts"]


def test_output_goes_through_unchanged_and_its_end_is_kept(
    recorded: Record, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    size = 3_000_000
    made = recorded(
        *python(f"import os\nos.write(2, b'\\xff\\0')\nfor n in range({size} // 10): os.write(1, b'%09d\\n' % n)"),
        quiet=False,
    )
    told = capfdbinary.readouterr()
    wanted = b"".join(b"%09d\n" % n for n in range(size // 10))
    assert (told.out.startswith(wanted), told.err) == (True, b"\xff\0")
    assert document(made)["stdout"] == {"bytes": size, "tail_file": "stdout_tail"}
    assert (made.folder / "run_1/stdout_tail").read_bytes() == wanted[-TAIL_BYTES:]


@pytest.mark.parametrize(
    ("text", "status", "name"),
    [("import os; os._exit(7)", 7, None), ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", None, "SIGSEGV")],
)
def test_a_failed_run_is_kept_and_is_the_last(
    text: str, status: int | None, name: str | None, recorded: Record
) -> None:
    made = recorded(*python(text), runs=3)
    assert (document(made)["status"], document(made)["signal"]) == (status, name)
    assert [one["name"] for one in document(made, "capture.json")["passes"]] == ["run_1"]
    assert made.failure is not None
    assert "run_1" in made.failure


def test_a_time_limit_ends_every_process_however_it_hides(recorded: Record) -> None:
    others = set(descendants(os.getpid()))  # such as the confined reader that an earlier test has started
    made = recorded(
        *python(
            "import os, signal, time\n"
            "if os.fork() == 0:\n"
            "    os.setsid()\n"
            "    if os.fork() == 0:\n"
            "        os.kill(os.getpid(), signal.SIGSTOP)\n"
            "    time.sleep(600)\n"
            "time.sleep(600)"
        ),
        timeout_seconds=0.5,
    )
    assert document(made)["timed_out"] is True
    assert document(made)["signal"] == "SIGTERM"
    assert made.failure is not None
    assert "time limit" in made.failure
    assert set(descendants(os.getpid())) <= others


def test_a_daemon_is_ended_named_and_holds_nothing_up(recorded: Record) -> None:
    made = recorded(
        *python("import os, time\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\ntime.sleep(600)")
    )
    [left] = document(made)["left_running"]
    assert "time.sleep(600)" in left["command"]
    assert not lives(left["pid"])
    assert made.failure is None


def test_a_program_that_closes_all_descriptors_is_waited_for(recorded: Record) -> None:
    made = recorded(*python("import os, time; os.closerange(0, 64); time.sleep(0.2)"))
    run = document(made)
    assert run["end_monotonic_ns"] - run["start_monotonic_ns"] >= 200_000_000
    assert run["status"] == 0


def test_the_program_reads_nothing_has_a_session_of_its_own_and_signals_as_they_were(recorded: Record) -> None:
    made = recorded(
        *python(
            "import os, sys\n"
            "print(repr(sys.stdin.read()), os.getsid(0) == os.getpid(), sorted(os.listdir('/proc/self/fd'))[:3], "
            "len(os.listdir('/proc/self/fd')))"
        )
    )
    assert (made.folder / "run_1/stdout_tail").read_text() == "'' True ['0', '1', '2'] 4\n"


def test_marks_have_a_folder(recorded: Record) -> None:
    made = recorded(
        *python("import os; open(os.path.join(os.environ['AACO_MARKS'], '7-8.marks'), 'wb').close()"), runs=2
    )
    assert document(made)["marks_files"] == ["7-8.marks"]
    assert (made.folder / "run_2/marks/7-8.marks").is_file()


def test_secrets_of_the_command_are_not_kept(recorded: Record) -> None:
    made = recorded(*python("print()"), "--password", "hunter2hunter2")
    assert "hunter2hunter2" not in (made.folder / "capture.json").read_text()


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("/opt/bin/app", "x.py"), "app"),
        (("python3.12", "-u", "src/train.py", "--epochs", "2"), "train.py"),
        (("python", "-m", "package.train"), "package.train"),
        (("sh", "-c", "a | b"), "sh"),
        (("bash",), "bash"),
    ],
)
def test_a_program_is_called_by_its_file_or_its_script(command: tuple[str, ...], name: str) -> None:
    assert RecordRequest(command).name == name
    assert RecordRequest(command, workload="other").name == "other"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("no-such-program",), "no such program in PATH"),
        (("./no/such/program",), "no such file"),
        (("a | b",), "sh -c 'a | b'"),
        (("{folder}",), "a folder"),
        (("{folder}/plain",), "not executable"),
        (("{folder}/without_interpreter",), "first line `#!`"),
    ],
)
def test_what_cannot_be_started_is_refused_and_nothing_is_made(
    command: tuple[str, ...], words: str, recorded: Record, tmp_path: Path
) -> None:
    (tmp_path / "plain").write_text("echo")
    (tmp_path / "without_interpreter").write_text("echo")
    (tmp_path / "without_interpreter").chmod(0o755)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UsageError) as refused:
        recorded(*(word.format(folder=tmp_path) for word in command))
    assert words in str(refused.value)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "settings",
    [
        *({"runs": 0}, {"warmup_runs": -1}, {"timeout_seconds": 0}, {"timeout_seconds": float("nan")}),
        *({"trace": "x"}, {"workload": " "}),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], recorded: Record) -> None:
    with pytest.raises(UsageError):
        recorded("true", **settings)


def test_a_folder_that_is_there_is_never_written_into(recorded: Record, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    with pytest.raises(UsageError, match="is there already"):
        recorded("true")


def test_a_profiler_asked_for_by_name_is_there_or_is_refused(
    recorded: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(*_: object) -> None:
        raise UnavailableError("no GPU here")

    monkeypatch.setattr(rocprofv3, "prepared", absent)
    with pytest.raises(UnavailableError, match="no GPU here; or record with --trace off"):
        recorded("true", trace="rocprofv3")
    assert list(tmp_path.iterdir()) == []


def test_a_profiler_is_put_around_one_more_run_and_the_others_say_why_not(
    recorded: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stand:
        version = "7"

        def around(self, program: Sequence[str], folder: Path) -> tuple[str, ...]:
            return ("sh", "-c", f'touch {folder}/kept; test "$HERE" = {folder}; exec "$@"', "sh", *program)

        def environment(self, folder: Path) -> dict[str, str]:
            return {"HERE": str(folder)}

    monkeypatch.setattr(rocprofv3, "prepared", lambda _: Stand())
    made = recorded("true", trace="auto", runs=2)
    capture = document(made, "capture.json")
    profilers = {one["name"]: one["profiler"] for one in capture["passes"]}
    assert profilers == {"run_1": None, "run_2": None, "trace": "rocprofv3"}
    assert (made.folder / "trace/rocprofv3/kept").is_file()
    assert [(one["name"], one["present"], one["reason"]) for one in capture["profilers"]] == [
        ("rocprofv3", True, None),
        ("cupti", False, "not asked for"),
    ]


def test_a_full_disk_leaves_nothing(recorded: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, document: Any) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(recorder, "write_json", full)
    with pytest.raises(LakeError, match="the disk is full; make room"):
        recorded("true")
    assert list(tmp_path.iterdir()) == []


def started_alone(tmp_path: Path, *command: str) -> "subprocess.Popen[bytes]":
    """The recorder in a process of its own, its program running and having written its number to `pid`."""
    (tmp_path / "slot").mkdir()
    words = [str(tmp_path / "slot"), "--output", str(tmp_path / "place/made"), "--trace", "off", "--", *command]
    alone = [sys.executable, "-c", RECORD_ALONE, *words]
    process = subprocess.Popen(alone, cwd=ROOT, stderr=subprocess.PIPE, start_new_session=True)
    while not (tmp_path / "pid").exists():
        assert process.poll() is None
        time.sleep(0.01)
    return process


def lingering(tmp_path: Path) -> tuple[str, ...]:
    return python(
        "import os\n"
        f"write = lambda: (open({str(tmp_path / 'part')!r}, 'w').write(str(os.getpid())), "
        f"os.rename({str(tmp_path / 'part')!r}, {str(tmp_path / 'pid')!r}))\n"
        f"if os.fork() == 0: os.setsid(); write()\n{LINGERS}"
    )


def test_when_the_recorder_is_killed_nothing_runs_on_and_nothing_is_torn(tmp_path: Path) -> None:
    process = started_alone(tmp_path, *lingering(tmp_path))
    pid = int((tmp_path / "pid").read_text())
    process.kill()
    process.communicate()
    while lives(pid) or not measurement_slot.slot_is_free(tmp_path / "slot/aaco-measurement.lock"):
        time.sleep(0.01)
    place = tmp_path / "place"
    assert [path.name.startswith(".aaco-recording-made-") for path in place.iterdir()] == [True]
    record(RecordRequest(("true",), runs=1, trace="off"), place / "next", print)
    assert [path.name for path in place.iterdir()] == ["next"]


def test_an_interrupt_reaches_the_program_and_nothing_is_recorded(tmp_path: Path) -> None:
    process = started_alone(tmp_path, *lingering(tmp_path))
    pid = int((tmp_path / "pid").read_text())
    process.send_signal(signal.SIGINT)
    _, told = process.communicate()
    assert (process.returncode, told.splitlines()[-1]) == (130, b"aaco: interrupted; nothing is recorded")
    assert not lives(pid)
    assert list((tmp_path / "place").iterdir()) == []
