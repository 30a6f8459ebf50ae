"""`aaco ingest` and `aaco amend`: ingest captures, and state a device that a capture does not name.

`aaco_pipeline.capture.discovery` recognizes files; `aaco_pipeline.pipeline.ingestion` ingests them.
"""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aaco_pipeline.cli.options import lake_option, new_lake_option, open_lake
from aaco_pipeline.cli.output import data_format, print_json, print_table, progress_bar, say
from aaco_pipeline.errors import AacoError, CaptureError, UsageError
from aaco_pipeline.report.formatting import counted, size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aaco_pipeline.capture.discovery import DiscoveredRuns, Unread
    from aaco_pipeline.pipeline.ingestion import Ingested
    from aaco_pipeline.resources.project import Project


ARCH_HELP = "Architecture of the devices, such as gfx942, where the capture does not name it."
PRODUCT_HELP = "Product that the devices are, such as MI250X, where the capture does not name it."
#: Row of one run, and the error if it was refused or is incomplete.
_Row = tuple[dict[str, Any], AacoError | None]


@click.command()
@click.argument("session")
@click.option("--arch", help=ARCH_HELP)
@click.option("--product", help=PRODUCT_HELP)
@lake_option
@data_format
def amend(project: "Project", session: str, *, arch: str | None, product: str | None, as_json: bool) -> None:
    """State the device of a capture, and run the session's stages again.

    The statement is recorded as coming from you, and never replaces what the capture states.
    """
    from aaco_pipeline.hardware.device_facts import require_unstated, statement
    from aaco_pipeline.pipeline.session_stages import run_session

    facts = statement(arch, product)
    if not facts:
        raise UsageError("nothing is stated; give --arch, --product or both")
    lake = open_lake(project)
    found = lake.find_session(session)
    if found not in lake.captured():
        raise UsageError(f"session {found} has no capture whose devices could be stated")
    require_unstated(lake.read("devices", found), facts)
    lake.state(found, facts)
    with progress_bar(as_json):
        run_session(lake, found, project.configs)
    devices = lake.read("devices", found).select("device_id", "arch", "arch_source", "product").to_dicts()
    if as_json:
        print_json({"session_id": found, "stated": facts, "devices": devices})
    else:
        say(f"{found}: stated {', '.join(facts.values())}; `aaco show {found}` shows what follows")


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="List recognized and skipped files, with reasons; ingest nothing.")
@click.option("--workload", help="Workload name (default: from the capture, else its folder's name).")
@click.option(
    "--keep-original",
    is_flag=True,
    help="Also keep the original of each redacted file, readable only by you (mode 0600).",
)
@click.option("--arch", help=ARCH_HELP)
@click.option("--product", help=PRODUCT_HELP)
@click.option(
    "--partial-ok", is_flag=True, help="Exit with 0 if at least one run was ingested, even if others were refused."
)
@new_lake_option
@data_format
def ingest(
    project: "Project",
    path: Path,
    *,
    dry_run: bool,
    workload: str | None,
    as_json: bool,
    keep_original: bool,
    arch: str | None,
    product: str | None,
    partial_ok: bool,
) -> int:
    """Ingest a capture made elsewhere: a file, or a folder with one or more runs.

    PyTorch traces in a sibling folder `capture_traces/` provide the operator shapes for replays of CUDA or HIP graphs.
    """
    if not dry_run:
        stated: dict[str, str] = {}
        if (arch, product) != (None, None):
            from aaco_pipeline.hardware.device_facts import statement

            stated = statement(arch, product)
        rows = _take(project, path, workload, stated, as_json=as_json, keep_original=keep_original)
        return _exit_code(rows, partial_ok=partial_ok)
    from aaco_pipeline.resources.confinement.client import discover_runs

    found = discover_runs(path)
    _print_survey(found, path, as_json=as_json)
    if not found.runs:
        raise CaptureError(f"{path}: nothing in it is a capture that can be read")
    return 0


