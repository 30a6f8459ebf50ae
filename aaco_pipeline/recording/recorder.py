"""A recording: the passes of a program in sequence, the samples taken meanwhile, and the folder with its documents.

The folder appears under its final name in one step, once everything is on disk. It is read by
`aaco_pipeline.formats.program`.
"""

import errno
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from aaco_pipeline import __version__
from aaco_pipeline.errors import LakeError, UsageError
from aaco_pipeline.formats.parsing.redaction import safe_command, safe_name, safe_text, safe_words
from aaco_pipeline.recording.profilers import Beside, Chosen, Counting, choose
from aaco_pipeline.recording.request import RecordRequest, program_path
from aaco_pipeline.recording.runs import Program, Run, Written, run_program
from aaco_pipeline.resources.host.facts import host_facts, momentary_facts
from aaco_pipeline.resources.kernel_plane.page_reader import PERIOD_NS
from aaco_pipeline.resources.kernel_plane.recording import KernelPlane
from aaco_pipeline.resources.measure.measurement_slot import measurement_slot, own_container, slot_path
from aaco_pipeline.resources.rocprofv3.counter_groups import CounterSets, unpacked
from aaco_pipeline.resources.telemetry.sampler import SystemSampler

FORMAT: Final = "aaco-program"
FORMAT_VERSION: Final = 1
CAPTURE: Final = "capture.json"
HOST: Final = "host.json"
TELEMETRY: Final = "telemetry.json"
KERNEL_PLANE: Final = "kernel_plane.json"
RUN: Final = "run.json"
#: Folder, within a run's folder, for the marks of the program's processes.
MARKS: Final = "marks"
#: Characters; a longer word is itself a program, such as the argument of `python -c`.
_LONGEST_WORD: Final = 16 << 10
#: Fields of the keeper's report that a run's document keeps.
_OF_THE_KEEPER: Final = (
    *("process_id", "start_monotonic_ns", "end_monotonic_ns", "user_ns", "system_ns", "max_rss_bytes"),
    *("max_rss_floor_bytes", "status", "signal", "timed_out", "clocks_before", "clocks_after"),
)


