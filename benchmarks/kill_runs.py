"""Kill whole `aaco run`s at random instants and check that nothing earlier is lost and that the next run succeeds.

After each kill: every earlier session still has the very bytes it had, no published file is torn, `aaco doctor --mend`
mends everything, and the same run succeeds. Then runs that hold the measurement slot are killed while another run
waits for it, and the time until that one measures is taken. Run as `python benchmarks/kill_runs.py --kills 20`; it
exits with 1 when any promise was broken.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Final

import aaco_pipeline
from aaco_pipeline.lake.health import faults
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.project import HOME_VARIABLE, LAKE_VARIABLE

ROOT: Final = Path(aaco_pipeline.__file__).parents[1]
MODEL: Final = "squeezenet"
ITERATIONS: Final = 20
#: So many iterations last longer than anybody waits here: a run that only a kill ends.
FOR_EVER: Final = 10_000_000
LONGEST_RUN_SECONDS: Final = 120.0
_ENTRY: Final = "from aaco_pipeline.cli.main import entry; entry()"
_POLL_SECONDS: Final = 0.02
START_SECONDS: Final = 5.0


@dataclass(frozen=True)
class Workplace:
    """A lake with its instance below one folder, and the `aaco` command on it in processes of their own."""

    folder: Path

    @property
    def lake(self) -> TraceLake:
        return TraceLake(self.folder / "lake")

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """`aaco` with `arguments`, at the head of a process group of its own."""
        places = {LAKE_VARIABLE: str(self.lake.path), HOME_VARIABLE: str(self.folder / "home")}
        return subprocess.Popen(
            [sys.executable, "-P", "-c", _ENTRY, *arguments],
            cwd=ROOT,
            env={**os.environ, **places},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def start_run(self, iterations: int = ITERATIONS) -> "subprocess.Popen[str]":
        return self.start("run", "--model", MODEL, "--iterations", str(iterations), "--warmup", "1", "--json")

    def call(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """`aaco` with `arguments`, to its end."""
        return finished(self.start(*arguments))

    def measuring(self) -> list[Path]:
        """The folders of captures that are being measured at this instant: their runs hold the slot."""
        return [work.parent for work in (self.lake.path / "raw").glob(".tmp-*/.*") if work.is_dir()]

    def measured(self, session: str) -> tuple[int, int]:
        """When the measured part of `session` began and ended, on the host's monotonic clock."""
        raw = self.lake.raw(session)
        first, last = (json.loads((raw / f"{name}.json").read_text()) for name in ("latency", "trace"))
        return first["clocks_before"]["monotonic_ns"], last["clocks_after"]["monotonic_ns"]

    def digests(self) -> dict[str, dict[str, str]]:
        """For every published session the digest of each of its files, its manifest's and its capture's included."""
        lake = self.lake
        found: dict[str, dict[str, str]] = {}
        for session in lake.sessions():
            files = [lake.path / entry.file for entry in lake.manifest(session).entries]
            files += [lake.path / "manifests" / f"{session}.json"]
            files += [file for file in lake.raw(session).rglob("*") if file.is_file()]
            found[session] = {
                str(file): sha256(file.read_bytes()).hexdigest() if file.is_file() else "missing" for file in files
            }
        return found


@dataclass
class Outcome:
    """What the kills met, counted, the seconds taken, and every broken promise in words."""

    kills: int = 0
    too_late: int = 0
    run_seconds: float = 0.0
    states: Counter[str] = field(default_factory=Counter)
    takeover_seconds: list[float] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)


