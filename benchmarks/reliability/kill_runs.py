"""Kill commands and Dagster's own runs at random instants: every session ends whole and answered.

After each kill one `aaco doctor --mend`, the same command again, or the restarted daemon must make everything whole,
lose or double nothing, and free the measurement slot. `--results FILE` is resumed.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import IO, Final

import dagster as dg

from aaco_pipeline.automation.instance import open_instance
from aaco_pipeline.automation.runs import UNFINISHED
from aaco_pipeline.lake.health import faults
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.inbox import DONE_FILE, inbox_of
from aaco_pipeline.report.session.document import session_summary
from aaco_pipeline.report.session.sentences import half
from aaco_pipeline.resources.host.kernel_files import PID_TAG
from aaco_pipeline.resources.project import HOME_VARIABLE, LAKE_VARIABLE, WORKSPACE, Project
from benchmarks.common import ENTRY, ROOT, keep_trial, killing, reported, seconds_of, trials_of

_RUN: Final = ("run", "--model", "squeezenet", "--iterations", "5", "--warmup", "1", "--json")
KINDS: Final = ("run", "ingest", "calibrate", "doctor", "gc", "daemon")
LONGEST_RUN_SECONDS: Final = 1800.0
#: From the daemon's start to the end of what it has found to do: ticks are half a minute apart.
LONGEST_DAEMON_SECONDS: Final = 1800.0
KEPT_SESSIONS: Final = 6
_CAPTURE: Final = (
    '"Kind","Agent_Id","Queue_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id",'
    '"Start_Timestamp","End_Timestamp","Workgroup_Size_X","Grid_Size_X"\n'
    '"KERNEL_DISPATCH","Agent 1",1,77,1,5,"scale",3,1000,{end},64,640\n'
)
_POLL_SECONDS: Final = 0.02
#: Numbers from here on are of captures that are taken in before anything is killed.
_WARM: Final = 1_000_000


@dataclass(frozen=True)
class Workplace:
    """A lake with its instance below one folder, and the `aaco` command on it in processes of their own."""

    folder: Path

    @property
    def lake(self) -> TraceLake:
        return TraceLake(self.folder / "lake")

    @property
    def project(self) -> Project:
        return Project(ROOT, self.lake.path, self.folder / "home")

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """`aaco` with `arguments`, at the head of a process group of its own."""
        return self._started([sys.executable, "-P", "-c", ENTRY, *arguments], ROOT, subprocess.PIPE)

    def start_run(self) -> "subprocess.Popen[str]":
        return self.start(*_RUN)

    def start_daemon(self, output: "int | IO[bytes]" = subprocess.DEVNULL) -> "subprocess.Popen[str]":
        """Dagster's daemon, which evaluates the sensors and starts their runs in processes of its code server."""
        workspace = str(self.project.settings(WORKSPACE))
        command = [str(Path(sys.executable).with_name("dagster-daemon")), "run", "-w", workspace]
        return self._started(command, ROOT / "benchmarks", output)

    def call(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """`aaco` with `arguments`, to its end."""
        return finished(self.start(*arguments))

    def unwell(self) -> list[str]:
        """Findings of `aaco doctor`, which mends nothing."""
        done = self.call("doctor", "--json")
        if done.returncode != 0:
            return [f"doctor ended with {done.returncode}: {done.stderr or done.stdout}"]
        return [f"doctor: {one['kind']} {one['subject']}: {one['why']}" for one in json.loads(done.stdout)]

    def measuring(self) -> list[Path]:
        """The folders of captures that are being measured at this instant: their runs hold the slot."""
        return [work.parent for work in (self.lake.path / "raw").glob(".tmp-*/.*") if work.is_dir()]

    def whole(self) -> dict[str, str]:
        """For every whole session the digest of its manifest, which holds those of its tables."""
        lake = self.lake
        return {
            session: sha256(lake.manifest(session).to_bytes()).hexdigest()
            for session in lake.sessions()
            if lake.progress(session).is_whole
        }

    def begun(self) -> set[str]:
        """Every session of which the lake holds anything that is not to be lost."""
        return {*self.lake.sessions(), *self.lake.captured(), *self.lake.requests()}

    def drop_capture(self, name: str, folder: Path) -> Path:
        """A small capture of its own content at `folder`; `name` becomes part of its session's id."""
        made = folder / name
        made.mkdir(parents=True)
        (made / "out_kernel_trace.csv").write_text(_CAPTURE.format(end=2000 + int(name.rpartition("-")[2])))
        (made / DONE_FILE).touch()
        return made

    def _started(self, command: list[str], folder: Path, output: "int | IO[bytes]") -> "subprocess.Popen[str]":
        places = {LAKE_VARIABLE: str(self.lake.path), HOME_VARIABLE: str(self.folder / "home")}
        return subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **places},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            text=True,
            start_new_session=True,
        )


