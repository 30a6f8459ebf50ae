"""`aaco ls`, `aaco show`, `aaco rm`: the sessions of a lake, one of them, and removing some.

All of it is read from the lake's tables; nothing is computed here that a table does not hold.
"""

from typing import TYPE_CHECKING, Any, Final

import click

from aaco_pipeline.cli.lake_option import lake_option
from aaco_pipeline.cli.output import console, counted, data_format, duration, print_json, print_table, share, size

if TYPE_CHECKING:
    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.resources.project import Project

_TOP_KERNELS: Final = 10
_LS = """
SELECT s.session_id, s.started_at, s.model_name, s.backend, s.batch_size, l.latency_p50_ns, l.latency_p90_ns
FROM sessions AS s LEFT JOIN latest_sessions AS l USING (session_id)
ORDER BY s.session_id DESC
"""


@click.command()
@click.option("-n", "--newest", type=click.IntRange(min=1), help="Only so many, newest first.")
@lake_option
@data_format
def ls(project: "Project", newest: int | None, as_json: bool) -> None:
    """List sessions, newest first, with latency and disk use."""
    from aaco_pipeline.lake.sql import select_rows
    from aaco_pipeline.lake.store import TraceLake

    lake = TraceLake(project.lake)
    known = sorted(lake.sessions(), reverse=True)[:newest]
    found = select_rows(lake, _LS) if known else None
    facts = {row[0]: dict(zip(found.columns, row, strict=True)) for row in found.rows} if found else {}
    rows: list[dict[str, Any]] = []
    for session in known:
        columns = found.columns if found else ()
        row = facts.get(session, {**dict.fromkeys(columns), "session_id": session})
        rows.append({**row, "disk_bytes": lake.disk_bytes(session)})
    if as_json:
        print_json(rows)
        return
    if not rows:
        click.echo(f"{lake.path}: no sessions yet; `aaco run --model squeezenet` makes one")
        return
    print_table(
        ("session", "started (UTC)", "model", "backend", "batch", "p50", "p90", "disk"),
        [
            (
                row["session_id"],
                f"{row['started_at']:%Y-%m-%d %H:%M:%S}" if row["started_at"] else None,
                row["model_name"],
                row["backend"],
                None if row["batch_size"] is None else str(row["batch_size"]),
                duration(row["latency_p50_ns"]),
                duration(row["latency_p90_ns"]),
                size(row["disk_bytes"]),
            )
            for row in rows
        ],
        numeric=("batch", "p50", "p90", "disk"),
    )
    total = sum(row["disk_bytes"] for row in rows)
    click.echo(f"{counted(len(rows), 'session')}, {size(total)} in {lake.path}")


@click.command()
@click.argument("session", default="latest")
@lake_option
@data_format
def show(project: "Project", session: str, as_json: bool) -> None:
    """Show one session (an id, a unique prefix, or latest): the answer first, then the evidence."""
    from aaco_pipeline.lake.store import TraceLake

    lake = TraceLake(project.lake)
    show_session(lake, lake.find_session(session), as_json=as_json)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="SESSION...")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@lake_option
