"""`aaco gc`, `aaco rm`, `aaco compact`: delete old or named sessions, and merge small files of a lake.

`aaco_pipeline.lake.retention` decides what is old enough; `aaco_pipeline.pipeline.retention` removes it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import click

from aaco_pipeline.cli.options import lake_option, open_lake
from aaco_pipeline.cli.output import data_format, print_json, print_table, progress_bar, say
from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.layout import SESSION_ID
from aaco_pipeline.report.formatting import counted, size

if TYPE_CHECKING:
    from datetime import timedelta

    from aaco_pipeline.lake.retention import Decision, Limits, Removal
    from aaco_pipeline.lake.segments.compaction import TableRound
    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.pipeline.retention import Round
    from aaco_pipeline.resources.project import Project


_NOT_REMOVED: Final = 8
_KINDS: Final = ("campaign", "session", "leftover")
#: Number of sessions listed at each end of the list: oldest and newest.
_LISTED: Final = 15


class _Age(click.ParamType):  # type: ignore[type-arg]
    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> "timedelta":
        from aaco_pipeline.errors import UsageError
        from aaco_pipeline.lake.retention import parse_age

        try:
            return parse_age(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)


@click.command()
@click.option("--keep", type=_Age(), metavar="AGE", help="Keep sessions younger than this, such as 90d, 36h or 12w.")
@click.option("--keep-last", type=click.IntRange(min=1), metavar="N", help="Keep the N newest sessions.")
@click.option("--keep-baselines", is_flag=True, help="Keep baseline sessions.")
@click.option("--dry-run", is_flag=True, help="List deletions and why other sessions are kept; delete nothing.")
@lake_option
@data_format
def gc(
    project: "Project",
    keep: "timedelta | None",
    keep_last: int | None,
    *,
    keep_baselines: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Delete old sessions (with captures and runs) and orphaned files.

    A session is kept if any limit keeps it, if it is requested or in progress, or if a campaign needs it. Without
    --keep and --keep-last no session is deleted. The lake's removals.jsonl records what was deleted, when and why. A
    killed round continues at the next call.
    """
    from aaco_pipeline.lake.retention import Limits
    from aaco_pipeline.pipeline.retention import clean_up

    lake, limits, now = open_lake(project), Limits(keep, keep_last, keep_baselines), datetime.now(UTC)
    done = clean_up(lake, limits, now, dry_run=dry_run)
    if as_json:
        print_json(_document(done, limits, dry_run=dry_run))
    else:
        _print(done, limits, now, dry_run=dry_run)
    for line in done.failed:
        say(f"aaco: {line}", err=True)
    return _NOT_REMOVED if done.failed else 0


def _document(done: "Round", limits: "Limits", *, dry_run: bool) -> dict[str, object]:
    return {
        "dry_run": dry_run,
        "limits": {
            "keep_seconds": None if limits.keep is None else int(limits.keep.total_seconds()),
            "keep_last": limits.keep_last,
            "keep_baselines": limits.keep_baselines,
        },
        "removed_bytes": sum(one.bytes for one in done.removed),
        "removed": [asdict(one) for one in done.removed],
        "kept": [
            {"session_id": one.session_id, "bytes": one.bytes, "rule": one.rule, "reason": one.reason}
            for one in done.kept
        ],
        "failed": done.failed,
    }