@dataclass
class Kill:
    """One kill: when, what it met, what came next, and every broken promise in words."""

    number: int
    kind: str
    seconds: float
    met: str = ""
    then: str = ""
    too_late: bool = False
    violations: list[str] = field(default_factory=list)


def finished(process: "subprocess.Popen[str]") -> "subprocess.CompletedProcess[str]":
    """Output and exit code of `process`; it and all its children are killed after LONGEST_RUN_SECONDS."""
    try:
        out, err = process.communicate(timeout=LONGEST_RUN_SECONDS)
    except BaseException:
        kill_group(process)
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def kill_group(process: "subprocess.Popen[str]") -> None:
    """End `process` with everything it started, also what outlived it, and forget what it printed."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.stdout is not None and not process.stdout.closed:
        process.communicate()
    process.wait()


def wait_until(
    condition: Callable[[], object],
    process: "subprocess.Popen[str] | None" = None,
    seconds: float = LONGEST_RUN_SECONDS,
) -> bool:
    """Wait for `condition`, and only while `process` runs; whether it came true."""
    deadline = time.monotonic() + seconds
    while (process is None or process.poll() is None) and time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(_POLL_SECONDS)
    return False


def kill_once(place: Workplace, kind: str, number: int, rng: random.Random, usual_seconds: float) -> Kill:
    """Kill one thing of a kind at a random instant, do what comes next, and check every promise."""
    if kind == "daemon":
        return kill_daemon(place, number, rng)
    if kind == "doctor":  # something for it to do
        leave_half(place, rng.uniform(0.3, 0.9) * usual_seconds)
    before, stale, command = place.whole(), place.measuring(), _command(place, kind, number)
    kill = Kill(number, kind, rng.uniform(0, usual_seconds))
    process, began = place.start(*command), time.monotonic()
    try:
        process.communicate(timeout=kill.seconds)
        kill.seconds = time.monotonic() - began  # a better estimate of how long it lasts
    except subprocess.TimeoutExpired:
        process.kill()  # the command alone: what it started has to notice by itself
        process.communicate()
    kill.too_late = process.returncode == 0
    kill.met, begun = _met(place, before, stale), place.begun()
    following = _following(place, kind, command) if rng.random() < 0.5 else ("doctor", "--mend", "--json")
    kill.then = following[0]
    done = place.call(*following)
    if done.returncode != 0:
        kill.violations.append(f"{' '.join(following)} ended with {done.returncode}: {done.stderr or done.stdout}")
    kill.violations += check(place, before, begun, may_go=kind == "gc")
    return kill


def kill_daemon(place: Workplace, number: int, rng: random.Random) -> Kill:
    """Kill a run of Dagster's daemon, the daemon, or both while it takes in a capture; then mend, or start it again."""
    name, kill = f"dropped-{number}", Kill(number, "daemon", rng.uniform(0, 20))
    before, stale = place.whole(), place.measuring()
    place.drop_capture(name, inbox_of(place.lake.path))
    daemon = place.start_daemon()
    try:
        wait_until(lambda: _unfinished(place), daemon, LONGEST_DAEMON_SECONDS)
        time.sleep(kill.seconds)
        victim = rng.choice(("the run's process", "the daemon", "all of it"))
        kill.met = f"{victim}, {_met(place, before, stale)}"
        if victim == "the run's process":
            for pid in _processes(place):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        elif victim == "the daemon":
            daemon.kill()
        kill.then = rng.choice(("doctor", "daemon"))
        if victim == "all of it" or kill.then == "doctor":
            kill_group(daemon)
        if kill.then == "daemon":
            daemon.kill()
            daemon.wait()
            restarted = place.start_daemon()
            try:
                if not wait_until(lambda: _is_done(place, name), restarted, LONGEST_DAEMON_SECONDS):
                    kill.violations.append(f"the daemon started again did not finish {name}")
            finally:
                kill_group(restarted)
    finally:
        kill_group(daemon)
    begun = place.begun()
    if kill.then == "doctor":
        done = place.call("doctor", "--mend", "--json")
        if done.returncode != 0:
            kill.violations.append(f"doctor --mend ended with {done.returncode}: {done.stderr or done.stdout}")
    kill.violations += check(place, before, begun, may_take_more=True)
    if not _sessions_named(place, name) and not (inbox_of(place.lake.path) / name).is_dir():
        kill.violations.append(f"capture {name} is lost")
    return kill


