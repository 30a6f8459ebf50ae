"""`aaco nightly`, `aaco alerts`, `aaco baseline`: measure what is due, handle alerts, manage baselines.

Plans, alerts and baselines are implemented in `aaco_pipeline.pipeline.nightly`.
"""

from typing import TYPE_CHECKING, Any, Final

import click

from aaco_pipeline.cli.options import RequestCommand, lake_option, new_lake_option, open_lake, request_of, wait_option
from aaco_pipeline.cli.output import data_format, print_json, print_table, progress_bar, say, tell
from aaco_pipeline.errors import AacoError

if TYPE_CHECKING:
    from aaco_pipeline.resources.project import Project


REGRESSION: Final = 5
INCONCLUSIVE: Final = 7
_DECIDED: Final = ("improved", "equivalent")


@click.command()
@click.option("--only", multiple=True, metavar="MODEL[:BACKEND]", help="Measure only this benchmark (repeatable).")
@click.option("--strict", is_flag=True, help="Exit with 7 if a benchmark is suspected or has no verdict.")
@wait_option(tell)
@new_lake_option
@data_format
def nightly(project: "Project", *, as_json: bool, strict: bool, only: tuple[str, ...]) -> int:
    """Measure what is due: tonight's benchmarks, and confirmations of suspected regressions.

    A night is one UTC date. Each benchmark in configs/nightly.yaml is measured once per night; a killed measurement
    continues. A regression is first reported as suspected; `aaco nightly`, run at least half an hour later, measures it
    again to confirm it. Exits with 5 if a confirmed regression is not acknowledged.
    """
    from datetime import UTC, datetime

    from aaco_pipeline.pipeline.comparing.running import run
    from aaco_pipeline.pipeline.nightly.benchmarks import chosen, load_benchmarks, night_of
    from aaco_pipeline.pipeline.nightly.night import begin_due, due_now
    from aaco_pipeline.report.nights import night_document, night_view
    from aaco_pipeline.report.terminal import print_view
    from aaco_pipeline.resources.measure.runner import InferenceRunner

    benchmarks = chosen(load_benchmarks(project.configs), only)
    keys = {one.key for one in benchmarks}
    lake, now = open_lake(project), datetime.now(UTC)
    with progress_bar(as_json) as show:
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
        print_view(night_view(document))
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
    """List and acknowledge nightly regression alerts."""
    return 0 if context.invoked_subcommand else _list(project, as_json)


@alerts.command("ls")
@lake_option
@data_format
def list_alerts(project: "Project", as_json: bool) -> int:
    """List the open alerts, newest first; JSON also includes closed alerts, with all events."""
    return _list(project, as_json)


@alerts.command()
@click.argument("alert")
@click.option("--why", required=True, metavar="TEXT", help="Why the regression is acceptable.")
@click.option("--who", metavar="NAME", help="Who acknowledges it (default: the login name).")
@lake_option
def acknowledge(project: "Project", alert: str, why: str, who: str | None) -> int:
    """Acknowledge an alert and record why the regression is acceptable. ALERT is its name or a unique part of it.

    The new level can then become the baseline. The alert is not reported again, but a further regression is.
    """
    from aaco_pipeline.pipeline.nightly.alerts import acknowledge as say_so

    name = say_so(open_lake(project), alert, _login() if who is None else who, why)
    say(f"{name} is acknowledged")
    return 0


def _list(project: "Project", as_json: bool) -> int:
    from aaco_pipeline.report.nights import alerts_document

    document = alerts_document(open_lake(project))
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
        return ""  # refused later with a message that lists the required options


@click.group()
def baseline() -> None:
    """Manage the baselines used by `nightly` and `compare`."""


@baseline.command(cls=RequestCommand)
@new_lake_option
@data_format
def pin(project: "Project", as_json: bool, **options: Any) -> int:
    """Pin the current result of these options as the baseline of its model and backend.

    The model file is copied to the lake, so that the baseline can be measured after your file has changed. Nothing is
    measured now.
    """
    from aaco_pipeline.pipeline.nightly.baselines import pin as keep
    from aaco_pipeline.resources.measure.inference import check_request

    request = request_of(options)
    check_request(request, project.configs)
    lake = open_lake(project)
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
    """List baselines, newest first; `current` marks the baseline in use for a workload."""
    from aaco_pipeline.pipeline.nightly.baselines import baselines

    rows = baselines(open_lake(project))
    if as_json:
        print_json(rows.to_dicts())
        return 0
    shown = rows.select("campaign_id", "workload", "backend", "kind", "since", "is_current").iter_rows()
    cells = [(*names, f"{since:%Y-%m-%d %H:%M}", "yes" if is_current else "") for *names, since, is_current in shown]
    print_table(("baseline", "workload", "backend", "kind", "since (UTC)", "current"), cells)
    return 0


@baseline.command()
@click.argument("name")
@lake_option
def retire(project: "Project", name: str) -> int:
    """Retire a baseline. Earlier comparisons with it remain readable."""
    from aaco_pipeline.pipeline.nightly.baselines import retire as let_go

    let_go(open_lake(project), name)
    say(f"{name} is retired")
    return 0
