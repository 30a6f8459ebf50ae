"""Ctrl-C and SIGTERM end a command with one line and its code, in a terminal and in the background.

A killed run loses nothing that was published, and the next command finishes it. Trials and kills are those of
`benchmarks.reliability.interrupted_commands` and `kill_runs`, which repeat them for every command at many instants.
tests/pipeline holds what a killed run leaves, tests/resources/measure who holds the slot and ends the process.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.doctor import examine
from aaco_pipeline.resources.measure import inference
from aaco_pipeline.resources.project import Project
from benchmarks.reliability import interrupted_commands, kill_runs
from benchmarks.reliability.interrupted_commands import try_once
from tests.cli.conftest import Aaco

HEAR: Final = """
import sys, time
from aaco_pipeline.cli import interruption, main
{before}
def command(arguments):
    {body}
main.main = command
main.entry()
"""


@pytest.mark.parametrize(
    ("tried", "seconds"), [(("sql", "foreground", signal.SIGINT), 0.0), (("compare", "background", signal.SIGINT), 4.0)]
)
def test_a_command_says_one_line_and_leaves_nothing_running(
    copied: Project, tmp_path: Path, tried: tuple[str, str, signal.Signals], seconds: float
) -> None:
    assert copied.lake == tmp_path / "lake"
    trial = try_once(tmp_path, *tried, seconds)
    assert (trial.broken, trial.code) == ([], 128 + tried[2])


def test_the_harness_sees_a_wrong_code_a_second_line_and_a_process_that_is_left(
    copied: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (subprocess.Popen(['sleep', '60']), print('one', file=sys.stderr), "
        "print('two', file=sys.stderr), sys.exit(7)))\n"
        "time.sleep(60)"
    )
    monkeypatch.setattr(interrupted_commands, "ENTRY", code)
    trial = try_once(tmp_path, "ls", "background", signal.SIGTERM, 0.2)
    assert any("left running: sleep 60" in broken for broken in trial.broken)
    assert any("code 7" in broken and "'two'" in broken for broken in trial.broken)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_swallows_the_interrupt_or_says_more_changes_neither_the_line_nor_the_code(number: signal.Signals) -> None:
    body = """
    try:
        print('ready', flush=True); time.sleep(60)
    except BaseException as error:
        print('more', file=sys.stderr)
        raise ValueError('a consequence') from error"""
    code, said = _signalled(HEAR.format(before="", body=body), number)
    assert (code, said.splitlines()) == (128 + number, [_line(number)])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_where_python_drops_errors_is_raised_again(number: signal.Signals) -> None:
    body = """
    import weakref
    class Collected:
        pass
    def callback(_):
        print('ready', flush=True); time.sleep(60)
    collected = Collected()
    reference = weakref.ref(collected, callback)
    del collected
    try:
        time.sleep(60)
    finally:
        print('tidied', flush=True)"""
    out: list[str] = []
    code, said = _signalled(HEAR.format(before="", body=body), number, out=out)
    assert (code, said.splitlines()) == (128 + number, [_line(number)])
    assert out == ["ready\n", "tidied\n"]


def test_a_command_that_ends_as_if_it_had_not_been_interrupted_still_has_the_line_and_the_code() -> None:
    body = """
    try:
        print('ready', flush=True); time.sleep(60)
    except BaseException:
        return 0"""
    code, said = _signalled(HEAR.format(before="", body=body), signal.SIGTERM)
    assert (code, said.splitlines()) == (143, [_line(signal.SIGTERM)])


def test_a_second_signal_while_it_tidies_up_changes_nothing() -> None:
    body = """
    try:
        print('ready', flush=True); time.sleep(60)
    finally:
        time.sleep(1); print('tidied', flush=True)"""
    out: list[str] = []
    code, said = _signalled(HEAR.format(before="", body=body), signal.SIGTERM, signal.SIGINT, signal.SIGINT, out=out)
    assert (code, said.splitlines()) == (143, [_line(signal.SIGTERM)])
    assert out == ["ready\n", "tidied\n"]


def test_a_command_that_does_not_end_is_ended_and_so_is_what_it_started() -> None:
    body = """
    import subprocess
    child = subprocess.Popen(['sh', '-c', 'trap "" INT TERM; sleep 61 & sleep 61'])
    print('ready', child.pid, flush=True)
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass"""
    out: list[str] = []
    code, said = _signalled(
        HEAR.format(before="interruption._LONGEST_SECONDS = 0.5", body=body), signal.SIGINT, out=out
    )
    assert (code, said.splitlines()) == (130, [_line(signal.SIGINT)])
    child = int(out[0].split()[1])
    assert not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text().split()[2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_is_being_imported_is_loaded_before_the_interrupt_is_raised(
    tmp_path: Path, number: signal.Signals
) -> None:
    """A module in native code would answer an exception that comes while it is loaded with a panic of its own."""
    body = """
    try:
        import module_that_loads
        time.sleep(60)
    except (KeyboardInterrupt, Exception) as error:
        print(type(error).__name__, flush=True)
        raise"""
    out: list[str] = []
    before = _importable(tmp_path, seconds=1) + "interruption._IMPORT_SECONDS = 30"
    code, said = _signalled(HEAR.format(before=before, body=body), number, out=out)
    assert (code, said.splitlines()) == (128 + number, [_line(number)])
    raised = "KeyboardInterrupt" if number == signal.SIGINT else "Terminated"
    assert out == ["ready\n", "loaded\n", f"{raised}\n"]


def test_what_polars_calls_for_a_data_type_ends_before_the_interrupt_is_raised(tmp_path: Path) -> None:
    """Polars panics, with lines of its own on standard error, when that raises."""
    before = _importable(tmp_path, seconds=1) + f"code = open({str(tmp_path / 'module_that_loads.py')!r}).read()"
    body = """
    exec(compile(code, '/site-packages/polars/datatypes/classes.py', 'exec'))
    time.sleep(60)"""
    out: list[str] = []
    code, said = _signalled(HEAR.format(before=before, body=body), signal.SIGINT, out=out)
    assert (code, said.splitlines()) == (130, [_line(signal.SIGINT)])
    assert out == ["ready\n", "loaded\n"]


def test_an_import_that_does_not_end_is_not_waited_for(tmp_path: Path) -> None:
    out: list[str] = []
    before = _importable(tmp_path, seconds=60) + "interruption._IMPORT_SECONDS = 0.5"
    code, said = _signalled(HEAR.format(before=before, body="import module_that_loads"), signal.SIGINT, out=out)
    assert (code, said.splitlines()) == (130, [_line(signal.SIGINT)])
    assert out == ["ready\n"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_recorded_program_gets_the_signal_that_the_recorder_got(tmp_path: Path, number: signal.Signals) -> None:
    got, program = tmp_path / "got", "import signal, sys; signal.pthread_sigmask(0, [2, 15]); print(1, flush=True); "
    program += f"open({str(got)!r}, 'w').write(str(int(signal.sigwait([2, 15]))))"
    entry = "from aaco_pipeline.cli.main import entry; entry()"
    command = [sys.executable, "-P", "-c", entry, "record", "--output", str(tmp_path / "out"), "--"]
    with subprocess.Popen(
        [*command, sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    what = "interrupted" if number == signal.SIGINT else "terminated"
    # Before it, it may have waited for somebody else's measurement.
    assert (process.returncode, said.splitlines()[-1]) == (128 + number, f"aaco: {what}; nothing is recorded")
    assert got.read_text() == str(int(number))
    assert not (tmp_path / "out").exists()


def test_the_notes_of_an_error_are_what_the_line_says() -> None:
    body = """
    try:
        print('ready', flush=True); time.sleep(60)
    except KeyboardInterrupt as error:
        error.add_note('FOLDER is whole')
        raise"""
    code, said = _signalled(HEAR.format(before="", body=body), signal.SIGINT)
    assert (code, said) == (130, "aaco: interrupted; FOLDER is whole\n")


@pytest.mark.parametrize("errors", ["/dev/full", None])
def test_where_the_line_cannot_be_said_the_code_is_the_same(errors: str | None) -> None:
    code = HEAR.format(before="", body="print('ready', flush=True); time.sleep(60)")
    command = (
        [sys.executable, "-P", "-c", code]
        if errors
        else ["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-P", "-c", code]
    )
    with (
        Path(errors or os.devnull).open("w") as full,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=full, text=True) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143


def _line(number: signal.Signals) -> str:
    what = "interrupted" if number == signal.SIGINT else "terminated"
    return f"aaco: {what}; nothing is half-published"


def _importable(folder: Path, *, seconds: int) -> str:
    """Code that makes `module_that_loads` importable, whose loading takes so long and must not be interrupted."""
    (folder / "module_that_loads.py").write_text(f"""