def leave_half(place: Workplace, seconds: float) -> None:
    """A run that was killed after this many seconds."""
    process = place.start_run()
    with suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=seconds)
    kill_group(process)


def check(
    place: Workplace, before: dict[str, str], begun: set[str], *, may_go: bool = False, may_take_more: bool = False
) -> list[str]:
    """Every promise that is broken, of the sessions whole `before` and of all that was `begun` when the kill came.

    Retention may remove sessions, and a daemon may take in what an earlier kill has left in the inbox.
    """
    complaints = list(_half_or_mute(place))
    now, left = place.whole(), place.begun()
    complaints += [f"session {one} has changed" for one in before if one in now and now[one] != before[one]]
    if not may_go:
        complaints += [f"session {one} is lost" for one in sorted((set(before) | begun) - left)]
    if len(set(now) - set(before)) > 1 and not may_take_more:
        complaints.append(f"{len(set(now) - set(before))} sessions of one command: {sorted(set(now) - set(before))}")
    for name in {one.partition("-dropped-")[2] for one in now if "-dropped-" in one}:
        if len(_sessions_named(place, f"dropped-{name}")) > 1:
            complaints.append(f"capture dropped-{name} is several sessions")
    complaints += [f"{f.kind}: {f.path}" for f in faults(place.lake) if f.kind in ("torn file", "missing file")]
    return complaints + list(_held_or_unended(place))


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill until so many kills met something, and print what was found; 1 when a promise was broken."""
    parser = killing(__doc__, 150)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    options = parser.parse_args(arguments)
    place, kills = Workplace(options.folder.absolute()), trials_of(options.results, Kill)
    place.folder.mkdir(parents=True, exist_ok=True)
    usual = _usual_seconds(place, [kind for kind in options.kinds if kind not in ("doctor", "daemon")])
    while sum(not one.too_late for one in kills) < options.kills:
        number = len(kills) + 1
        rng = random.Random(f"{options.seed}-{number}")
        kind = options.kinds[number % len(options.kinds)]
        kill = kill_once(place, kind, number, rng, usual.get(kind, usual.get("run", 30.0)))
        keep_trial(options.results, kills, kill)
        if kill.too_late:
            usual[kind] = kill.seconds
        if len(place.lake.sessions()) > 3 * KEPT_SESSIONS:  # every check reads every table
            place.call("gc", "--keep-last", str(KEPT_SESSIONS))
    counted = [one for one in kills if not one.too_late]
    rows = [(f"killed {name}", count) for name, count in sorted(Counter(one.kind for one in counted).items())]
    rows += [(f"then {name}", count) for name, count in sorted(Counter(one.then for one in counted).items())]
    broken = [f"kill {k.number} ({k.kind}, {k.met}, then {k.then}): {each}" for k in kills for each in k.violations]
    return reported([*rows, ("done before their kill", len(kills) - len(counted))], broken)


def _command(place: Workplace, kind: str, number: int) -> tuple[str, ...]:
    if kind == "ingest":
        return "ingest", str(place.drop_capture(f"dropped-{number}", place.folder / "captures"))
    return {
        "run": _RUN,
        "calibrate": ("calibrate", "--threads", "1", "--seconds", "1"),
        "doctor": ("doctor", "--mend", "--json"),
        "gc": ("gc", "--keep-last", str(max(2, len(place.lake.sessions()) - 2))),
    }[kind]


def _following(place: Workplace, kind: str, command: tuple[str, ...]) -> tuple[str, ...]:
    """The next command on the same thing: on the half session that it left, else itself once more."""
    left = [one for one in place.lake.sessions() if not place.lake.progress(one).is_whole]
    if kind in ("run", "doctor") and len(left) == 1:
        return "show", left[0], "--json"
    return ("doctor", "--mend", "--json") if kind == "run" else command


def _usual_seconds(place: Workplace, kinds: Sequence[str]) -> dict[str, float]:
    """Seconds of each kind of command when nobody kills it, with everything in the caches."""
    kept = place.folder / "usual.json"
    if kept.is_file():
        usual: dict[str, float] = json.loads(kept.read_text())
        return usual
    usual = {}
    for turn in range(2):
        for number, kind in enumerate(kinds):
            command = _command(place, kind, _WARM + number + turn * len(kinds))
            usual[kind] = seconds_of(partial(place.call, *command))
    kept.write_text(json.dumps(usual))
    return usual


def _met(place: Workplace, before: dict[str, str], stale: Sequence[Path]) -> str:
    """Progress of the killed thing, in words; `stale` was left by earlier kills."""
    lake = place.lake
    if set(place.measuring()) - set(stale):
        return "while measuring"
    new = sorted(place.begun() - set(before))
    if not new:
        return "with nothing half"
    if lake.raw(new[-1]).is_dir():
        return f"with {lake.progress(new[-1]).count}"
    return "before its capture was complete"


def _half_or_mute(place: Workplace) -> Iterator[str]:
    """Sessions that are not whole, or of which no answer can be given."""
    lake = place.lake
    for session in sorted(place.begun()):
        if not lake.progress(session).is_whole:
            yield f"session {session} has {lake.progress(session).count}"
            continue
        document = session_summary(lake, session)
        measured = lake.raw(session).joinpath("latency.json").is_file()
        if half(document) is not None or not document["top_kernels"] or (measured and not document["metrics"]):
            yield f"session {session} has no answer"


def _held_or_unended(place: Workplace) -> Iterator[str]:
    """Slots that somebody holds, and runs that have not ended, once Dagster's daemon had its time to end them."""
    if _unfinished(place):
        daemon = place.start_daemon()
        try:
            wait_until(lambda: not _unfinished(place), daemon, LONGEST_DAEMON_SECONDS)
        finally:
            kill_group(daemon)
    for run in _unfinished(place):
        yield f"run {run.run_id} of {run.job_name} is {run.status.value} for ever"
    if not place.project.dagster_home.is_dir():
        return
    with open_instance(place.project) as instance:
        for run_id in instance.event_log_storage.get_concurrency_run_ids():
            yield f"run {run_id} holds a slot"


def _unfinished(place: Workplace) -> list[dg.DagsterRun]:
    if not place.project.dagster_home.is_dir():
        return []  # Dagster has run nothing here
    with open_instance(place.project) as instance:
        return list(instance.get_runs(dg.RunsFilter(statuses=list(UNFINISHED))))


def _processes(place: Workplace) -> list[int]:
    """The processes of the runs under way that have said which is theirs."""
    return [int(run.tags[PID_TAG]) for run in _unfinished(place) if PID_TAG in run.tags]


def _sessions_named(place: Workplace, name: str) -> list[str]:
    return [session for session in place.begun() if session.endswith(f"-{name}")]


def _is_done(place: Workplace, name: str) -> bool:
    """Return whether the capture is a whole session, every other session is whole, and no run is under way."""
    time.sleep(1)
    sessions = place.begun()
    is_whole = all(place.lake.progress(session).is_whole for session in sessions)
    return bool(_sessions_named(place, name)) and is_whole and not _unfinished(place)


if __name__ == "__main__":
    sys.exit(main())
