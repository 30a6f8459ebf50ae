"""`aaco compact`: many sessions' small files of a table become a few large ones.

What is put together, and when the files go, is decided in `aaco_pipeline.lake.segments.compaction`.
"""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from aaco_pipeline.cli.lake_option import lake_option
from aaco_pipeline.cli.output import data_format, print_json, print_table, say
from aaco_pipeline.report.words.units import counted, size

if TYPE_CHECKING:
    from datetime import timedelta

    from aaco_pipeline.lake.segments.facts import TableRound
    from aaco_pipeline.resources.project import Project


@click.command()
@click.option("--dry-run", is_flag=True, help="Only say what would be put together, and what would go.")
@lake_option
@data_format
def compact(project: "Project", *, dry_run: bool, as_json: bool) -> int:
    """Put the sessions' small files of each table together into segments, which are read faster.

    Every table is read as before. The files that segments replace go after a grace, by the setting `grace` in
    configs/retention.yaml (1 day). Rows of removed sessions leave the disk. After a kill the next call goes on.
    """
    from aaco_pipeline.cli.progress_bar import progress_bar
    from aaco_pipeline.lake.retention import parse_age
    from aaco_pipeline.lake.segments import compaction
    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.resources.retention_settings import retention_settings

    grace = parse_age(retention_settings(project.configs).grace)
    with progress_bar(as_json) as progress:
        done = compaction.compact(TraceLake(project.lake), datetime.now(UTC), grace, dry_run=dry_run, progress=progress)
    if as_json:
        print_json(_document(done, grace, dry_run=dry_run))
    else:
        _print(done, dry_run=dry_run)
    return 0


def _document(done: "Sequence[TableRound]", grace: "timedelta", *, dry_run: bool) -> dict[str, object]:
    """`written` is null in a dry run: how large a segment becomes is known once it is written."""
    return {"dry_run": dry_run, "grace_seconds": int(grace.total_seconds()), "tables": [asdict(one) for one in done]}


def _print(done: "Sequence[TableRound]", *, dry_run: bool) -> None:
    """The answer first, then table by table."""
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
        say("Nothing was changed: the same without --dry-run does it")


def _row(one: "TableRound") -> tuple[str | None, ...]:
    """The bytes before are those of files and of segments that were put together with them."""
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
