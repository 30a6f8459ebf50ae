"""`aaco gc`: what is older than wanted goes, with an account of it.

What goes is decided in `aaco_pipeline.lake.retention` and removed by `aaco_pipeline.pipeline.retention`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import click

from aaco_pipeline.cli.lake_option import lake_option
from aaco_pipeline.cli.output import data_format, print_json, print_table, say
from aaco_pipeline.report.words.units import counted, size

if TYPE_CHECKING:
    from datetime import timedelta

    from aaco_pipeline.lake.removals import Removal
    from aaco_pipeline.lake.retention import Decision, Limits
    from aaco_pipeline.pipeline.retention import Round
    from aaco_pipeline.resources.project import Project

_NOT_REMOVED: Final = 8
_NOUNS: Final = {
    "campaign": ("campaign",),
    "session": ("session",),
    "leftover": ("leftover",),
}
#: Of more than twice as many sessions the oldest and the newest are listed.
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
@click.option("--keep-baselines", is_flag=True, help="Keep sessions that were measured as a baseline.")
@click.option("--dry-run", is_flag=True, help="Only say what would go, and why the rest stays.")
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
    """Remove old sessions with their captures, and what dead writers left.

    A session stays when any of the limits keeps it. Whatever they say, it stays while it is asked for or in work, and
    when a campaign rests on it. Without --keep and --keep-last no session goes. What went, when and why is in the
    lake's removals.jsonl; after a kill the next call goes on.
    """
    from aaco_pipeline.lake.retention import Limits
    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.pipeline.retention import clean_up

    lake, limits, now = TraceLake(project.lake), Limits(keep, keep_last, keep_baselines), datetime.now(UTC)
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
    """The answer first, then what goes and what stays."""
    counts = Counter[str](one.kind for one in done.removed)
    told = " · ".join(counted(counts[kind], *noun) for kind, noun in _NOUNS.items() if counts[kind])
    freed = size(sum(one.bytes for one in done.removed))
    if done.removed:
        say(f"Would free {freed}: {told}" if dry_run else f"Freed {freed}: {told}")
    else:
        say("Nothing to remove")
    sessions = [one for one in done.removed if one.kind == "session"]
    for reason, group in groupby(sorted(sessions, key=lambda one: (one.reason, one.name)), lambda one: one.reason):
        _print_sessions(f"{'Would go' if dry_run else 'Gone'}: {reason}", list(group), now)
    others = [one for one in done.removed if one.kind == "leftover"]
    if others:
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
        say("Nothing was removed: the same without --dry-run does it")
    if not limits.are_set:
        say("No limit is set, so no session goes. --keep 90d, --keep-last 10 or both set one; what either keeps stays.")


def _print_sessions(title: str, sessions: "Sequence[Removal]", now: datetime) -> None:
    from aaco_pipeline.lake.identity import time_of
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
