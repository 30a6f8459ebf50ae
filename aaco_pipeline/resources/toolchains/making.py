"""Runs the command that makes a build, to its end or its time limit. No shell stands between: a list of arguments."""

import shlex
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import ModelError, UsageError
from aaco_pipeline.resources.toolchains.limited import ending, run_limited

REVISION: Final = "{revision}"
OUTPUT: Final = "{output}"
#: What a command prints can be gigabytes: of its end so much is read, and so many lines are told.
_TAIL_BYTES: Final = 1 << 16
TOLD_LINES: Final = 8


class MakeError(ModelError):
    """A command did not make what it was asked for; `lines` are the last that it printed."""

    def __init__(self, message: str, lines: Sequence[str]) -> None:
        super().__init__(message)
        self.lines = lines


def words_of(command: str) -> list[str]:
    """The arguments that a command line means; UsageError when it is none, or leaves out where to write."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"{command!r} is not a command: {error}") from error
    if not any(OUTPUT in word for word in words):
        raise UsageError(f"{command!r} does not say where to write; put {OUTPUT} where the file to make is named")
    return words


def make(words: Sequence[str], revision: str, output: Path, folder: Path, *, log: Path, limit_seconds: float) -> None:
    """Run a command in `folder` with the revision and the output in place of their names; it leaves a file there.

    What it prints goes to `log`. MakeError when it fails, takes longer, or leaves no file; with it, or with an
    interrupt, all that it started is ended.
    """
    command = [word.replace(REVISION, revision).replace(OUTPUT, str(output)) for word in words]
    try:
        status = run_limited(command, folder, log=log, limit_seconds=limit_seconds)
    except OSError as error:
        raise MakeError(f"{command[0]}: {error.strerror}", []) from error
    name = Path(command[0]).name
    if status is None:
        raise MakeError(f"{name} took more than {limit_seconds:g} s", _last_lines(log))
    if status:
        raise MakeError(f"{name} ended with {ending(status)}", _last_lines(log))
    if not output.is_file():
        raise MakeError(f"{name} ended well and left no file at {OUTPUT}", _last_lines(log))


def _last_lines(log: Path) -> list[str]:
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        text = stream.read().decode(errors="replace")
    return list(deque((line[:500] for line in text.splitlines() if line.strip()), maxlen=TOLD_LINES))
