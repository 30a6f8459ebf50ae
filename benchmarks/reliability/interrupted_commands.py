"""Send SIGINT and SIGTERM to every command at five instants, in a terminal and in the background.

Afterwards: one line on standard error, exit code 130 or 143, nothing left running, a whole lake. `--only run` chooses.
"""

import argparse
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
import termios
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import uuid4

from aaco_pipeline.lake import health
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.project import HOME_VARIABLE, LAKE_VARIABLE
from benchmarks.common import ENTRY, ROOT
from benchmarks.performance.generate_rocpd import generate

#: Makes its standard input the terminal of its session, and becomes the command.
_AT_TERMINAL: Final = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)
_MARK: Final = "AACO_TRIAL"
_QUICK: Final = ("--iterations", "20", "--warmup", "2")
_SPEC: Final = "squeezenet --iterations 20 --warmup 2"
#: `{work}` is the trial's folder.
COMMANDS: Final[dict[str, tuple[str, ...]]] = {
    "run": ("run", "--model", "squeezenet", *_QUICK),
    "sweep": ("sweep", "--model", "squeezenet", "--batch", "1,2", *_QUICK),
    "compare": ("compare", "--baseline", _SPEC, "--candidate", _SPEC, "--sessions", "5", "--traced", "0"),
    "bisect": ("bisect", "--builds", "{work}/builds"),
    "nightly": ("nightly", "--only", "squeezenet:cpu"),
    "calibrate": ("calibrate", "--threads", "1", "--seconds", "4"),
    "optimize": ("optimize", "{work}/softmax.hip", "--target", "cpu", "--budget", "20s"),
    "record": ("record", "--", "sh", "-c", "sleep 4 & sleep 4; true"),  # what it says itself passes through
    "ingest": ("ingest", "{work}/capture.db"),
    "capture": ("capture", "--print", "--counters", "basic", "--arch", "gfx942", "--", "true"),
    "ls": ("ls",),
    "show": ("show",),
    "report": ("report",),
    "perfetto": ("perfetto",),
    "open": ("report", "--open"),  # in a browser that ends at once: the page is served until the signal
    "diff": ("diff", "{first}", "{last}"),
    "sql": (
        "sql",
        "SELECT count(*) FROM dispatches a, dispatches b, dispatches c WHERE a.start_ns + b.end_ns = c.end_ns",
    ),
    "doctor": ("doctor",),
    "compact": ("compact",),
    "reanalyse": ("reanalyse", "--stage", "timeline", "--downstream"),
    "baseline": ("baseline", "pin", "--model", "squeezenet"),
    "quiet": ("quiet", "--seconds", "3"),
    "gc": ("gc", "--dry-run"),
    "info": ("info",),
    "ui": ("ui", "--port", "3917"),
}
#: Shares of a command's usual time at which it gets a signal. At the first it has just begun to hear them, and imports
#: what it needs.
_SHARES: Final = (0.0, 0.1, 0.35, 0.65, 0.9)
#: A command that takes longer is as good as one that takes so long.
_MOST_SECONDS: Final = 8.0
#: A command that ends so soon after the signal by itself was ending anyway.
_ENDING_SECONDS: Final = 1.0
_LONGEST_SECONDS: Final = 60.0
_STRAGGLERS_SECONDS: Final = 1.0
_CAPTURED: Final = 100_000
#: What moves a terminal's cursor or erases: where the parts of the output are drawn.
_CONTROLS: Final = re.compile(r"(\x1b\[[0-9;?]*[A-Za-z]|[\r\n])")
_SAID: Final = {signal.SIGINT: "aaco: interrupted", signal.SIGTERM: "aaco: terminated"}


@dataclass
class Trial:
    """One signal to one command, what came of it, and every broken promise."""

    command: str
    mode: str
    number: signal.Signals
    seconds: float
    code: int | None = None
    took_seconds: float = 0.0
    lines: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    finished: bool = False


@dataclass(frozen=True)
class Started:
    """A command that runs: the process to signal, how to wait for its exit code, and what it has said so far."""

    pid: int
    interrupt: Callable[[], object]
    wait: Callable[[float], int]
    said: Callable[[], bytes]


