"""`aaco ingest`: take in what rocprofv3 and its neighbours left behind, one session for each run.

Recognizing files is `aaco_pipeline.capture.discovery`; taking them in is `aaco_pipeline.automation.ingestion`.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aaco_pipeline.cli.lake_option import new_lake_option
from aaco_pipeline.cli.output import data_format, print_json, print_table
from aaco_pipeline.errors import CaptureError
from aaco_pipeline.report.words.units import counted, size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aaco_pipeline.automation.ingestion import Ingested
    from aaco_pipeline.capture.discovery import DiscoveredRuns, Unread
    from aaco_pipeline.resources.project import Project


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Only tell what is recognized, file by file, and what is not and why.")
@click.option("--workload", help="What the capture is of (default: its folder's name).")
@new_lake_option
@data_format
def ingest(project: "Project", path: Path, dry_run: bool, workload: str | None, as_json: bool) -> int:
    """Take in a capture made elsewhere: a file, or a folder of one or several runs."""
    from aaco_pipeline.capture.discovery import discover_runs

    found = discover_runs(path)
    if dry_run:
        _print_survey(found, path, as_json=as_json)
    if not found.runs:
        raise CaptureError(f"{path}: nothing in it is a capture that can be read; `aaco ingest --dry-run` says why")
    if dry_run:
        return 0
    return _take(project, found, path, workload, as_json=as_json)


def _take(project: "Project", found: "DiscoveredRuns", path: Path, workload: str | None, *, as_json: bool) -> int:
    from contextlib import ExitStack

    from aaco_pipeline.automation.ingestion import ingest as take
    from aaco_pipeline.lake.store import TraceLake

    lake = TraceLake(project.lake)
    results = []
    with ExitStack() as opened:
        instance = None
        for one in take(lake, found, workload):
            results.append(one)
            if one.session is None or not (one.is_new or not lake.manifest(one.session).entries):
                continue
            if instance is None:
                # Nothing of Dagster for captures that the lake already has.
                from aaco_pipeline.automation.instance import open_instance
                from aaco_pipeline.automation.session_runs import run_session
                from aaco_pipeline.automation.sessions import add_partition

                instance = opened.enter_context(open_instance(project))
            add_partition(instance, one.session)
            run_session(lake, instance, one.session, project.configs)
    if as_json:
        print_json([_as_row(one) for one in results])
    else:
        _print_results(results)
    failed = [one for one in results if one.session is None]
    for one in failed:
        click.echo(f"aaco: not taken: {one.reason}", err=True)
    if len(failed) == len(results):
        raise CaptureError(f"{path}: no run in it could be read")
    return 0


def _as_row(one: "Ingested") -> dict[str, Any]:
    return {
        "session_id": one.session,
        "folder": str(one.run.folder),
        "already_known": one.session is not None and not one.is_new,
        "reason": one.reason,
        "parts": [{"name": part.name, "format": part.format} for part in one.run.parts],
        "rows": list(one.rows),
        "unread": [_unread(left) for left in one.run.unread],
    }


def _print_results(results: "list[Ingested]") -> None:
    for one in results:
        if one.session is None:
            continue
        if not one.is_new:
            click.echo(f"{one.session}  {one.run.folder}: already in the lake")
            continue
        click.echo(f"{one.session}  {one.run.folder}: {counted(len(one.run.parts), 'part')}")
        rows = [row for row in one.rows if row["rows_in"]]
        print_table(
            ("part", "records", "rows in", "taken", "why not all"),
            [
                (
                    str(row["part"]),
                    str(row["item"]),
                    *_counts(row),
                    None if row["reason"] is None else str(row["reason"]),
                )
                for row in rows
            ],
            numeric=("rows in", "taken"),
        )
    taken = sum(one.is_new for one in results)
    click.echo(
        f"{counted(taken, 'new session')} of {counted(len(results), 'run')}; `aaco show latest` shows the newest"
    )


def _counts(row: "Mapping[str, object]") -> tuple[str, str]:
    return f"{row['rows_in']:,}", f"{row['rows_out']:,}"


def _print_survey(found: "DiscoveredRuns", path: Path, *, as_json: bool) -> None:
    if as_json:
        runs = [
            {
                "folder": str(run.folder),
                "parts": [
                    {
                        "name": part.name,
                        "format": part.format,
                        "detail": part.detail,
                        "files": [str(file) for file in part.files],
                    }
                    for part in run.parts
                ],
                "unread": [_unread(left) for left in run.unread],
            }
            for run in found.runs
        ]
        print_json({"runs": runs, "unread": [_unread(left) for left in found.unread]})
        return
    for number, run in enumerate(found.runs, start=1):
        print_table(
            ("part", "recognized as", "files", "size"),
            [
                (part.name, part.detail, str(len(part.files)), size(sum(file.stat().st_size for file in part.files)))
                for part in run.parts
            ],
            title=f"Run {number}: {run.folder}",
            numeric=("files", "size"),
        )
    left = [*found.unread, *(one for run in found.runs for one in run.unread)]
    if left:
        top = path if path.is_dir() else path.parent
        print_table(
            ("not read", "why"),
            [(one.path.relative_to(top).as_posix(), one.reason) for one in left],
            title="Not read",
        )
    click.echo(f"{counted(len(found.runs), 'run')}: `aaco ingest {path}` makes a session of each")


def _unread(one: "Unread") -> dict[str, str]:
    return {"file": str(one.path), "reason": one.reason}