def _take(
    project: "Project", path: Path, workload: str | None, stated: dict[str, str], *, as_json: bool, keep_original: bool
) -> "list[_Row]":
    """Ingest every run, and report why others were refused or are incomplete."""
    from aaco_pipeline.pipeline import known_captures

    lake = open_lake(project)

    def finish(session: str) -> None:
        from aaco_pipeline.pipeline.session_stages import finish_session  # imports all stages

        if stated:
            lake.state(session, stated)
        finish_session(lake, session, project.configs)

    state = known_captures.state_of(path)
    known = known_captures.recall(lake, path, state)
    if known is not None:
        rows: list[_Row] = [(row, None) for row in known]
        _print(known, as_json=as_json)
    else:
        from aaco_pipeline.pipeline.ingestion import discovered
        from aaco_pipeline.pipeline.ingestion import ingest as take

        known_captures.settle(state)
        rows = []
        try:
            for one in take(lake, discovered(lake, path), workload, finish=finish, keep_original=keep_original):
                rows.append((_as_row(one), one.error))
        finally:
            if rows:  # also runs ingested before an error or Ctrl-C
                _print([row for row, _ in rows], as_json=as_json)
        if all(error is None for _, error in rows):
            again = {"already_known": True, "state": "known", "rows": []}
            known_captures.remember(lake, path, state, [{**row, **again} for row, _ in rows])
    if stated and any(row["state"] == "known" for row, _ in rows):
        say("aaco: nothing was stated of sessions already in the lake; `aaco amend SESSION` does that", err=True)
    for row, error in rows:
        if error is not None:
            session = row["session_id"]
            say(f"aaco: {'not taken' if session is None else f'{session} is not whole'}: {error}", err=True)
    return rows


def _exit_code(rows: "list[_Row]", *, partial_ok: bool) -> int:
    """Return the code of the first refused or incomplete run; `partial_ok` ignores refused runs."""
    failed = [(row, error) for row, error in rows if error is not None]
    if partial_ok and len(failed) < len(rows):
        failed = [(row, error) for row, error in failed if row["session_id"] is not None]
    return failed[0][1].exit_code if failed else 0


def _as_row(one: "Ingested") -> dict[str, Any]:
    return {
        "session_id": one.session,
        "folder": str(one.run.folder),
        "already_known": one.state == "known",
        "state": one.state,
        "attempt": one.attempt,
        "version": one.version,
        "reason": None if one.error is None else str(one.error),
        "parts": [{"name": part.name, "format": part.format} for part in one.run.parts],
        "rows": list(one.rows),
        "unread": [_unread(left) for left in one.run.unread],
    }


def _print(found: "Sequence[Mapping[str, Any]]", *, as_json: bool) -> None:
    if as_json:
        print_json(list(found))
        return
    for one in found:
        if one["session_id"] is None:
            continue
        if one["state"] == "known":
            say(f"{one['session_id']}  {one['folder']}: already in the lake")
            continue
        again = f", attempt {one['attempt']}" if one["state"] == "continued" else ""
        say(f"{one['session_id']}  {one['folder']}: {counted(len(one['parts']), 'part')}{again}")
        rows = [row for row in one["rows"] if row["rows_in"]]
        if not rows:
            continue
        print_table(
            ("part", "records", "rows in", "taken", "why not all"),
            [
                (str(row["part"]), str(row["item"]), f"{row['rows_in']:,}", f"{row['rows_out']:,}", row["reason"])
                for row in rows
            ],
            numeric=("rows in", "taken"),
        )
    if found:
        counts = Counter(one["state"] for one in found)
        finished = f", {counts['continued']} finished" if counts["continued"] else ""
        say(
            f"{counted(counts['new'], 'new session')}{finished} of {counted(len(found), 'run')}; "
            "`aaco show latest` shows the newest"
        )


def _print_survey(found: "DiscoveredRuns", path: Path, *, as_json: bool) -> None:
    if as_json:
        runs = [
            {
                "folder": str(run.folder),
                "parts": [
                    {
                        **{key: getattr(part, key) for key in ("name", "format", "detail")},
                        "files": [*map(str, part.files)],
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
            ("not read", "why"), [(one.path.relative_to(top).as_posix(), one.reason) for one in left], title="Not read"
        )
    say(f"{counted(len(found.runs), 'run')}: `aaco ingest {path}` makes a session of each")


def _unread(one: "Unread") -> dict[str, str]:
    return {"file": str(one.path), "reason": one.reason}