def prepare(folder: Path) -> None:
    """A lake with two sessions, and what commands take, once."""
    if (folder / "ready").exists():
        return
    (folder / "configs").mkdir(parents=True, exist_ok=True)
    (folder / "configs/nightly.yaml").write_text("benchmarks: [{model: squeezenet, sessions: 5, traced: 0}]\n")
    (folder / "tracelake").mkdir(exist_ok=True)  # this is the project, not what is above it; the lake is named
    for model in ("squeezenet", "control_flow"):
        subprocess.run(
            [sys.executable, "-P", "-c", ENTRY, "run", "--model", model, *_QUICK],
            env=_environment(folder, "prepare"), cwd=folder, check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
    generate(folder / "capture.db", _CAPTURED)
    (folder / "builds").write_text(f"{_SPEC}\n" * 4)
    for file in (ROOT / "aaco_pipeline/optimization/samples").glob("softmax*"):
        shutil.copy(file, folder)
    (folder / "ready").touch()


def usual_seconds(folder: Path, name: str) -> float:
    """Seconds of a command that nobody interrupts, at most _MOST_SECONDS."""
    with _workplace(folder) as work:
        process = subprocess.Popen(
            _command(work, name), cwd=work, env=_environment(work, "usual"), start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        since = time.monotonic()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_MOST_SECONDS)
        took = time.monotonic() - since
        process.terminate()
        process.wait()
    return took


def try_once(folder: Path, name: str, mode: str, number: signal.Signals, seconds: float) -> Trial:
    """Run a command, send it the signal after this many seconds, and look at everything that was promised."""
    trial, mark = Trial(name, mode, number, seconds), uuid4().hex
    with _workplace(folder) as work:
        starting = _in_terminal if mode == "foreground" else _in_background
        with starting(_command(work, name), work, _environment(work, mark)) as started:
            deadline = time.monotonic() + _LONGEST_SECONDS
            while not _has_signal(started.pid, "SigCgt") and time.monotonic() < deadline:
                time.sleep(0.001)
            time.sleep(seconds)
            before = len(started.said())
            trial.finished = _has_signal(started.pid, "SigIgn")
            since = time.monotonic()
            with suppress(ProcessLookupError):
                started.interrupt() if number == signal.SIGINT else os.kill(started.pid, number)
            try:
                trial.code = started.wait(_LONGEST_SECONDS)
            except (subprocess.TimeoutExpired, TimeoutError):
                trial.broken.append("still runs")
            trial.took_seconds = time.monotonic() - since
            deadline = time.monotonic() + _STRAGGLERS_SECONDS
            while (left := _marked(mark)) and time.monotonic() < deadline:
                time.sleep(0.05)
            trial.lines = _since(started.said(), before)
        for process, command in left.items():
            trial.broken.append(f"left running: {command}")
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        _judge(trial)
        lake = TraceLake(work / "lake")
        health.clear_away(lake)
        trial.broken += [f"lake: {fault}" for fault in health.faults(lake) if "torn" in str(fault)]
    return trial


def _judge(trial: Trial) -> None:
    said = _SAID[trial.number]
    if trial.code == 128 + trial.number:
        if len(trial.lines) != 1 or not trial.lines[0].startswith(said):
            trial.broken.append(f"said {trial.lines}")
    elif trial.code is not None:
        trial.finished = trial.code in (0, 5) and (trial.finished or trial.took_seconds < _ENDING_SECONDS)
        if not trial.finished:
            trial.broken.append(f"code {trial.code} after {trial.took_seconds:.1f} s, said {trial.lines[-3:]}")


# ---- how a command is started ----------------------------------------------------------------------------------------


@contextmanager
def _in_terminal(command: Sequence[str], work: Path, environment: dict[str, str]) -> Iterator[Started]:
    """In the foreground of a terminal; what it says on standard error goes there, too."""
    ours, theirs = pty.openpty()
    settings = termios.tcgetattr(theirs)
    settings[3] &= ~termios.ECHO
    termios.tcsetattr(theirs, termios.TCSANOW, settings)
    said = bytearray()

    def listen() -> None:
        with suppress(OSError):  # no process has the terminal any more
            while piece := os.read(ours, 1 << 16):
                said.extend(piece)

    process = subprocess.Popen(
        [sys.executable, "-S", "-c", _AT_TERMINAL, *command], cwd=work, env=environment, stdin=theirs,
        stdout=subprocess.DEVNULL, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    listening = threading.Thread(target=listen, daemon=True)
    listening.start()

    def wait(seconds: float) -> int:
        code = process.wait(seconds)
        listening.join(_STRAGGLERS_SECONDS)
        return code if code >= 0 else 128 - code

    try:
        yield Started(process.pid, lambda: os.write(ours, b"\x03"), wait, lambda: bytes(said))
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@contextmanager
def _in_background(command: Sequence[str], work: Path, environment: dict[str, str]) -> Iterator[Started]:
    """As `sh -c 'aaco … &'` has it: without job control SIGINT is ignored from the beginning."""
    errors = work / "errors"
    line = f"{shlex.join(command)} >/dev/null 2>{shlex.quote(str(errors))} & echo $!; wait $!; echo $?"
    shell = subprocess.Popen(
        ["sh", "-c", line], cwd=work, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert shell.stdout is not None
    pid = int(shell.stdout.readline())

    def wait(seconds: float) -> int:
        out, _ = shell.communicate(timeout=seconds)
        return int(out)

    def said() -> bytes:
        return errors.read_bytes() if errors.exists() else b""

    try:
        yield Started(pid, lambda: os.kill(pid, signal.SIGINT), wait, said)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        shell.communicate()


@contextmanager
def _workplace(folder: Path) -> Iterator[Path]:
    work = folder / "trial"
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(folder, work, symlinks=True, ignore=shutil.ignore_patterns("trial", "ready"))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _command(work: Path, name: str) -> list[str]:
    sessions = TraceLake(work / "lake").sessions()
    places = {"work": work, "first": sessions[0], "last": sessions[-1]}
    return [sys.executable, "-P", "-c", ENTRY, *(word.format(**places) for word in COMMANDS[name])]


def _environment(work: Path, mark: str) -> dict[str, str]:
    places = {LAKE_VARIABLE: str(work / "lake"), HOME_VARIABLE: str(work / "home")}
    settings = {"TERM": "xterm", "COLUMNS": "200", "BROWSER": "true", "PYTHONFAULTHANDLER": "1"}
    return {**os.environ, **places, **settings, _MARK: mark}


def _has_signal(process: int, mask: str) -> bool:
    """Return whether a process handles SIGTERM (`SigCgt`), or ignores it because it is done (`SigIgn`), or has
    ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return True
    signals = re.search(rf"{mask}:\s*([0-9a-f]+)", status)
    return signals is None or bool(int(signals[1], 16) >> (signal.SIGTERM - 1) & 1)


def _marked(mark: str) -> dict[int, str]:
    """The living processes that inherited a trial's mark, with their command lines."""
    found = {}
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            if process.name.isdecimal() and f"{_MARK}={mark}".encode() in (process / "environ").read_bytes():
                found[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:120]
    return {process: command for process, command in found.items() if command}


def _since(said: bytes, before: int) -> list[str]:
    """The lines on a terminal's screen that were not on it before this many bytes had been written to it."""
    then, now = _screen(said[:before]), _screen(said)
    same = next((at for at, (one, other) in enumerate(zip(then, now, strict=False)) if one != other), len(then))
    return now[same:]


def _screen(said: bytes) -> list[str]:
    """Text that stays readable on a terminal that gets these bytes, without empty lines."""
    rows, row, again = [""], 0, False
    for piece in _CONTROLS.split(said.decode("utf-8", "replace")):
        if piece == "\n":
            row, again = row + 1, False
            rows += [""] * (row == len(rows))
        elif piece == "\r":
            again = True
        elif piece.startswith("\x1b[") and piece.endswith("A"):
            row = max(0, row - int(piece[2:-1] or 1))
        elif piece.startswith("\x1b[") and piece.endswith("K"):
            rows[row] = ""
        elif piece and not piece.startswith("\x1b["):
            rows[row], again = piece if again else rows[row] + piece, False
    return [line for line in map(str.strip, rows) if line]


def main() -> int:
    """Try every command in every way, print a table and what was broken; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--only", action="append", choices=list(COMMANDS))
    asked = parser.parse_args()
    prepare(asked.folder)
    broken = 0
    for name in asked.only or COMMANDS:
        usual = usual_seconds(asked.folder, name)
        tally: Counter[str] = Counter()
        slowest = 0.0
        complaints = []
        for mode in ("foreground", "background"):
            for number in _SAID:
                for share in _SHARES:
                    trial = try_once(asked.folder, name, mode, number, share * usual)
                    tally["broken" if trial.broken else "finished" if trial.finished else "ended"] += 1
                    slowest = max(slowest, 0.0 if trial.finished else trial.took_seconds)
                    where = f"{mode} {number.name} at {trial.seconds:.2f} s"
                    complaints += [f"  {where}: {complaint}" for complaint in trial.broken]
        print(
            f"{name:10} usual {usual:5.1f} s · ended {tally['ended']:2} · had finished {tally['finished']:2} · "
            f"broken {tally['broken']:2} · slowest end {slowest:.1f} s",
            *complaints, sep="\n", flush=True,
        )  # fmt: skip
        broken += tally["broken"]
    print("no promise broken" if not broken else f"{broken} trials broke a promise")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
