"""The commits of a git repository between two revisions, and one of them checked out in a folder of its own.

Git is given lists of arguments and a time limit, runs no hooks, and asks nobody for anything. The repository's own
work tree is left alone.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import UnavailableError, UsageError

#: For an answer from the history, and for a work tree, which may be large.
_SECONDS: Final = 60.0
_CHECKOUT_SECONDS: Final = 1_800.0
#: A search by halves among more would be one over releases: give tags that lie closer together.
MOST_REVISIONS: Final = 10_000


@dataclass(frozen=True)
class Revision:
    """One commit: its whole name, and the first line of its message."""

    name: str
    title: str


def revisions_between(repository: Path, asked: str) -> list[Revision]:
    """The good revision and all that follow it up to the bad one, along the first parents, of `GOOD..BAD`.

    A branch that was merged is one step: what lies within it was never on the main line by itself. UsageError when it
    is no such range, UnavailableError without git.
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
    """Have a commit in `folder`, which is made for it and removed afterwards. UsageError when git cannot."""
    _git(repository, "worktree", "prune")  # what a killed search left to point at
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
    # Variables such as GIT_DIR, which hooks of git have, name another repository.
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
