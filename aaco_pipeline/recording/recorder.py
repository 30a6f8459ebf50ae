"""A recording: the passes of a program one after another, what was sampled beside them, and a folder that is whole.

The folder appears under its name in one step, when all of it is on the disk; what a killed recorder left of an earlier
one is removed by the next that records beside it. What the files are called is `aaco_pipeline.recording.documents`.
"""

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from aaco_pipeline.errors import LakeError, UsageError
from aaco_pipeline.recording import documents
from aaco_pipeline.recording.profilers.choosing import Chosen, choose
from aaco_pipeline.recording.request import RecordRequest, program_path
from aaco_pipeline.recording.runs import Program, Run, run_program
from aaco_pipeline.resources.host.facts import host_facts, momentary_facts
from aaco_pipeline.resources.measure.measurement_slot import measurement_slot, own_container, slot_path
from aaco_pipeline.resources.telemetry.sampler import SystemSampler
from aaco_pipeline.resources.telemetry.scheduler_events import SchedulerTrace

#: What a folder is called while it is filled; the name of what it is to become follows.
_UNFINISHED: Final = ".aaco-recording-"
_TRACE: Final = "trace"
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Recorded:
    """A folder that is whole, and of its runs each pass and what came of it; `failure` is why there are no more."""

    folder: Path
    runs: tuple[tuple[str, Run], ...]
    failure: str | None


def record(
    request: RecordRequest,
    folder: Path,
    tell: Callable[[str], None],
    environment: Mapping[str, str] | None = None,
) -> Recorded:
    """Record into `folder`, which must not be there yet. Waits for the host's measurement slot.

    `tell` is given a line for what a person should know as it happens. Raises UsageError before anything is made,
    UnavailableError for a profiler that is asked for and is not there, LakeError when the folder cannot be written.
    """
    known = dict(os.environ if environment is None else environment)
    program = Program(program_path(request.command, known), request.command, known)
    if os.path.lexists(folder):
        raise UsageError(f"{folder}: is there already; name a folder that is not, or remove it")
    chosen = choose(request.trace, request.command, known)
    waits = partial(tell, "waiting for the measurement slot: another run is measuring")
    with measurement_slot(on_wait=waits) as slot, _system_errors(folder), _unfinished(folder) as (work, lock):
        passes = _Passes(request, program, chosen, work, (slot, lock), tell)
        passes.record()
        documents.sync(work)
        work.rename(folder)
        documents.sync_names(folder.parent)
    return Recorded(folder, tuple(passes.runs), passes.failure)


@dataclass
class _Passes:
    """The passes over one program, as they are made."""

    request: RecordRequest
    program: Program
    chosen: Chosen
    folder: Path
    held: tuple[int, ...]
    tell: Callable[[str], None]
    runs: list[tuple[str, Run]] = field(default_factory=list)
    failure: str | None = None

    def record(self) -> None:
        """Make them, and leave every document in the folder."""
        facts = host_facts()
        facts["facts"] += momentary_facts()
        kind = next(f["value"] for f in facts["facts"] if (f["category"], f["key"]) == ("container", "kind"))
        lock = {"file": str(slot_path()), "container": own_container(kind)}
        scheduler = SchedulerTrace(self.folder) if self.request.scheduler else None
        made = []
        # Whatever starts a process of its own is started before the first measured one.
        with scheduler or nullcontext(), SystemSampler() as sampler:
            for document in self._planned():
                made.append(document)
                self._run(document, sampler)
                if self.failure is not None:
                    break
        documents.write_json(self.folder / documents.HOST, facts)
        documents.write_json(self.folder / documents.TELEMETRY, sampler.samples())
        if scheduler is not None:
            documents.write_json(self.folder / documents.SCHEDULER, scheduler.document())
        capture = documents.capture_document(self.request, lock, made, self.chosen.documents)
        documents.write_json(self.folder / documents.CAPTURE, capture)

    def _planned(self) -> Iterator[dict[str, Any]]:
        for number in range(1, self.request.warmup_runs + self.request.runs + 1):
            yield documents.pass_document(f"run_{number}", "run", self.request.command)
        if self.chosen.profiler is not None:
            command = self.chosen.profiler.around(self.request.command, self._profile())
            yield documents.pass_document(_TRACE, "trace", command, self.chosen.name)

    def _profile(self) -> Path:
        assert self.chosen.name is not None
        return self.folder / _TRACE / self.chosen.name

    def _run(self, document: Mapping[str, Any], sampler: SystemSampler) -> None:
        name = document["name"]
        folder = self.folder / name
        marks = folder / documents.MARKS
        marks.mkdir(parents=True)
        program = Program(
            self.program.path, self.program.command, {**self.program.environment, "AACO_MARKS": str(marks.absolute())}
        )
        if document["kind"] == "trace" and self.chosen.profiler is not None:
            self._profile().mkdir()
            command = self.chosen.profiler.around(self.program.command, self._profile().absolute())
            program = Program(
                program_path(command, program.environment),
                command,
                {**program.environment, **self.chosen.profiler.environment(self._profile())},
            )
        run = run_program(
            program,
            timeout_seconds=self.request.timeout_seconds,
            held=self.held,
            quiet=self.request.quiet,
            started=partial(sampler.watch, label=name),
        )
        documents.write_run(folder, run)
        self.runs.append((name, run))
        self.tell(self._told(name, run))
        if run.failure is not None:
            self.failure = f"{self.request.command[0]}: {name} {run.failure}"

    def _told(self, name: str, run: Run) -> str:
        seconds = (run.ended["end_monotonic_ns"] - run.ended["start_monotonic_ns"]) / 1e9
        left = len(run.ended["left_running"])
        more = f"; ended {left} that it left running" if left else ""
        stuck = ", ".join(str(one["pid"]) for one in run.ended["not_ended"])
        more += f"; could not end {stuck}: whose are they?" if stuck else ""
        return f"{name}: {seconds:.3f} s{more}"


@contextmanager
def _unfinished(folder: Path) -> Iterator[tuple[Path, int]]:
    """A folder to fill beside `folder`, and the descriptor of its lock; what is not renamed goes."""
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
    """Remove what a killed recorder left; a living one, or the keeper of its program, holds a lock on its folder."""
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
