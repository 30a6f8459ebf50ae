"""Run a step of an operation with one call struck, in its own process, and judge what is left."""

import ctypes
import errno
import os
import pickle
import shutil
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from aaco_pipeline.errors import AacoError
from aaco_pipeline.lake.health import faults, mend
from aaco_pipeline.lake.store import TraceLake
from benchmarks.reliability.fault_injection.library import State, traced
from benchmarks.reliability.fault_injection.operations import Operation, Shown, Step

_Answer = TypeVar("_Answer")
_FAIL, _SHORT, _KILL, _TORN = range(1, 5)
#: How a call is struck: the library's mode, and the error that it returns. "torn" kills halfway through a write.
MODES: Final = {
    "ENOSPC": (_FAIL, errno.ENOSPC),
    "EIO": (_FAIL, errno.EIO),
    "short": (_SHORT, 0),
    "kill": (_KILL, 0),
    "torn": (_TORN, 0),
}
_OF_WRITES: Final = ("short", "torn")
#: A step takes seconds at most: a child that takes longer waits for something that does not come.
_MOST_SECONDS: Final = 300
#: Longest printed form of a value, in characters.
_TOLD: Final = 200
_SET_CHILD_SUBREAPER: Final = 36


@dataclass
class Judged:
    """Result of one injected fault: the call, how the process ended, what `health` found, and what is wrong."""

    met: str
    ended: str
    left: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        if not self.met:
            return "wrong" if self.wrong else "not met"
        return "wrong" if self.wrong else "mended" if self.left else "whole"


