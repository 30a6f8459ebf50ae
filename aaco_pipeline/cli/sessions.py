"""`aaco ls` and `aaco show`: list the sessions of a lake, and show one of them.

All data comes from the lake's tables; the views are in `aaco_pipeline.report`.
"""

from typing import TYPE_CHECKING

import click

from aaco_pipeline.analysis.thresholds import MOST_DISTURBED
from aaco_pipeline.cli.finishing import finish_first
from aaco_pipeline.cli.options import lake_option, open_lake
from aaco_pipeline.cli.output import console, data_format, print_document, print_json_rows, say
from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.listing import Listing, listed
from aaco_pipeline.lake.manifest import LostManifestError
from aaco_pipeline.lake.sql import select_rows
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.formatting import counted, duration, grouped, share, size
from aaco_pipeline.report.kernel.document import kernel_document, kernel_view
from aaco_pipeline.report.session.document import path_document, session_summary, shapes_document, spikes_document
from aaco_pipeline.report.session.sentences import Row
from aaco_pipeline.report.session.statements import SECTIONS
from aaco_pipeline.report.session.view import (
    evidence_view,
    path_view,
    session_view,
    shapes_view,
    spikes_view,
)
from aaco_pipeline.report.terminal import print_table

if TYPE_CHECKING:
    from aaco_pipeline.resources.project import Project


@click.command()
@click.option("-n", "--newest", type=click.IntRange(min=1), metavar="N", help="List only the N newest.")
@lake_option
@data_format
def ls(project: "Project", newest: int | None, as_json: bool) -> int:
    """List sessions, newest first, with latency and disk use.

    Exits with 8 if a session is lost or unreadable, after listing the others.
    """
    lake = open_lake(project)
    found = listed(lake, newest)
    for error in found.errors.values():
        say(f"aaco: {error}", err=True)
    if as_json:
        print_json_rows(found.rows)
        return _code(found)
    if not found.rows:
        say(f"{lake.path}: no sessions yet; `aaco run --model squeezenet` makes one")
        return _code(found)
    half = {session: one.count for session, one in found.progress.items() if one.is_whole is False}
    half |= {
        one: "lost" if isinstance(error, LostManifestError) else "unreadable" for one, error in found.errors.items()
    }
    print_table(
        console(),
        {
            "session": lambda row: row["session_id"],
            **({"not whole": lambda row: half.get(row["session_id"])} if half else {}),
            **({"noisy machine": noisy} if any(map(noisy, found.rows)) else {}),
            "*started (UTC)": lambda row: row["started_at"] and f"{row['started_at'][:10]} {row['started_at'][11:19]}",
            "workload": lambda row: row["model_name"] or row["workload"],
            "backend": lambda row: row["backend"],
            "*batch": lambda row: grouped(row["batch_size"]),
            "*p50": lambda row: duration(row["latency_p50_ns"]),
            "*p90": lambda row: duration(row["latency_p90_ns"]),
            "*disk": lambda row: size(row["disk_bytes"]),
        },
        found.rows,
        names=("workload",),
        spare=("backend", "*p90", "*disk", "*started (UTC)", "*batch", "workload"),
    )
    total = sum(row["disk_bytes"] or 0 for row in found.rows)
    say(f"{counted(len(found.rows), 'session')}, {size(total)} in {lake.path}")
    return _code(found)


def _code(found: Listing) -> int:
    return LakeError.exit_code if found.errors else 0


def noisy(row: Row) -> str | None:
    """Format the share of disturbed iterations if it is too large for comparisons."""
    disturbed = row["disturbed_ratio"]
    return share(disturbed) if disturbed is not None and disturbed > MOST_DISTURBED else None


@click.command()
@click.argument("session", default="latest")
@click.option("--critical-path", is_flag=True, help="Show where the time went: critical path and idle causes.")
@click.option("--evidence", is_flag=True, help="Show the evidence for the answer, and missing evidence.")
@click.option("--shapes", is_flag=True, help="Show the work of framework operators, derived from input shapes.")
@click.option("--spikes", is_flag=True, help="Show which iterations took longer and why (runs with --kernel-plane).")
@click.option("--csv", "as_csv", is_flag=True, help="With --shapes: print the complete table as CSV.")
@click.option("--kernel", metavar="NAME", help="Show one kernel, by name, unique part of a name, or number.")
@click.option(
    "--faster",
    type=click.FloatRange(min=0, min_open=True),
    metavar="FACTOR",
    help="With --kernel: estimate the saving if the kernel were FACTOR times as fast.",
)
@lake_option
@data_format
def show(
    project: "Project",
    session: str,
    *,
    critical_path: bool,
    evidence: bool,
    shapes: bool,
    spikes: bool,
    as_csv: bool,
    kernel: str | None,
    faster: float | None,
    as_json: bool,
) -> None:
    """Show a session (id, unique prefix, or latest): the answer first, then the evidence."""
    if critical_path and kernel is not None:
        raise click.UsageError("--critical-path shows the whole session, --kernel one kernel: give one of them")
    if shapes and (critical_path or kernel is not None):
        raise click.UsageError("--shapes shows the operators: give it without --critical-path and --kernel")
    if (evidence or spikes) and (critical_path or shapes or kernel is not None or (evidence and spikes)):
        what = "--spikes is about the iterations" if spikes else "--evidence is about the whole answer"
        raise click.UsageError(f"{what}: give it alone")
    if as_csv and (as_json or not shapes):
        raise click.UsageError("--csv goes with --shapes, and without --json")
    if faster is not None and kernel is None:
        raise click.UsageError("--faster is about one kernel: name it with --kernel")
    lake = open_lake(project)
    found = lake.find_session(session)
    finish_first(project, lake, found, quiet=as_json or as_csv)
    if as_csv:
        from aaco_pipeline.cli.query import print_csv

        print_csv([select_rows(lake, SECTIONS["operator_shapes"].format(session=found))])
    elif kernel is not None:
        document = kernel_document(lake, found, kernel)
        if faster is not None:
            from aaco_pipeline.analysis.timeline.activities import RECORDED_FROM, recorded
            from aaco_pipeline.analysis.timeline.critical_path import saving_of_kernel

            run = recorded({name: lake.read(name, found).drop("session_id") for name in RECORDED_FROM})
            document["what_if"] = saving_of_kernel(run, document["kernel"]["kernel_id"], faster).to_dicts()
        print_document(document, kernel_view, as_json=as_json)
    else:
        parts = (
            (shapes, shapes_document, shapes_view),
            (spikes, spikes_document, spikes_view),
            (critical_path, path_document, path_view),
            (evidence, session_summary, evidence_view),
            (True, session_summary, session_view),
        )
        _, read, view = next(one for one in parts if one[0])
        print_document(read(lake, found), view, as_json=as_json)


def show_session(lake: TraceLake, session: str, *, as_json: bool) -> None:
    """Print a session: the workload, its metrics, its top kernels, and missing evidence."""
    print_document(session_summary(lake, session), session_view, as_json=as_json)
