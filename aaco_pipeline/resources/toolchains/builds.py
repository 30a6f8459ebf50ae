"""Builds to compare: the commits of a repository between two revisions, and the command that builds one.

Git and the command are lists of arguments with a time limit; no shell is involved.
"""

import os
import shlex
import shutil
import subprocess
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import ModelError, UnavailableError, UsageError
from aaco_pipeline.resources.toolchains.limited import ending, run_limited

REVISION: Final = "{revision}"
OUTPUT: Final = "{output}"
#: A command may print gigabytes: only this much of the end is read, and this many lines are reported.
_TAIL_BYTES: Final = 1 << 16
TOLD_LINES: Final = 8


class MakeError(ModelError):
    """A command did not create the requested file; `lines` are its last output lines."""

    def __init__(self, message: str, lines: Sequence[str]) -> None:
        super().__init__(message)
        self.lines = lines


def words_of(command: str) -> list[str]:
    """Split a command line into arguments; UsageError if it is invalid or does not contain the output's placeholder."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"{command!r} is not a command: {error}") from error
    if not any(OUTPUT in word for word in words):
        raise UsageError(f"{command!r} does not say where to write; put {OUTPUT} where the file to make is named")
    return words


def make(words: Sequence[str], revision: str, output: Path, folder: Path, *, log: Path, limit_seconds: float) -> None:
    """Run a command in `folder`, with placeholders replaced by the revision and the output; it creates a file there.

    Its output goes to `log`. Raises MakeError if it fails, exceeds the time limit, or leaves no file; in these cases,
    or on an interrupt, all processes that it started are ended.
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


#: Time limits for a history query, and for creating a work tree, which may be large.
_SECONDS: Final = 60.0
_CHECKOUT_SECONDS: Final = 1_800.0
#: A bisection over more commits would be one over releases: give tags that are closer together.
MOST_REVISIONS: Final = 10_000


@dataclass(frozen=True)
class Revision:
    """One commit: its full hash, and the first line of its message."""

    name: str
    title: str


def revisions_between(repository: Path, asked: str) -> list[Revision]:
    """Return the good revision and all later ones up to the bad one, along the first parents, of `GOOD..BAD`.

    A merged branch is one step: its commits were never on the main line individually. Raises UsageError if it is not
    such a range, and UnavailableError without git.
    """
    good, separator, bad = asked.partition("..")
    if not separator or not good or not bad or bad.startswith("."):
        raise UsageError(f"{asked!r} is no range of revisions; expected GOOD..BAD, such as v1.2..main")
    ends = [_commit(repository, one) for one in (good, bad)]
    line = ("log", f"--max-count={MOST_REVISIONS + 1}", "--first-parent", "--ancestry-path", "--format=%H%x00%s")
    found = _git(repository, *line, f"{ends[0]}..{ends[1]}", "--").splitlines()
    if not found:
        raise UsageError(f"{asked}: nothing follows {good} on the way to {bad}; give an earlier good revision first")
    if len(found) > MOST_REVISIONS:
        raise UsageError(f"{asked}: more than {MOST_REVISIONS:,} revisions; give two that lie closer together")
    first = _git(repository, "log", "--max-count=1", "--format=%H%x00%s", ends[0], "--").splitlines()
    pairs = (row.partition("\0") for row in (*first, *reversed(found)))
    return [Revision(name, title) for name, _, title in pairs]


@contextmanager
def checked_out(repository: Path, revision: str, folder: Path) -> Iterator[None]:
    """Check out a commit in `folder`, which is created and removed afterwards. UsageError if git fails."""
    _git(repository, "worktree", "prune")  # references left behind by a killed search
    try:
        _git(repository, "worktree", "add", "--detach", "--", str(folder), revision, seconds=_CHECKOUT_SECONDS)
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _git(repository, "worktree", "prune")


# ---- inside ----------------------------------------------------------------------------------------------------------


def _commit(repository: Path, revision: str) -> str:
    try:
        return _git(repository, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}").strip()
    except UsageError as error:
        if not (repository / ".git").exists() and "not a git repository" in str(error):
            raise
        raise UsageError(f"{revision!r} is no revision of {repository}; `git log` there lists them") from error


def _git(repository: Path, *arguments: str, seconds: float = _SECONDS) -> str:
    command = ("git", "-C", str(repository), "-c", f"core.hooksPath={os.devnull}", *arguments)
    # Variables such as GIT_DIR, which git hooks set, would select another repository.
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment = {**own, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, capture_output=True, stdin=subprocess.DEVNULL, env=environment, timeout=seconds, check=False
        )
    except FileNotFoundError as error:
        raise UnavailableError("git: not found; install it, or give builds that are there with --builds") from error
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"{repository}: git {arguments[0]} took more than {seconds:.0f} s") from error
    if done.returncode:
        told = done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"]
        raise UsageError(f"{repository}: git {arguments[0]}: {told[-1][:300]}")
    return done.stdout.decode(errors="replace")
