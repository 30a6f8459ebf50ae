"""`aaco rm`: sessions and campaigns that a person wants to be rid of.

What goes with a campaign, and when it may not go, is `aaco_pipeline.pipeline.comparing.removing`.
"""

from typing import TYPE_CHECKING

import click

from aaco_pipeline.cli.lake_option import lake_option
from aaco_pipeline.cli.output import data_format, print_json, say
from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.identity import SESSION_ID
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.words.units import counted, size

if TYPE_CHECKING:
    from aaco_pipeline.resources.project import Project


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="SESSION|CAMPAIGN...")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@lake_option
@data_format
def rm(project: "Project", names: tuple[str, ...], yes: bool, as_json: bool) -> int:
    """Remove sessions and campaigns: tables, captures and reports.

    A campaign goes with all its sessions, and never while it is measured; of its sessions none goes alone.
    """
    from aaco_pipeline.pipeline.comparing.removing import (
        remove_campaigns,
        remove_sessions,
        require_whole,
        sessions_of,
    )

    lake = TraceLake(project.lake)
    campaigns = {one: sessions_of(lake, one) for name in names if (one := _campaign(lake, name)) is not None}
    alone = sorted({lake.find_session(name) for name in names if _campaign(lake, name) is None})
    require_whole(lake, alone, campaigns)
    own = {one for sessions in campaigns.values() for one in sessions}
    sessions = [one for one in alone if one not in own]
    counts = (len(campaigns), "campaign"), (len(sessions) + len(own), "session")
    told = " and ".join(counted(*one) for one in counts if one[0])
    if not yes:
        for one, goes in campaigns.items():
            bytes_ = lake.table_bytes(one, "campaign") + sum(map(lake.disk_bytes, goes))
            say(f"{one}  {size(bytes_)}, {counted(len(goes), 'session')}", err=True)
        for one in sessions:
            say(f"{one}  {size(lake.disk_bytes(one))}", err=True)
        click.confirm(f"Remove {told} from {lake.path} for good?", abort=True, err=True)
    later = sum(map(lake.segment_bytes, (*sessions, *own)))
    rounds = [remove_campaigns(lake, campaigns)] if campaigns else []
    rounds += [remove_sessions(lake, sessions)] if sessions else []
    removed = [one for done in rounds for one in done.removed]
    failed = [line for done in rounds for line in done.failed]
    if as_json:
        print_json([{f"{one.kind}_id": one.name, "freed_bytes": one.bytes} for one in removed])
    elif not failed:
        say(f"removed {told}, {size(sum(one.bytes for one in removed))} freed")
        if later:
            say(f"{size(later)} in segments leave the disk with the next `aaco compact`")
    for line in failed:
        say(f"aaco: {line}", err=True)
    return LakeError.exit_code if failed else 0


def _campaign(lake: TraceLake, name: str) -> str | None:
    """The campaign that a name means; None when it is a session's."""
    from aaco_pipeline.pipeline.comparing.removing import find_campaign

    return None if name == "latest" or SESSION_ID.fullmatch(name) else find_campaign(lake, name)