import time
print("ready", flush=True)
try:
    time.sleep({seconds})
except BaseException:
    print("panicked", flush=True)
    raise
print("loaded", flush=True)
""")
    return f"sys.path.insert(0, {str(folder)!r})\n"


def _signalled(code: str, *numbers: signal.Signals, out: list[str] | None = None) -> tuple[int, str]:
    """The exit code of a Python that got these signals one after another, and what it said on standard error."""
    with subprocess.Popen(
        [sys.executable, "-P", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        for number in numbers:
            process.send_signal(number)
            time.sleep(0.1)
        rest, said = process.communicate(timeout=60)
    if out is not None:
        out += [first, *rest.splitlines(keepends=True)]
    return process.returncode, said


QUICK = ("run", "--model", "control_flow", "--iterations", "2", "--warmup", "0")


@pytest.fixture
def place(copied: Project) -> kill_runs.Workplace:
    """The copied lake, for the harness."""
    return kill_runs.Workplace(copied.lake.parent)


def test_a_run_killed_in_mid_analysis_is_whole_after_the_next_command(
    place: kill_runs.Workplace, copied: Project, aaco: Aaco
) -> None:
    before = place.whole()
    process = place.start_run()
    try:
        assert kill_runs.wait_until(lambda: len(place.lake.captured()) > len(before), process)
    finally:
        kill_runs.kill_group(process)
    (begun,) = place.begun() - set(before)
    assert place.lake.progress(begun).is_whole is False
    done = aaco("show", begun, "--json", project=copied)
    assert done.returncode == 0, done.stderr
    assert f"finishing {begun}: " in done.stderr
    assert kill_runs.check(place, before, {begun}) == []


def test_the_harness_sees_what_is_lost_changed_torn_and_half(place: kill_runs.Workplace) -> None:
    before = place.whole()
    older, newer = sorted(before)
    assert kill_runs.check(place, before, set()) == []
    (entry,) = place.lake.manifest(newer).of_table("iterations")
    (place.lake.path / entry.file).write_bytes(b"torn")
    place.lake.record_failure(newer, "roofline", "code", "why")
    place.lake.remove(older)
    text = "\n".join(kill_runs.check(place, {**before, newer: "other"}, {"begun"}))
    half = f"session {newer} has {place.lake.progress(newer).count}"
    for part in (f"session {older} is lost", "session begun is lost", "torn file", half):
        assert part in text


def test_an_interrupt_while_measuring_exits_with_130_and_nothing_of_the_session_stays(
    aaco: Aaco, copied: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = TraceLake(copied.lake)
    known, seen = lake.sessions(), list[str]()

    def interrupted(*_: object) -> None:
        seen.extend(lake.requests())
        raise KeyboardInterrupt

    monkeypatch.setattr(inference, "capture_inference", interrupted)
    done = aaco(*QUICK, project=copied)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.strip() == "aaco: interrupted; nothing is half-published"
    assert len(seen) == 1
    assert (lake.sessions(), lake.captured(), lake.requests()) == (known, known, [])
    assert list((lake.path / "raw").glob(".*")) == []
    assert examine(lake, pytest.fail) == []