@data_format
def rm(project: "Project", names: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Remove sessions: their tables, captures and reports, and their partitions in Dagster."""
    from aaco_pipeline.lake.store import TraceLake

    lake = TraceLake(project.lake)
    sessions = sorted({lake.find_session(name) for name in names})
    if not yes:
        for session in sessions:
            click.echo(f"{session}  {size(lake.disk_bytes(session))}", err=True)
        click.confirm(f"Remove {counted(len(sessions), 'session')} from {lake.path} for good?", abort=True, err=True)
    freed = {session: lake.remove(session) for session in sessions}
    if (project.dagster_home / "dagster.yaml").exists():
        from aaco_pipeline.automation.instance import open_instance
        from aaco_pipeline.automation.sessions import PARTITIONS_NAME

        with open_instance(project) as instance:
            for session in sessions:
                instance.delete_dynamic_partition(PARTITIONS_NAME, session)
    if as_json:
        print_json([{"session_id": session, "freed_bytes": bytes_} for session, bytes_ in freed.items()])
    else:
        click.echo(f"removed {counted(len(sessions), 'session')}, {size(sum(freed.values()))} freed")


def show_session(lake: "TraceLake", session: str, *, as_json: bool) -> None:
    """Print one session: what was run, its metrics, its top kernels, and what was missing."""
    document = _session_document(lake, session)
    if as_json:
        print_json(document)
        return
    _print_session(document)


def _session_document(lake: "TraceLake", session: str) -> dict[str, Any]:
    """Everything `aaco show` tells, as JSON has it."""
    from aaco_pipeline.lake.sql import select_rows

    def rows(statement: str) -> list[dict[str, Any]]:
        result = select_rows(lake, statement)
        return [dict(zip(result.columns, row, strict=True)) for row in result.rows]

    where = f"WHERE session_id = '{session}'"
    facts = rows(f"SELECT * FROM sessions {where}")
    return {
        **(facts[0] if facts else {"session_id": session}),
        "metrics": rows(
            f'SELECT metric, "pass", phase, value, unit, n, ci_low, ci_high FROM session_metrics {where} ORDER BY ALL'
        ),
        "timeline": rows(
            "SELECT device_id, window_rule, window_end_ns - window_start_ns AS window_ns, busy_ns, active_ratio, "
            f"overlapped_ns, activity_count FROM timeline {where} AND iteration IS NULL ORDER BY device_id"
        ),
        "top_kernels": rows(
            "SELECT k.name, k.short_name AS operator, k.library, t.dispatch_count, t.total_ns, t.mean_ns, "
            "t.share_ratio FROM kernel_stats AS t JOIN kernels AS k USING (session_id, kernel_id) "
            f"{where} ORDER BY t.total_ns DESC, k.kernel_id LIMIT {_TOP_KERNELS}"
        ),
        "missing": rows(
            "SELECT DISTINCT item, status, reason FROM evidence "
            f"{where} AND status <> 'present' ORDER BY status DESC, item"
        ),
        "disk_bytes": lake.disk_bytes(session),
    }


def _print_session(document: dict[str, Any]) -> None:
    from rich.markup import escape

    screen = console()
    screen.print(f"[bold]{escape(document['session_id'])}[/bold]  {escape(_what(document))}")
    screen.print(escape(_answer(document)), style="bold green")
    by_name = {(m["metric"], m["pass"]): m for m in document["metrics"]}
    rows = []
    for name in ("latency_p50", "latency_p90", "latency_p99", "latency_mean"):
        unprofiled, profiled = by_name.get((name, "latency")), by_name.get((name, "trace"))
        if unprofiled is not None:
            interval = (duration(unprofiled["ci_low"]) or "–", duration(unprofiled["ci_high"]) or "–")
            rows.append(
                (
                    name.removeprefix("latency_"),
                    duration(unprofiled["value"]),
                    f"{interval[0]} … {interval[1]}" if unprofiled["ci_low"] or unprofiled["ci_high"] else None,
                    duration(profiled["value"]) if profiled else None,
                )
            )
    if rows:
        print_table(
            ("latency", "unprofiled", "95 % interval", "profiled"),
            rows,
            numeric=("unprofiled", "95 % interval", "profiled"),
        )
    if document["top_kernels"]:
        print_table(
            ("kernel", "operator", "dispatches", "total", "mean", "share"),
            [
                (
                    kernel["name"],
                    kernel["operator"],
                    str(kernel["dispatch_count"]),
                    duration(kernel["total_ns"]),
                    duration(kernel["mean_ns"]),
                    share(kernel["share_ratio"]),
                )
                for kernel in document["top_kernels"]
            ],
            title="Where the kernel time went (measured iterations of the profiled pass)",
            numeric=("dispatches", "total", "mean", "share"),
        )
    if document["missing"]:
        print_table(
            ("evidence", "status", "why"),
            [(item["item"], item["status"], item["reason"]) for item in document["missing"]],
            title="What was missing",
        )


def _what(document: dict[str, Any]) -> str:
    if document.get("model_name") is None:
        return "(the capture is not described yet)"
    started = document["started_at"]
    parts = [
        document["model_name"],
        f"on {document['provider']}",
        f"batch {document['batch_size']}" if document["batch_size"] is not None else None,
        document["precision"],
        None if document["threads"] is None else counted(document["threads"], "thread"),
        f"{started:%Y-%m-%d %H:%M:%S} UTC" if started is not None else None,
        f"host {document['host']}" if document["host"] is not None else None,
    ]
    return ", ".join(part for part in parts if part)


def _answer(document: dict[str, Any]) -> str:
    """The session in a sentence; only what was measured."""
    values = {(m["metric"], m["pass"]): m["value"] for m in document["metrics"]}
    median = values.get(("latency_p50", "latency"))
    sentences = []
    if median is not None:
        sentences.append(f"The median inference takes {duration(median)}")
        throughput = values.get(("throughput", "latency"))
        if throughput is not None:
            sentences[-1] += f" ({throughput:.4g} inferences/s)"
    if document["timeline"] and document["top_kernels"]:
        ratio = document["timeline"][0]["active_ratio"]
        top = document["top_kernels"][0]
        sentences.append(
            f"while profiled, the device is busy {share(ratio)} of the time, and {share(top['share_ratio'])} of the "
            f"kernel time is {top['operator'] or 'kernel'} {top['name']}"
        )
    distortion = values.get(("profiler_distortion", None))
    if distortion is not None:
        sentences.append(f"profiling stretches the median by a factor of {distortion:.3g}")
    return "; ".join(sentences) + "." if sentences else "Nothing was measured yet."