def finished(process: "subprocess.Popen[str]") -> "subprocess.CompletedProcess[str]":
    """What `process` printed and returned; it and all its children are killed after LONGEST_RUN_SECONDS."""
    try:
        out, err = process.communicate(timeout=LONGEST_RUN_SECONDS)
    except BaseException:
        kill_group(process)
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def kill_group(process: "subprocess.Popen[str]") -> None:
    """End `process` with everything it started, unless it has ended, and forget what it printed."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    if process.stdout is not None and not process.stdout.closed:
        process.communicate()


def wait_until(condition: Callable[[], object], process: "subprocess.Popen[str] | None" = None) -> bool:
    """Wait for `condition`, and only while `process` runs; whether it came true."""
    deadline = time.monotonic() + LONGEST_RUN_SECONDS
    while (process is None or process.poll() is None) and time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(_POLL_SECONDS)
    return False


def prepare(place: Workplace, outcome: Outcome) -> None:
    """Two earlier sessions; the quicker run, with everything in the caches, tells how long a run lasts."""
    for _ in range(2):
        started = time.monotonic()
        done = finished(place.start_run())
        seconds = time.monotonic() - started
        outcome.run_seconds = min(seconds, outcome.run_seconds or seconds)
        if done.returncode != 0:
            raise RuntimeError(f"a run that nobody kills ended with {done.returncode}: {done.stderr}")


def kill_once(place: Workplace, outcome: Outcome, delay_seconds: float, *, again: bool = True) -> None:
    """Start a run, kill it after the delay, and check every promise; with `again`, also that the same run succeeds."""
    before = place.digests()
    process = place.start_run()
    try:
        process.communicate(timeout=delay_seconds)
    except subprocess.TimeoutExpired:
        process.kill()  # the run alone: what it started has to notice by itself
        process.communicate()
    if process.returncode == 0:
        outcome.too_late += 1
    else:
        outcome.kills += 1
        outcome.states[_state(place, before)] += 1
    complaints = check(place, before)
    if again:
        done = finished(place.start_run())
        if done.returncode != 0:
            complaints.append(f"the next run ended with {done.returncode}: {done.stderr.strip()}")
        complaints += check(place, before)
    outcome.violations += [f"kill {outcome.kills}, after {delay_seconds:.2f} s: {text}" for text in complaints]


def check(place: Workplace, before: dict[str, dict[str, str]]) -> list[str]:
    """Every promise that is broken: about the sessions `before`, what is published, and what can be mended."""
    now = place.digests()
    complaints = [f"earlier session {session} has changed" for session in before if now.get(session) != before[session]]
    complaints += [f"{f.kind}: {f.path}" for f in faults(place.lake) if not f.mendable]
    mended = place.call("doctor", "--mend", "--json")
    if mended.returncode != 0:
        unmended = [row for row in json.loads(mended.stdout or "[]") if row["state"] != "mended"]
        complaints.append(f"doctor --mend ended with {mended.returncode}: {unmended or mended.stderr.strip()}")
    left = json.loads(place.call("doctor", "--json").stdout)
    complaints += [f"left after mending: {row['kind']} {row['subject']}" for row in left]
    return complaints


def take_over(place: Workplace, outcome: Outcome, pause_seconds: float) -> None:
    """Kill the run that measures while another waits for the slot; the time until the other one measures."""
    before = place.digests()
    holder, waiter = place.start_run(FOR_EVER), None
    try:
        if not wait_until(place.measuring, holder):
            raise RuntimeError("the run that was to hold the slot never measured")
        waiter = place.start_run()
        time.sleep(START_SECONDS + pause_seconds)  # a run that waits has nothing in the lake yet to be seen by
        if len(place.measuring()) != 1:
            outcome.violations.append("two runs measured at the same time")
        killed_ns = time.monotonic_ns()
        holder.kill()
        done = finished(waiter)
    finally:
        kill_group(holder)
        if waiter is not None:
            kill_group(waiter)
    new = [session for session in place.lake.sessions() if session not in before]
    outcome.violations += check(place, before)
    if done.returncode != 0 or len(new) != 1:
        outcome.violations.append(f"the waiting run ended with {done.returncode} and left {new}: {done.stderr.strip()}")
        return
    began_ns = place.measured(new[0])[0]
    if began_ns < killed_ns:
        outcome.violations.append(f"session {new[0]} was measured while the slot was held")
    outcome.takeover_seconds.append((began_ns - killed_ns) / 1e9)


def summary(outcome: Outcome) -> str:
    """The outcome as a table of text, with the verdict last."""
    taken = outcome.takeover_seconds
    rows = [
        ("runs killed", f"{outcome.kills}"),
        ("runs that were done before their kill", f"{outcome.too_late}"),
        ("seconds of a whole run", f"{outcome.run_seconds:.1f}"),
        *((f"killed {name}", f"{count}") for name, count in sorted(outcome.states.items())),
        ("slot holders killed while another run waited", f"{len(taken)}"),
    ]
    if taken:
        rows += [
            ("seconds until the other measured: least", f"{min(taken):.2f}"),
            ("seconds until the other measured: median", f"{statistics.median(taken):.2f}"),
            ("seconds until the other measured: most", f"{max(taken):.2f}"),
        ]
    rows.append(("broken promises", f"{len(outcome.violations)}"))
    width = max(len(name) for name, _ in rows)
    table = "\n".join(f"{name:<{width}}  {value:>8}" for name, value in rows)
    verdict = "some promise was broken" if outcome.violations else "every promise was kept"
    return f"{table}\n{verdict}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill runs and print what was found; 1 when a promise was broken."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--takeovers", type=int, default=5)
    parser.add_argument("--seed", type=int, default=20250102)
    options = parser.parse_args(arguments)
    rng = random.Random(options.seed)
    outcome = Outcome()
    with tempfile.TemporaryDirectory() as folder:
        place = Workplace(Path(folder))
        prepare(place, outcome)
        while outcome.kills < options.kills and outcome.too_late <= 2 * options.kills:
            kill_once(place, outcome, rng.uniform(0, outcome.run_seconds))
        for _ in range(options.takeovers):
            take_over(place, outcome, rng.uniform(0, 1))
    print(summary(outcome))
    for violation in outcome.violations:
        print(violation, file=sys.stderr)
    return 1 if outcome.violations else 0


def _state(place: Workplace, before: dict[str, dict[str, str]]) -> str:
    """How far the killed run had come, in words."""
    lake = place.lake
    new = [session for session in lake.sessions() if session not in before]
    if new:
        stages = {entry.stage for entry in lake.manifest(new[0]).entries}
        return f"with {len(stages)} stages published"
    if place.measuring():
        return "while measuring"
    if lake.requests():
        return "between registering and publishing"
    return "before anything was registered"


if __name__ == "__main__":
    sys.exit(main())