def _print(done: "Round", limits: "Limits", now: datetime, *, dry_run: bool) -> None:
    """Print the summary first, then what is deleted and what is kept."""
    counts = Counter[str](one.kind for one in done.removed)
    told = " · ".join(counted(counts[kind], kind) for kind in _KINDS if counts[kind])
    freed = size(sum(one.bytes for one in done.removed))
    if done.removed:
        say(f"Would free {freed}: {told}" if dry_run else f"Freed {freed}: {told}")
    else:
        say("Nothing to remove")
    sessions = [one for one in done.removed if one.kind == "session"]
    for reason, group in groupby(sorted(sessions, key=lambda one: (one.reason, one.name)), lambda one: one.reason):
        _print_sessions(f"{'Would go' if dry_run else 'Gone'}: {reason}", list(group), now)
    if others := [one for one in done.removed if one.kind == "leftover"]:
        print_table(
            ("leftover", "size", "why"),
            [(one.name, size(one.bytes), one.reason) for one in others],
            numeric=("size",),
            names=("leftover",),
            title="Left by dead writers",
        )
    if done.kept:
        _print_kept(done.kept, dry_run=dry_run)
    if dry_run and done.removed:
        say("Nothing was removed: run it again without --dry-run")
    if not limits.are_set:
        say("No limit is set, so no session goes. Set --keep 90d, --keep-last 10 or both; what either keeps stays.")


def _print_sessions(title: str, sessions: "Sequence[Removal]", now: datetime) -> None:
    from aaco_pipeline.lake.layout import time_of
    from aaco_pipeline.lake.retention import age_words

    rows = [(one.name, age_words(now - (time_of(one.name) or now)), size(one.bytes)) for one in sessions]
    if len(rows) > 2 * _LISTED:
        between = rows[_LISTED:-_LISTED]
        told = f"… {counted(len(between), 'session')} between; --json has all"
        left = size(sum(one.bytes for one in sessions[_LISTED:-_LISTED]))
        rows[_LISTED:-_LISTED] = [(told, "", left)]
    print_table(("session", "age", "size"), rows, numeric=("age", "size"), title=title)


def _print_kept(kept: "Sequence[Decision]", *, dry_run: bool) -> None:
    bytes_, counts = Counter[str](), Counter[str]()
    for one in kept:
        bytes_[one.reason] += one.bytes
        counts[one.reason] += 1
    print_table(
        ("because", "sessions", "size"),
        [(reason, str(count), size(bytes_[reason])) for reason, count in counts.most_common()],
        numeric=("sessions", "size"),
        title=f"{'Would stay' if dry_run else 'Stays'}: {counted(len(kept), 'session')}, {size(bytes_.total())}",
    )


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="SESSION|CAMPAIGN...")
@click.option("-y", "--yes", is_flag=True, help="Delete without confirmation.")
@lake_option
@data_format
def rm(project: "Project", names: tuple[str, ...], yes: bool, as_json: bool) -> int:
    """Remove sessions and campaigns, with their tables, captures and reports.

    A campaign is removed with all its sessions, unless it is being measured. Its sessions cannot be removed
    individually.
    """
    from aaco_pipeline.pipeline.retention import remove_campaigns, remove_sessions, require_whole, sessions_of

    lake = open_lake(project)
    campaigns = {one: sessions_of(lake, one) for name in names if (one := _campaign(lake, name)) is not None}
    alone = sorted({lake.find_session(name) for name in names if _campaign(lake, name) is None})
    require_whole(lake, alone, campaigns)
    own = {one for sessions in campaigns.values() for one in sessions}
    sessions = [one for one in alone if one not in own]
    counts = (len(campaigns), "campaign"), (len(sessions) + len(own), "session")
    told = " and ".join(counted(*one) for one in counts if one[0])
    if not yes:
        for one, goes in campaigns.items():
            bytes_ = lake.table_bytes(one, "campaign") + sum(map(lake.disk_bytes, goes))
            say(f"{one}  {size(bytes_)}, {counted(len(goes), 'session')}", err=True)
        for one in sessions:
            say(f"{one}  {size(lake.disk_bytes(one))}", err=True)
        click.confirm(f"Remove {told} from {lake.path} for good?", abort=True, err=True)
    later = sum(map(lake.segment_bytes, (*sessions, *own)))
    rounds = [remove_campaigns(lake, campaigns)] if campaigns else []
    rounds += [remove_sessions(lake, sessions)] if sessions else []
    removed = [one for done in rounds for one in done.removed]
    failed = [line for done in rounds for line in done.failed]
    if as_json:
        print_json([{f"{one.kind}_id": one.name, "freed_bytes": one.bytes} for one in removed])
    elif not failed:
        say(f"removed {told}, {size(sum(one.bytes for one in removed))} freed")
        if later:
            say(f"{size(later)} in segments leave the disk with the next `aaco compact`")
    for line in failed:
        say(f"aaco: {line}", err=True)
    return LakeError.exit_code if failed else 0


