"""Remove sessions, campaigns and their captures: a retention round, or those named by the user.

`aaco_pipeline.lake.retention` decides what is old enough, and removes the files.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from aaco_pipeline.errors import LakeError, UsageError
from aaco_pipeline.lake import health
from aaco_pipeline.lake.files import lake_errors
from aaco_pipeline.lake.journal import Journal
from aaco_pipeline.lake.retention import (
    ASKED,
    UNFINISHED_STAYS,
    Account,
    Decision,
    Limits,
    Removal,
    decide,
    session_facts,
)
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.sessions import half_removed, running_sessions


@dataclass(frozen=True)
class Round:
    """Result of one round: items removed (or to remove), sessions kept, and a line for each failed removal."""

    removed: list[Removal] = field(default_factory=list)
    kept: list[Decision] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def clean_up(lake: TraceLake, limits: Limits, now: datetime, *, dry_run: bool = False) -> Round:
    """Remove everything that `limits` do not keep and nothing needs, and leftovers of dead writers.

    With `dry_run` only list it. A killed round can be called again: it first finishes what it had begun. LakeError if
    the lake cannot be read or another round is running; items that could not be removed are in `failed`.
    """
    account = Account(lake)
    with nullcontext() if dry_run else account.held():
        going, kept = _plan(lake, account, limits, now)
        if dry_run:
            return Round(going, kept)
        carry_out(lake, account, [[one] for one in going], done := Round(kept=kept))
        return done


def carry_out(lake: TraceLake, account: Account, groups: Sequence[Sequence[Removal]], done: Round) -> None:
    """Remove group after group, each with an entry in the removal log held by the caller; add each to `done`."""
    for group in groups:
        account.begin(group)
        try:
            for one in group:
                _remove(lake, one)
        except LakeError as error:  # continue with the others; the next round retries this one
            done.failed.append(str(error))
            continue
        account.end(group)
        done.removed.extend(group)
    Journal(lake).forget_removed(lake.raw)  # every time: a killed round may not have reached it


def _plan(lake: TraceLake, account: Account, limits: Limits, now: datetime) -> tuple[list[Removal], list[Decision]]:
    """List removals, those begun by a killed round first, and determine the sessions to keep."""
    facts, half = session_facts(lake), half_removed(lake)
    begun = [one for one in account.pending() if one.name in half]
    decided = decide([one for one in facts if one.id not in {each.name for each in begun}], limits, now)
    sessions = [Removal("session", one.session_id, one.bytes, one.rule, one.reason) for one in decided if one.goes]
    return [*begun, *sessions, *_leftovers(lake, now)], [one for one in decided if not one.goes]


def _remove(lake: TraceLake, one: Removal) -> None:
    """Remove one planned item, or its remains."""
    if one.kind == "session":
        lake.remove(one.name)
    elif one.kind == "campaign":
        lake.remove_campaign(one.name)
    else:
        for fault in health.leftovers(lake):
            if _name(lake, fault.path) == one.name and not health.mend(lake, fault):
                raise LakeError(f"{fault.path}: cannot be removed; `aaco doctor` tells more")


def _leftovers(lake: TraceLake, now: datetime) -> Iterator[Removal]:
    """List leftovers of dead writers, old enough that no live writer on another host can own them."""
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
    """Return the size of a file, or of everything in a folder."""
    files = path.rglob("*") if path.is_dir() and not path.is_symlink() else (path,)
    return sum(one.lstat().st_size for one in files if not one.is_dir())


def find_campaign(lake: TraceLake, name: str) -> str | None:
    """Find a campaign by its id or prefix; None without a match, UsageError for several."""
    known = lake.campaigns()
    matching = [name] if name in known else [one for one in known if one.startswith(name)]
    if len(matching) > 1:
        raise UsageError(f"campaign {name!r} is ambiguous: {', '.join(matching[:4])} …; give more of the id")
    return matching[0] if matching else None


def sessions_of(lake: TraceLake, campaign: str) -> list[str]:
    """List the sessions of a campaign or sweep in the lake; empty if its manifest is lost, so that they are kept.

    UsageError for a baseline, which has no sessions.
    """
    if lake.is_lost(campaign, "campaign"):
        return []
    if not lake.read("baselines", campaign).is_empty():
        raise UsageError(f"{campaign} is a baseline of other campaigns: `aaco baseline retire {campaign}`")
    rows = [lake.read(table, campaign).get_column("session_id").to_list() for table in ("campaign_sessions", "scaling")]
    known = {*lake.sessions(), *lake.captured(), *lake.requests()}
    return sorted(known & {session for named in rows for session in named})


def require_whole(lake: TraceLake, sessions: Collection[str], campaigns: Collection[str]) -> None:
    """Raise UsageError if a session belongs to a campaign that is not removed with it."""
    others = [one for one in lake.campaigns() if one not in campaigns] if sessions else []
    members = lake.read("campaign_sessions", others).select("session_id", "campaign_id").iter_rows()
    for session, campaign in members:
        if session in sessions:
            raise UsageError(f"campaign {campaign} rests on session {session}; `aaco rm {campaign}` removes both")


def remove_campaigns(lake: TraceLake, campaigns: Mapping[str, Sequence[str]]) -> Round:
    """Remove campaigns with these sessions; after a kill `aaco gc` or `doctor --mend` continues.

    LakeError, before anything is removed, if a process is working on one of them.
    """
    account, done = Account(lake), Round()
    with account.held(), ExitStack() as held:
        for campaign, sessions in campaigns.items():
            _require_at_rest(lake, campaign, sessions)
            held.enter_context(lake.measuring(campaign, wait_seconds=0))
        groups = [_going(lake, campaign, sessions) for campaign, sessions in campaigns.items()]
        carry_out(lake, account, groups, done)
    return done


def remove_sessions(lake: TraceLake, sessions: Sequence[str]) -> Round:
    """Remove sessions that belong to no campaign; after a kill `aaco gc` or `doctor --mend` continues."""
    account, done = Account(lake), Round()
    with account.held():
        carry_out(lake, account, [[_session(lake, one, "removed by hand")] for one in sessions], done)
    return done


def _require_at_rest(lake: TraceLake, campaign: str, sessions: Sequence[str]) -> None:
    if lake.is_measuring(campaign):
        raise LakeError(f"campaign {campaign} is being measured; wait for its end, or end it, and remove it then")
    busy = running_sessions(lake, sessions)
    if busy:
        raise LakeError(f"session {min(busy)} of campaign {campaign} is in work; remove the campaign once it is done")


def _going(lake: TraceLake, campaign: str, sessions: Sequence[str]) -> list[Removal]:
    """List the removals, the campaign first: it can then no longer be continued, and its other sessions are removed,
    too.
    """
    whole = Removal("campaign", campaign, lake.table_bytes(campaign, "campaign"), ASKED, "removed by hand")
    return [whole, *(_session(lake, one, f"of campaign {campaign}") for one in sessions)]


def _session(lake: TraceLake, session: str, told: str) -> Removal:
    return Removal("session", session, lake.disk_bytes(session) - lake.segment_bytes(session), ASKED, told)
