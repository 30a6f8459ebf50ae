"""`aaco alerts`: what the nights found and nobody has answered yet, and the answer of a person.

What an alert is, is `aaco_pipeline.statistics.alerts`; the nights themselves are `aaco nightly`.
"""

from typing import TYPE_CHECKING, Any

import click

from aaco_pipeline.cli.lake_option import lake_option
from aaco_pipeline.cli.output import data_format, print_json, say

if TYPE_CHECKING:
    from aaco_pipeline.resources.project import Project


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
    from aaco_pipeline.pipeline.comparing.alerting import acknowledge as say_so

    name = say_so(TraceLake(project.lake), alert, _login() if who is None else who, why)
    say(f"{name} is acknowledged")
    return 0


def _list(project: "Project", as_json: bool) -> int:
    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.report.document.alerts import alerts_document

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
