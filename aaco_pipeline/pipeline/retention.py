"""One round of retention over a lake: what is to go, removing it, and reporting what went.

What is kept is decided in `aaco_pipeline.lake.retention`; the account, and going on after a kill, are
`aaco_pipeline.lake.removals`. Dagster's partitions and runs of what went are removed by its own job.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake import health
from aaco_pipeline.lake.files import lake_errors
from aaco_pipeline.lake.journal import Journal
from aaco_pipeline.lake.removals import Account, Removal
from aaco_pipeline.lake.retention import UNFINISHED_STAYS, Decision, Limits, decide, session_facts
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.half_sessions import half_removed


@dataclass(frozen=True)
class Round:
    """Result of one round: what was or would be removed, the sessions that stay, and a line for each failed removal."""

    removed: list[Removal] = field(default_factory=list)
    kept: list[Decision] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def clean_up(lake: TraceLake, limits: Limits, now: datetime, *, dry_run: bool = False) -> Round:
    """Remove what `limits` do not keep and nothing needs, and what dead writers left; `dry_run` only says what that is.

    Killed at any instant and called again, it goes on: what it had begun is finished first. LakeError when the lake
    cannot be read or another round is under way; what only could not be removed is in `failed`.
    """
    account = Account(lake)
    with nullcontext() if dry_run else account.held():
        going, kept = _plan(lake, account, limits, now)
        done = Round(kept=kept)
        if dry_run:
            done.removed.extend(going)
            return done
        carry_out(lake, account, [[one] for one in going], done)
    return done


def carry_out(lake: TraceLake, account: Account, groups: Sequence[Sequence[Removal]], done: Round) -> None:
    """Remove group after group, each with its entry in the account, which the caller holds; add each to `done`."""
    for group in groups:
        account.begin(group)
        try:
            for one in group:
                _remove(lake, one)
        except LakeError as error:  # the others go all the same; this one is gone on with by the next round
            done.failed.append(str(error))
            continue
        account.end(group)
        done.removed.extend(group)
    Journal(lake).forget_removed(lake.raw)  # every time: a killed round may not have come to it


def _plan(lake: TraceLake, account: Account, limits: Limits, now: datetime) -> tuple[list[Removal], list[Decision]]:
    """List what goes, what a killed round had begun first, and decide on the sessions that stay."""
    facts, half = session_facts(lake), half_removed(lake)
    begun = [one for one in account.pending() if one.name in half]
    decided = decide([one for one in facts if one.id not in {each.name for each in begun}], limits, now)
    sessions = [Removal("session", one.session_id, one.bytes, one.rule, one.reason) for one in decided if one.goes]
    return [*begun, *sessions, *_leftovers(lake, now)], [one for one in decided if not one.goes]


def _remove(lake: TraceLake, one: Removal) -> None:
    """Remove one thing that is planned, or what is still there of it."""
    if one.kind == "session":
        lake.remove(one.name)
    elif one.kind == "campaign":
        lake.remove_campaign(one.name)
    else:
        for fault in health.leftovers(lake):
            if _name(lake, fault.path) == one.name and not health.mend(lake, fault):
                raise LakeError(f"{fault.path}: cannot be removed; `aaco doctor` tells more")


def _leftovers(lake: TraceLake, now: datetime) -> Iterator[Removal]:
    """List leftovers of dead writers that are too old to belong to a live writer on another host."""
    for fault in health.leftovers(lake):
        with lake_errors(fault.path):
            try:
                changed_at = datetime.fromtimestamp(fault.path.lstat().st_mtime, UTC)
            except FileNotFoundError:
                continue
            if fault.kind == "stale lock" or now - changed_at >= UNFINISHED_STAYS:
                reason = f"{fault.kind}: {fault.explanation}"
                yield Removal("leftover", _name(lake, fault.path), _bytes(fault.path), "leftover", reason)


def _name(lake: TraceLake, path: Path) -> str:
    return path.relative_to(lake.path).as_posix()


def _bytes(path: Path) -> int:
    """The bytes of a file, or of everything in a folder."""
    files = path.rglob("*") if path.is_dir() and not path.is_symlink() else (path,)
    return sum(one.lstat().st_size for one in files if not one.is_dir())
