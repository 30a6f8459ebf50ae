"""One round of retention over a lake and what Dagster holds of it: what is to go, removing it, and telling what went.

What is kept is decided in `aaco_pipeline.lake.retention`; the account, and going on after a kill, are
`aaco_pipeline.lake.removals`. Ticks of sensors and schedules go by Dagster's own setting (`retention` in dagster.yaml).
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import dagster as dg

from aaco_pipeline.assets.stage import stages
from aaco_pipeline.automation.attempts import PARTITION_TAG, SESSION_TAG
from aaco_pipeline.automation.dead_runs import find_dead_runs
from aaco_pipeline.automation.event_storage import forget_run, stored_bytes
from aaco_pipeline.automation.known_sessions import once_of
from aaco_pipeline.automation.partitions import CAMPAIGN_PARTITIONS_NAME
from aaco_pipeline.automation.sessions import drop_partition
from aaco_pipeline.automation.unfinished import half_removed
from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake import health
from aaco_pipeline.lake.files import lake_errors
from aaco_pipeline.lake.journal import Journal
from aaco_pipeline.lake.removals import Account, Removal
from aaco_pipeline.lake.retention import UNFINISHED_STAYS, Decision, Limits, age_words, decide, session_facts
from aaco_pipeline.lake.store import TraceLake

_ENDED: Final = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
_UNFINISHED: Final = tuple(status for status in dg.DagsterRunStatus if status not in _ENDED)
#: Runs that are looked at, and deleted under one entry of the account, at a time.
_BATCH: Final = 100


@dataclass(frozen=True)
class Round:
    """What one round removed or would remove, the sessions that stay, and in a line each what could not be removed."""

    removed: list[Removal] = field(default_factory=list)
    kept: list[Decision] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def clean_up(
    lake: TraceLake, instance: dg.DagsterInstance | None, limits: Limits, now: datetime, *, dry_run: bool = False
) -> Round:
    """Remove what `limits` do not keep and nothing needs, and what dead writers left; `dry_run` only says what that is.

    Killed at any instant and called again, it goes on: what it had begun is finished first. LakeError when the lake
    cannot be read or another round is under way; what only could not be removed is in `failed`.
    """
    account = Account(lake)
    with nullcontext() if dry_run else account.held():
        groups, kept = _plan(lake, instance, account, limits, now)
        done = Round(kept=kept)
        if dry_run:
            done.removed.extend(one for group in groups for one in group)
            return done
        carry_out(lake, instance, account, groups, done)
    return done


def carry_out(
    lake: TraceLake,
    instance: dg.DagsterInstance | None,
    account: Account,
    groups: Sequence[Sequence[Removal]],
    done: Round,
) -> None:
    """Remove group after group, each with its entry in the account, which the caller holds; `done` is told of each."""
    for group in groups:
        account.begin(group)
        try:
            for one in group:
                _remove(lake, instance, one)
        except LakeError as error:  # the others go all the same; this one is gone on with by the next round
            done.failed.append(str(error))
            continue
        account.end(group)
        done.removed.extend(group)
    _forget_what_points_to_nothing(lake, instance)  # every time: a killed round may not have come to it


def _plan(
    lake: TraceLake, instance: dg.DagsterInstance | None, account: Account, limits: Limits, now: datetime
) -> tuple[list[list[Removal]], list[Decision]]:
    """What goes, as groups that are one entry of the account each, and the sessions that stay."""
    facts = session_facts(lake)
    half = half_removed(lake)
    begun = [one for one in account.pending() if one.name in half]
    present = {one.id for one in facts} - {one.name for one in begun}
    groups = [[one] for one in begun]
    groups += [[one] for one in account.pending() if one.kind == "run" and not _is_of(instance, one.name, present)]
    decided = decide([one for one in facts if one.id in present], limits, now, _busy(instance))
    going = [one for one in decided if one.goes]
    kept = [one for one in decided if not one.goes]
    present -= {one.session_id for one in going}
    groups += _with_runs(instance, going)
    groups += [[one] for one in _leftovers(lake, now)]
    if instance is not None and limits.keep is not None:
        reason = f"ended more than {age_words(limits.keep)} ago, and its session is gone"
        taken = {one.name for group in groups for one in group if one.kind == "run"}
        here = account.named("campaign").union(lake.campaigns(), (one.id for one in facts))
        for runs in _ended_runs(instance, now - limits.keep):
            absent = [run for run in runs if not _sessions_of(run) & present and run.run_id not in taken]
            named = {one for run in absent for one in _sessions_of(run)}
            own = once_of(lake, instance, named) | here
            # A run of another lake under the same home stays: its sessions were never here.
            ids = [run.run_id for run in absent if not (of := _sessions_of(run)) or of & own]
            groups.append([Removal("run", run_id, stored_bytes(instance, run_id), "age", reason) for run_id in ids])
    return [group for group in groups if group], kept


def _remove(lake: TraceLake, instance: dg.DagsterInstance | None, one: Removal) -> None:
    """Remove one thing that is planned, or what is still there of it."""
    if one.kind == "session":
        lake.remove(one.name)
        if instance is not None:
            drop_partition(instance, one.name)
    elif one.kind == "campaign":
        lake.remove_campaign(one.name)
        if instance is not None:
            instance.delete_dynamic_partition(CAMPAIGN_PARTITIONS_NAME, one.name)
    elif one.kind == "run":
        if instance is not None:
            forget_run(instance, one.name)
    else:
        for fault in health.leftovers(lake):
            if _name(lake, fault.path) == one.name and not health.mend(lake, fault):
                raise LakeError(f"{fault.path}: cannot be removed; `aaco doctor` tells more")


def _with_runs(instance: dg.DagsterInstance | None, going: Sequence[Decision]) -> Iterator[list[Removal]]:
    """Each session and its runs, which hold nothing of another session."""
    for first in range(0, len(going), _BATCH):
        some = going[first : first + _BATCH]
        runs_of: dict[str, list[str]] = {one.session_id: [] for one in some}
        if instance is not None:
            for run in instance.get_runs(dg.RunsFilter(tags={PARTITION_TAG: list(runs_of)})):
                runs_of[run.tags[PARTITION_TAG]].append(run.run_id)
        for one in some:
            session = Removal("session", one.session_id, one.bytes, one.rule, one.reason)
            told = f"of session {one.session_id}"
            yield [session, *_runs(instance, runs_of[one.session_id], one.rule, told)]


def _runs(instance: dg.DagsterInstance | None, runs: Sequence[str], rule: str, reason: str) -> Iterator[Removal]:
    if instance is not None:
        for run in runs:
            yield Removal("run", run, stored_bytes(instance, run), rule, reason)


def _leftovers(lake: TraceLake, now: datetime) -> Iterator[Removal]:
    """What dead writers left, once it is too old to be of another host that is still writing."""
    for fault in health.leftovers(lake):
        with lake_errors(fault.path):
            try:
                changed_at = datetime.fromtimestamp(fault.path.lstat().st_mtime, UTC)
            except FileNotFoundError:
                continue
            if fault.kind == "stale lock" or now - changed_at >= UNFINISHED_STAYS:
                reason = f"{fault.kind}: {fault.explanation}"
                yield Removal("leftover", _name(lake, fault.path), _bytes(fault.path), "leftover", reason)


def _ended_runs(instance: dg.DagsterInstance, before: datetime) -> Iterator[Sequence[dg.DagsterRun]]:
    """All runs that have ended and were made before a time, some at a time."""
    asked = dg.RunsFilter(statuses=list(_ENDED), created_before=before)
    runs = instance.get_runs(asked, limit=_BATCH)
    while runs:
        yield runs
        runs = instance.get_runs(asked, cursor=runs[-1].run_id, limit=_BATCH)


def _busy(instance: dg.DagsterInstance | None) -> set[str]:
    """The sessions that a living run is at work on."""
    if instance is None:
        return set()
    dead = {one.run_id for one in find_dead_runs(instance)}
    runs = instance.get_runs(dg.RunsFilter(statuses=list(_UNFINISHED)))
    return {session for run in runs if run.run_id not in dead for session in _sessions_of(run)}


def _sessions_of(run: dg.DagsterRun) -> set[str]:
    named = run.tags.get(SESSION_TAG, "").split(",")
    return {session for session in (*named, run.tags.get(PARTITION_TAG, "")) if session}


def _is_of(instance: dg.DagsterInstance | None, run_id: str, sessions: set[str]) -> bool:
    run = instance.get_run_by_id(run_id) if instance is not None else None
    return run is not None and bool(_sessions_of(run) & sessions)


def _forget_what_points_to_nothing(lake: TraceLake, instance: dg.DagsterInstance | None) -> None:
    Journal(lake).forget_removed(lake.raw)
    if instance is not None:
        for name in stages():
            instance.event_log_storage.wipe_asset_cached_status(dg.AssetKey(name))


def _name(lake: TraceLake, path: Path) -> str:
    return path.relative_to(lake.path).as_posix()


def _bytes(path: Path) -> int:
    """The bytes of a file, or of everything in a folder."""
    files = path.rglob("*") if path.is_dir() and not path.is_symlink() else (path,)
    return sum(one.lstat().st_size for one in files if not one.is_dir())