def capture_document(
    request: RecordRequest,
    slot: Mapping[str, Any],
    passes: Sequence[Mapping[str, Any]],
    profilers: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Build capture.json of a recording: the program, the request, the passes in order, and the available profilers."""
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "writer": f"aaco_pipeline {__version__}",
        "workload": {"kind": "program", "name": safe_name(request.name), "command": _shown(request.command)},
        "request": request.document(),
        "measurement_slot": dict(slot),
        "passes": list(passes),
        "profilers": list(profilers),
    }


def pass_document(name: str, kind: str, command: Sequence[str], profiler: str | None = None) -> dict[str, Any]:
    """Build the capture's entry for a pass, whose folder has its name. `kind` is `run`, `trace` or `counters`."""
    shown = {"command": _shown(command), "counters": []}
    return {"name": name, "kind": kind, "folder": name, "profiler": profiler, **shown}


def write_run(folder: Path, run: Run) -> None:
    """Write a run's document and the tails of its output into its folder."""
    marks = folder / MARKS
    left = [{**one, "command": safe_command(one["command"])} for one in run.ended["left_running"]]
    write_json(
        folder / RUN,
        {
            **{key: run.ended[key] for key in _OF_THE_KEEPER},
            "left_running": left,
            "marks_files": sorted(file.name for file in marks.glob("*.marks")),
            "stdout": _kept(folder, "stdout", run.stdout),
            "stderr": _kept(folder, "stderr", run.stderr),
        },
    )
    if not any(marks.iterdir()):
        marks.rmdir()


def _shown(command: Sequence[str]) -> list[str]:
    """Return a command line for a document, without secrets and with long words shortened."""
    return safe_words([word[:_LONGEST_WORD] for word in command])


def _kept(folder: Path, name: str, written: Written) -> dict[str, int | str]:
    file = f"{name}_tail"
    (folder / file).write_bytes(written.tail)
    return {"bytes": written.total_bytes, "tail_file": file}


def write_json(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


def sync(folder: Path) -> None:
    """Flush a folder and its content to disk. Raises OSError."""
    for path in (*folder.rglob("*"), folder):
        sync_names(path)


def sync_names(path: Path) -> None:
    """Flush one file, or the entries of one folder, to disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


#: Prefix of a folder's name while it is being filled; the final name follows.
_UNFINISHED: Final = ".aaco-recording-"
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Recorded:
    """A complete folder, the result of each pass by name, and the reason why there are no more passes."""

    folder: Path
    runs: tuple[tuple[str, Run], ...]
    failure: str | None


def record(
    request: RecordRequest,
    folder: Path,
    tell: Callable[[str], None],
    environment: Mapping[str, str] | None = None,
    counter_sets: Callable[[], CounterSets] = unpacked,
) -> Recorded:
    """Record into `folder`, which must not exist yet. Waits for the host's measurement slot.

    `tell` is called with a line for each event that the user should know about; `counter_sets` gives the AMD counters.
    Raises UsageError before anything is created, UnavailableError if a requested profiler is missing, and LakeError if
    the folder cannot be written.
    """
    known = dict(os.environ if environment is None else environment)
    program = Program(program_path(request.command, known), request.command, known)
    if os.path.lexists(folder):
        raise UsageError(f"{folder}: is there already; name a folder that is not, or remove it")
    chosen = choose(request, known, counter_sets)
    with measurement_slot(on_wait=tell) as slot, _system_errors(folder), _unfinished(folder) as (work, lock):
        passes = _Passes(request, program, chosen, work, (slot, lock), tell)
        passes.record()
        sync(work)
        work.rename(folder)
        sync_names(folder.parent)
    return Recorded(folder, tuple(passes.runs), passes.failure)


@dataclass(frozen=True)
class _Watching:
    """Listeners that are called for each process of a run."""

    sampler: SystemSampler
    plane: KernelPlane | None

    def admit(self, keeper: int) -> None:
        """Record the process that will start the program."""
        if self.plane is not None:
            self.plane.admit(keeper)

    def follow(self, process: int, name: str) -> None:
        """Sample and record the program in the named pass."""
        self.sampler.watch(process, name)
        if self.plane is not None:
            self.plane.follow(process, name)


@dataclass
class _Passes:
    """The passes over one program."""

    request: RecordRequest
    program: Program
    chosen: Chosen
    folder: Path
    held: tuple[int, ...]
    tell: Callable[[str], None]
    runs: list[tuple[str, Run]] = field(default_factory=list)
    failure: str | None = None

    def record(self) -> None:
        """Run the passes and write all documents into the folder."""
        facts = host_facts()
        facts["facts"] += momentary_facts()
        kind = next(f["value"] for f in facts["facts"] if (f["category"], f["key"]) == ("container", "kind"))
        lock = {"file": str(slot_path()), "container": own_container(kind)}
        plane = KernelPlane(self.folder) if self.request.kernel_plane else None
        sampling = SystemSampler() if plane is None else SystemSampler(PERIOD_NS)
        # Anything that starts a process of its own is started before the first measured process.
        with plane or nullcontext(), sampling as sampler:
            made = list(self._made(_Watching(sampler, plane)))
        write_json(self.folder / HOST, facts)
        write_json(self.folder / TELEMETRY, sampler.samples())
        if plane is not None:
            write_json(self.folder / KERNEL_PLANE, plane.document())
        capture = capture_document(self.request, lock, made, self.chosen.documents)
        write_json(self.folder / CAPTURE, capture)

    def _made(self, watching: "_Watching") -> Iterator[dict[str, Any]]:
        """Run the passes and yield the capture's entry for each. Stops after the first in which the program fails."""
        for number in range(1, self.request.warmup_runs + self.request.runs + 1):
            yield self._run(f"run_{number}", "run", watching)
            if self._failed():
                return
        if self.chosen.profiler is not None:
            yield self._run("trace", "trace", watching, self.chosen.profiler, self.chosen.name)
            if self._failed():
                return
        for number, counting in enumerate(self.chosen.counting, 1):
            unseen = _Watching(watching.sampler, None)  # a counting run has no duration to explain
            document = self._run(f"counters_{number}", "counters", unseen, counting, counting.name)
            name, run = self.runs[-1]
            reason = _why_not_counted(counting, self.folder / name / counting.name, run)
            if reason is not None:
                self.tell(reason)
            shown = None if reason is None else safe_text(reason)
            yield {**document, "counters": list(counting.counters), "reason": shown}
            if run.ended["timed_out"]:  # the others take the same time
                return

    def _failed(self) -> bool:
        """Return whether the program failed in its last run, alone or traced; a counting run may fail due to ncu."""
        name, run = self.runs[-1]
        if run.failure is not None:
            self.failure = f"{self.request.command[0]}: {name} {run.failure}"
        return run.failure is not None

    def _run(
        self, name: str, kind: str, watching: "_Watching", beside: Beside | None = None, profiler: str | None = None
    ) -> dict[str, Any]:
        """Run one pass in a folder of its own, under the profiler `beside` it; return its entry for the capture."""
        folder = self.folder.absolute() / name
        marks = folder / MARKS
        marks.mkdir(parents=True)
        environment = {**self.program.environment, "AACO_MARKS": str(marks)}
        program = Program(self.program.path, self.program.command, environment)
        if beside is not None and profiler is not None:
            profile = folder / profiler
            profile.mkdir()
            command = beside.around(self.program.command, profile)
            environment |= beside.environment(profile)
            program = Program(program_path(command, environment), command, environment)
        run = run_program(
            program,
            timeout_seconds=self.request.timeout_seconds,
            held=self.held,
            quiet=self.request.quiet,
            keeper_started=watching.admit,
            started=partial(watching.follow, name=name),
        )
        write_run(folder, run)
        self.runs.append((name, run))
        self.tell(_summary(name, run))
        return pass_document(name, kind, program.command, profiler)


def _summary(name: str, run: Run) -> str:
    seconds = (run.ended["end_monotonic_ns"] - run.ended["start_monotonic_ns"]) / 1e9
    left = len(run.ended["left_running"])
    more = f"; ended {left} that it left running" if left else ""
    stuck = ", ".join(str(one["pid"]) for one in run.ended["not_ended"])
    more += f"; could not end {stuck}: whose are they?" if stuck else ""
    return f"{name}: {seconds:.3f} s{more}"


def _why_not_counted(counting: Counting, folder: Path, run: Run) -> str | None:
    """Return the reason why a run counted nothing, or not everything; None if it counted everything."""
    if run.ended["timed_out"]:
        return (
            f"counters: {counting.name} did not end within the time limit; raise --timeout, ask for fewer sets, or "
            "record a shorter run"
        )
    said = b"\n".join((run.stdout.tail, run.stderr.tail)).decode(errors="replace")
    reason = counting.why_failed(folder, said)
    if reason is None and run.failure is not None:
        reason = f"counters: the program {run.failure} under {counting.name}, and did not without it"
    return reason


@contextmanager
def _unfinished(folder: Path) -> Iterator[tuple[Path, int]]:
    """Create a temporary folder next to `folder`, with its lock's descriptor; remove it unless it was renamed."""
    parent = folder.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    for left in parent.glob(f"{_UNFINISHED}*"):
        _remove_if_nobodys(left)
    work = Path(tempfile.mkdtemp(prefix=f"{_UNFINISHED}{folder.name}-", dir=parent))
    lock = os.open(work, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        work.chmod(0o777 & ~_umask())
        yield work, lock
    finally:
        os.close(lock)
        shutil.rmtree(work, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _remove_if_nobodys(folder: Path) -> None:
    """Remove a killed recorder's folder; a live recorder, or the keeper of its program, holds a lock on it."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return
    else:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


@contextmanager
def _system_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise LakeError(f"{folder}: the disk is full; make room, then record again") from error
        where = error.filename or folder
        raise LakeError(f"{where}: {error.strerror or error}; nothing is recorded: record elsewhere") from error
