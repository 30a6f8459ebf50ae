"""`aaco info`, `aaco doctor`, `aaco init`: what this host can measure, and a project's settings.

The facts come from `aaco_pipeline.resources`; `aaco_pipeline.pipeline.doctor` examines a lake.
"""

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aaco_pipeline import __version__
from aaco_pipeline.cli.options import lake_option, new_lake_option, open_lake
from aaco_pipeline.cli.output import data_format, print_json, print_table, progress_bar, say
from aaco_pipeline.errors import AacoError

if TYPE_CHECKING:
    from aaco_pipeline.pipeline.doctor import Problem
    from aaco_pipeline.resources.project import Project


_PROBLEMS_REMAIN = 8


@click.command()
@new_lake_option
@data_format
def info(project: "Project", as_json: bool) -> None:
    """Show this host's hardware, what each backend lacks, and how to fix it."""
    from aaco_pipeline.resources.configuration import load_backends, load_models
    from aaco_pipeline.resources.host.backends import backend_states, tool_states
    from aaco_pipeline.resources.host.facts import host_facts
    from aaco_pipeline.resources.measure.models import describe_models

    facts = host_facts()["facts"]
    backends = backend_states(load_backends(project.configs / "backends.yaml"))
    tools = tool_states()
    models = describe_models(load_models(project.configs / "models.yaml"))
    if as_json:
        print_json(
            {
                "version": __version__,
                "lake": str(project.lake),
                "dagster_home": str(project.dagster_home),
                "host": facts,
                "backends": [asdict(state) for state in backends],
                "tools": [asdict(state) for state in tools],
                "models": [asdict(model) for model in models],
            }
        )
        return
    for line in (f"aaco {__version__}", f"lake: {project.lake}", f"Dagster home: {project.dagster_home}"):
        say(line)
    print_table(
        ("fact", "value"),
        [(f"{f['category']} {f['key']}", f["value"]) for f in facts],
        title="This host (– is unknown)",
    )
    print_table(
        ("backend", "provider", "usable", "lacks", "fix"),
        [
            (s.backend, s.provider.removesuffix("ExecutionProvider"), "yes" if s.usable else "no", s.lacks, s.fix)
            for s in backends
        ],
        title="Backends",
    )
    print_table(
        ("tool", "path", "for", "if absent"), [(t.tool, t.path, t.purpose, t.fix) for t in tools], title="Tools"
    )
    print_table(
        ("model", "origin", "weights", "what"),
        [(m.name, m.origin, m.weights, m.description) for m in models],
        title="Models",
    )


@click.command()
@click.option("--mend", is_flag=True, help="Make every repair that loses no published data.")
@click.option(
    "--prove",
    "proven",
    multiple=True,
    metavar="SESSION",
    help="Only recompute a session's tables from its raw capture and compare them (an id, latest, or all).",
)
@lake_option
@data_format
def doctor(project: "Project", mend: bool, proven: tuple[str, ...], as_json: bool) -> int:
    """Find incomplete sessions and campaigns, torn or orphaned files, and stale locks.

    --mend finishes incomplete sessions: it performs requested measurements and runs unpublished stages.

    Missing optional tools, such as a compiler for AMD GPUs, are not reported as problems.

    Exits with 0 if everything is fine or repaired, and with 8 if a problem remains or a table is not reproduced.
    """
    if proven:
        return _prove(project, proven, as_json=as_json)
    from aaco_pipeline.lake.catalogue import mark_earlier
    from aaco_pipeline.pipeline.doctor import examine
    from aaco_pipeline.pipeline.session_stages import finish_session
    from aaco_pipeline.resources.toolchains.amdgpu.finding import availability, emulator_availability

    lake = open_lake(project)
    if mend and lake.path.is_dir():
        mark_earlier(lake)
    rows: list[dict[str, str]] = []

    def finish(session: str) -> None:
        with progress_bar(as_json):
            finish_session(lake, session, project.configs)

    treated: set[tuple[str, str]] = set()
    while True:
        found = [one for one in examine(lake, finish) if (one.kind, one.subject) not in treated]
        treated |= {(one.kind, one.subject) for one in found}
        rows += [_treated(one, mend=mend) for one in found]
        if not mend or not found:
            break  # a repair may reveal another problem: removing a torn table leaves an incomplete session
    if as_json:
        print_json(rows)
    elif not rows:
        say(f"{lake.path}: all is well")
    else:
        print_table(("what", "where", "why", "state"), [tuple(row.values()) for row in rows])
        if any(row["state"] == "can be mended" for row in rows):
            say("`aaco doctor --mend` mends what can be mended")
    if not as_json:
        say(availability())
        say(emulator_availability())
    return _PROBLEMS_REMAIN if any(row["state"] != "mended" for row in rows) else 0


def _treated(problem: "Problem", *, mend: bool) -> dict[str, str]:
    """Describe a problem and its state, after repairing it if requested."""
    row = {"kind": problem.kind, "subject": problem.subject, "why": problem.explanation, "state": "needs you"}
    if problem.mend is None:
        return row
    if not mend:
        return {**row, "state": "can be mended"}
    try:
        return {**row, "state": "mended" if problem.mend() else "could not be mended"}
    except AacoError as error:
        return {**row, "why": str(error), "state": "could not be mended"}


def _prove(project: "Project", names: tuple[str, ...], *, as_json: bool) -> int:
    """Recompute sessions and report for each whether every table matches the published one."""
    from aaco_pipeline.pipeline.reanalysis import prove

    lake = open_lake(project)
    sessions = lake.sessions() if "all" in names else [lake.find_session(name) for name in names]
    proofs = []
    with progress_bar(as_json) as show:
        for session in sessions:
            proofs.append(prove(lake, session, project.configs, show))
            if not as_json:
                say(str(proofs[-1]))
    if as_json:
        print_json([asdict(one) for one in proofs])
    return 0 if all(one.holds for one in proofs) else _PROBLEMS_REMAIN


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=".")
def init(folder: Path) -> None:
    """Write dagster.yaml, workspace.yaml and configs/ to FOLDER (default: current folder), to edit.

    These files are optional: by default every command uses the same settings from the package. A folder with a
    dagster.yaml is a project: its lake is its subfolder tracelake/, also for commands run in other subfolders.
    """
    from aaco_pipeline.errors import UsageError
    from aaco_pipeline.resources.project import DEFAULTS

    names = sorted(path.relative_to(DEFAULTS) for path in DEFAULTS.rglob("*.yaml"))
    if there := [str(folder / name) for name in names if (folder / name).exists()]:
        raise UsageError(f"init: not overwritten: {', '.join(there)}; nothing was written")
    try:
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with (folder / name).open("xb") as file:
                file.write((DEFAULTS / name).read_bytes())
    except OSError as error:
        raise UsageError(f"init: {error.filename}: {error.strerror}") from error
    for name in names:
        say(folder / name)
    go = "" if folder.resolve() == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    say(f"Edit what you like; nothing has to be. Next: {go}aaco run --model squeezenet")
