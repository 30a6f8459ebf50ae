"""`aaco nightly`, `aaco alerts`, `aaco baseline`: measure what is due, answer alerts, manage baselines.

Plans, alerts and baselines are `aaco_pipeline.pipeline.nightly`.
"""

from typing import TYPE_CHECKING, Any, Final

import click

from aaco_pipeline.cli.options import RequestCommand, lake_option, new_lake_option, request_of, wait_option
from aaco_pipeline.cli.output import data_format, print_json, print_table, progress_bar, say, tell
from aaco_pipeline.errors import AacoError

if TYPE_CHECKING:
    from aaco_pipeline.resources.project import Project


REGRESSION: Final = 5
INCONCLUSIVE: Final = 7
_DECIDED: Final = ("improved", "equivalent")


@click.command()
@click.option(
    "--only", multiple=True, metavar="MODEL[:BACKEND]", help="Only these benchmarks (may be given several times)."
)
@click.option("--strict", is_flag=True, help="Exit with 7 when a benchmark is suspected or has no verdict.")
@wait_option(tell)
@new_lake_option
@data_format
def nightly(project: "Project", *, as_json: bool, strict: bool, only: tuple[str, ...]) -> int:
    """Measure what is due: tonight's benchmarks, and what an earlier run of the night suspects.

    The night is today's date in UTC, and each benchmark of configs/nightly.yaml is measured once in it; a killed one
    goes on. What regressed is suspected, and confirmed by `aaco nightly` half an hour later. Exits with 5 when a
    regression is confirmed and nobody acknowledged it.
    """
    from datetime import UTC, datetime

    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.pipeline.comparing.running import run
    from aaco_pipeline.pipeline.nightly.benchmarks import chosen, load_benchmarks, night_of
    from aaco_pipeline.pipeline.nightly.night import begin_due, due_now
    from aaco_pipeline.report.nights import night_document, print_night
    from aaco_pipeline.resources.measure.runner import InferenceRunner
    from aaco_pipeline.resources.progress import progress_listener

    benchmarks = chosen(load_benchmarks(project.configs), only)
    keys = {one.key for one in benchmarks}
    lake, now = TraceLake(project.lake), datetime.now(UTC)
    with progress_bar(as_json) as show, progress_listener(show):
        begun = begin_due(lake, InferenceRunner(configs=str(project.configs)), benchmarks, now, only=keys)
        failed = list(begun.refused.items())
        campaigns = due_now(lake, [], now, keys).go_on
        for number, campaign in enumerate(campaigns):
            show("campaigns of the night", number, len(campaigns))
            try:
                run(project.configs, lake, campaign)
            except AacoError as error:
                failed.append((campaign, error))
    waiting = due_now(lake, [], datetime.now(UTC), keys)
    confirm_at = {one.campaign: one.not_before for one in (*waiting.confirm, *waiting.later)}
    document = night_document(lake, night_of(now), confirm_at, keys)
    if as_json:
        print_json({**document, "failed": [{"what": what, "why": str(why)} for what, why in failed]})
    else:
        print_night(document)
    for what, why in failed:
        say(f"aaco: {what}: {why}", err=True)
    if document["regression"]:
        return REGRESSION
    if failed:
        return failed[0][1].exit_code
    undecided = any(row["verdict"] not in _DECIDED for row in document["benchmarks"])
    return INCONCLUSIVE if strict and undecided else 0


@click.group(invoke_without_command=True)
@lake_option
@data_format
@click.pass_context
def alerts(context: click.Context, project: "Project", as_json: bool) -> int:
    """What the nights found: suspected, confirmed in a second time slot, acknowledged, resolved."""
    return 0 if context.invoked_subcommand else _list(project, as_json)


@alerts.command("ls")
@lake_option
@data_format
def list_alerts(project: "Project", as_json: bool) -> int:
    """List the open alerts, the newest first; JSON holds those that are over, too, with all events."""
    return _list(project, as_json)


@alerts.command()
@click.argument("alert")
@click.option("--why", required=True, metavar="TEXT", help="Why it may stay: what later readers will find.")
@click.option("--who", metavar="NAME", help="Who acknowledges it (default: the login name).")
@lake_option
def acknowledge(project: "Project", alert: str, why: str, who: str | None) -> int:
    """Say that you know of an alert, and why it may stay. ALERT is its name or a part that no other has.

    Its nights may then become what later ones are held against. It is not told again; what comes on top of it is.
    """
    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.pipeline.nightly.alerts import acknowledge as say_so

    name = say_so(TraceLake(project.lake), alert, _login() if who is None else who, why)
    say(f"{name} is acknowledged")
    return 0


def _list(project: "Project", as_json: bool) -> int:
    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.report.nights import alerts_document

    document = alerts_document(TraceLake(project.lake))
    if as_json:
        print_json(document)
        return 0
    for alert in document["open"]:
        _show(alert)
    over = f", {len(document['over'])} over" if document["over"] else ""
    say(f"{len(document['open']) or 'no alert'} open{over}")
    return 0


def _show(alert: dict[str, Any]) -> None:
    say(alert["alert"])
    for line in (alert["in_words"], alert["why"], alert["next"]):
        if line is not None:
            say(f"  {line}")
    say("")


def _login() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""  # refused with a line that says what to give


@click.group()
def baseline() -> None:
    """What workloads are held against: `aaco nightly` measures it again beside the candidate."""


@baseline.command(cls=RequestCommand)
@new_lake_option
@data_format
def pin(project: "Project", as_json: bool, **options: Any) -> int:
    """Keep what these options measure now as the baseline of its model and backend.

    The model's file is copied into the lake, so that it can be measured again when yours has changed. Nothing is
    measured now.
    """
    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.pipeline.nightly.baselines import pin as keep
    from aaco_pipeline.resources.measure.inference import check_request

    request = request_of(options)
    check_request(request, project.configs)
    lake = TraceLake(project.lake)
    identifier = keep(lake, request, project.configs)
    if as_json:
        print_json(lake.read("baselines", identifier).row(0, named=True))
    else:
        say(f"{identifier}: {request.model} on {request.backend} is pinned")
    return 0


@baseline.command("ls")
@lake_option
@data_format
def list_baselines(project: "Project", as_json: bool) -> int:
    """List baselines, the newest first; `current` is what a workload is held against."""
    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.pipeline.nightly.baselines import baselines

    rows = baselines(TraceLake(project.lake))
    if as_json:
        print_json(rows.to_dicts())
    else:
        shown = rows.select("campaign_id", "workload", "backend", "kind", "since", "is_current").iter_rows()
        cells = [
            (*names, f"{since:%Y-%m-%d %H:%M}", "yes" if is_current else "") for *names, since, is_current in shown
        ]
        print_table(("baseline", "workload", "backend", "kind", "since (UTC)", "current"), cells)
    return 0


@baseline.command()
@click.argument("name")
@lake_option
def retire(project: "Project", name: str) -> int:
    """Let a baseline count no more. What was held against it still finds it."""
    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.pipeline.nightly.baselines import retire as let_go

    let_go(TraceLake(project.lake), name)
    say(f"{name} is retired")
    return 0