def _campaign(lake: "TraceLake", name: str) -> str | None:
    """Find the campaign with this name; None if the name is a session's."""
    from aaco_pipeline.pipeline.retention import find_campaign

    return None if name == "latest" or SESSION_ID.fullmatch(name) else find_campaign(lake, name)


@click.command()
@click.option("--dry-run", is_flag=True, help="List files to merge and to delete; change nothing.")
@lake_option
@data_format
def compact(project: "Project", *, dry_run: bool, as_json: bool) -> int:
    """Merge the small files of each table into segments, which are faster to read.

    Queries return the same rows. Replaced files are deleted after a grace period, `grace` in configs/retention.yaml (1
    day). Rows of removed sessions are deleted from disk. A killed compaction continues at the next call.
    """
    from aaco_pipeline.lake.retention import parse_age
    from aaco_pipeline.lake.segments import compaction
    from aaco_pipeline.resources.project_settings import retention_settings

    grace = parse_age(retention_settings(project.configs).grace)
    with progress_bar(as_json) as progress:
        done = compaction.compact(open_lake(project), datetime.now(UTC), grace, dry_run=dry_run, progress=progress)
    if as_json:
        print_json(_compaction_document(done, grace, dry_run=dry_run))
    else:
        _print_compaction(done, dry_run=dry_run)
    return 0


def _compaction_document(done: "Sequence[TableRound]", grace: "timedelta", *, dry_run: bool) -> dict[str, object]:
    """Build the JSON document; `written` is null in a dry run, because a segment's size is only known once it is
    written.
    """
    return {"dry_run": dry_run, "grace_seconds": int(grace.total_seconds()), "tables": [asdict(one) for one in done]}


def _print_compaction(done: "Sequence[TableRound]", *, dry_run: bool) -> None:
    """Print the summary first, then one row per table."""
    taken = sum(one.taken.files for one in done)
    rewritten = sum(one.rewritten.files for one in done)
    gone = sum(one.gone.files + one.dropped.files for one in done)
    if not (taken or rewritten or gone):
        say("Nothing to compact")
    else:
        verb = "Would put" if dry_run else "Put"
        told = f"{counted(taken, 'file')} of sessions and {counted(rewritten, 'segment')}"
        say(f"{verb} together {told}; {counted(gone, 'replaced file')} {'would go' if dry_run else 'gone'}")
    if done:
        print_table(
            ("table", "sessions", "files", "before", "segments", "after", "gone", "waiting"),
            [_row(one) for one in done],
            numeric=("sessions", "files", "before", "segments", "after", "gone", "waiting"),
            names=("table",),
        )
    waiting = [one.waiting_until for one in done if one.waiting_until is not None]
    if waiting:
        say(
            f"Files that segments have replaced wait for their grace, the first until {min(waiting):%Y-%m-%d %H:%M} UTC"
        )
    for one in done:
        for line in one.left:
            say(f"{one.table}: {line}")
    if dry_run and (taken or rewritten or gone):
        say("Nothing was changed: run it again without --dry-run")


def _row(one: "TableRound") -> tuple[str | None, ...]:
    """Build a table's row; the bytes before are those of the merged files and segments."""
    written = one.written
    return (
        one.table,
        str(one.sessions),
        str(one.taken.files),
        size(one.taken.bytes + one.rewritten.bytes),
        None if written is None else str(written.files),
        None if written is None else size(written.bytes),
        _amount(one.gone.files + one.dropped.files, one.gone.bytes + one.dropped.bytes),
        _amount(one.waiting.files, one.waiting.bytes),
    )


def _amount(files: int, bytes_: int) -> str:
    return f"{files}, {size(bytes_)}" if files else "0"