class Bench:
    """One step, struck again and again, each time on a fresh copy of the lake that it begins from, at the same path."""

    def __init__(self, operation: Operation, step: Step, place: Path, template: Path, state: State) -> None:
        self._operation, self._step, self._state = operation, step, state
        self._place, self._template = place, template
        self._lake = TraceLake(place / "lake")
        self._renew()
        self._before: Shown = in_child(self._look)
        self.undisturbed()
        self.calls: Final = state.noted()
        self._after: Shown = in_child(self._look)
        self._files: dict[str, str] = operation.files(self._lake)

    def undisturbed(self) -> None:
        """Do the step with no call struck, and leave the place as it is then. RuntimeError when it fails."""
        self._renew()
        ended = self._act(0)
        if ended != "done":
            raise RuntimeError(f"a step that nothing disturbs ended as {ended}")

    def numbers(self, mode: str) -> Iterator[int]:
        """The calls that a mode can strike."""
        return (n for n, kind in enumerate(self.calls, 1) if kind == "write" or mode not in _OF_WRITES)

    def strike(self, number: int, mode: str, *, mend_first: bool) -> Judged:
        """Strike one call, look, then mend and do the step again, in this order or the other, and look again."""
        self._renew()
        ended = self._act(number, *MODES[mode])
        judged = Judged(self._state.met(), ended)
        try:
            return in_child(lambda: self._judged(judged, mend_first=mend_first))
        except ChildError as error:
            judged.wrong.append(f"judging it failed: {str(error).strip().splitlines()[-1]}")
            return judged

    def compared(self, log: Path) -> tuple[Counter[str], Counter[str]]:
        """Do the step under strace; how many calls the library counted, and how many strace saw."""

        def act() -> None:
            self._state.arm(0)
            self._step(self._lake)
            self._state.disarm()

        self._renew()
        seen = traced(act, self._place, log)
        return Counter(self._state.noted()), seen

    def _renew(self) -> None:
        shutil.rmtree(self._place, ignore_errors=True)
        shutil.copytree(self._template, self._place, symlinks=True)

    def _act(self, number: int, mode: int = 0, error: int = 0) -> str:
        """Do the step with a call struck, 0 for none; how it ended."""

        def act() -> str:
            self._state.arm(number, mode, error)
            try:
                self._step(self._lake)
            except AacoError as refusal:
                return f"refused: {refusal}"
            finally:
                self._state.disarm()
            return "done"

        try:
            return in_child(act)
        except ChildError as failure:
            return "killed" if failure.signal == signal.SIGKILL else f"failed: {failure}"
        finally:
            self._state.disarm()

    def _look(self) -> Shown:
        return self._operation.show(self._lake)

    def _judged(self, judged: Judged, *, mend_first: bool) -> Judged:
        wrong = judged.wrong
        if judged.ended.startswith("failed"):
            wrong.append(judged.ended)
        self._require(self._look(), judged.ended == "done", "afterwards", wrong)
        found = faults(self._lake)
        judged.left = [fault.kind for fault in found]
        wrong += [f"cannot be mended: {one.kind} {one.path}: {one.explanation}" for one in found if not one.mendable]
        if mend_first:
            self._mend("mending", wrong)
            if judged.ended != "done":
                self._require(self._look(), is_done=False, when="after mending", wrong=wrong)
        try:
            self._step(self._lake)
        except AacoError as error:
            wrong.append(f"done again it was refused: {error}")
        self._require(self._look(), True, "done again", wrong)
        if mend_first:
            wrong += [f"left when done again: {one.kind} {one.path}" for one in faults(self._lake)]
        else:
            self._mend("mending when done again", wrong)
        files = self._operation.files(self._lake)
        for name in sorted({*files} | {*self._files}):
            if files.get(name) != self._files.get(name):
                wrong.append(f"in the end {name} is {files.get(name, 'absent')}, not {self._files.get(name, 'absent')}")
        return judged

    def _mend(self, when: str, wrong: list[str]) -> None:
        wrong += [f"{when}: not done: {one.kind} {one.path}" for one in faults(self._lake) if not mend(self._lake, one)]
        self._operation.mend(self._lake)
        wrong += [f"after {when}: {one.kind} {one.path}: {one.explanation}" for one in faults(self._lake)]

    def _require(self, seen: Shown, is_done: bool, when: str, wrong: list[str]) -> None:
        for aspect in sorted({*seen, *self._before, *self._after}):
            shown, before, after = (one.get(aspect) for one in (seen, self._before, self._after))
            allowed = [after] if is_done else [before, after]
            if not is_done and self._operation.is_gradual and isinstance(shown, dict) and isinstance(after, dict):
                allowed.append({**(before or {}), **{name: after.get(name) for name in shown}})
            if shown not in allowed:
                wrong.append(
                    f"{when}: {aspect}: {str(shown)[:_TOLD]}, not {' or '.join(str(a)[:_TOLD] for a in allowed)}"
                )


class ChildError(Exception):
    """A child did not come to its end: `signal` ended it, or what it raised is the message."""

    def __init__(self, told: str, signal: int = 0) -> None:
        super().__init__(told)
        self.signal = signal


def in_child(work: Callable[[], _Answer]) -> _Answer:
    """Run `work` in a fork of this process and return its result, once all that it started has ended.

    This process runs no query and stays as it is, as no library has begun its threads. ChildError when there is no
    answer.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        signal.alarm(_MOST_SECONDS)
        answer: tuple[bool, Any]
        try:
            answer = True, work()
        except BaseException:  # noqa: BLE001 - told to the parent, which raises it
            answer = False, traceback.format_exc()
        with os.fdopen(writing, "wb") as stream:
            pickle.dump(answer, stream)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        content = stream.read()
    _, status = os.waitpid(child, 0)
    with suppress(ChildProcessError):
        while True:
            os.wait()
    if os.WIFSIGNALED(status):
        raise ChildError(f"ended by signal {os.WTERMSIG(status)}", os.WTERMSIG(status))
    is_well, told = pickle.loads(content)
    if not is_well:
        raise ChildError(told)
    given: _Answer = told
    return given


def adopt_orphans() -> None:
    """Let what a killed child had started become this process's children, so that `in_child` can wait for it."""
    if ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "orphans cannot be adopted")
