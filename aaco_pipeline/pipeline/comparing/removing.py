"""Removing campaigns with their sessions: what a person gave up, or wants to be rid of.

A campaign goes whole or stays: a verdict whose sessions are gone could not be looked into any more.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack

from aaco_pipeline.errors import LakeError, UsageError
from aaco_pipeline.lake.removals import ASKED, Account, Removal
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.half_sessions import running_sessions
from aaco_pipeline.pipeline.retention import Round, carry_out


def find_campaign(lake: TraceLake, name: str) -> str | None:
    """The campaign that an id or the beginning of one means; None when it means none. UsageError when several."""
    known = lake.campaigns()
    matching = [name] if name in known else [one for one in known if one.startswith(name)]
    if len(matching) > 1:
        raise UsageError(f"campaign {name!r} is ambiguous: {', '.join(matching[:4])} …; give more of the id")
    return matching[0] if matching else None


def sessions_of(lake: TraceLake, campaign: str) -> list[str]:
    """The sessions of a campaign, or of a sweep, that are in the lake; none where its manifest is lost, and they stay.

    UsageError for a baseline, which has none.
    """
    if lake.is_lost(campaign, "campaign"):
        return []
    if not lake.read("baselines", campaign).is_empty():
        raise UsageError(f"{campaign} is a baseline, which others were held against: `aaco baseline retire {campaign}`")
    rows = [lake.read(table, campaign).get_column("session_id").to_list() for table in ("campaign_sessions", "scaling")]
    known = {*lake.sessions(), *lake.captured(), *lake.requests()}
    return sorted(known & {session for named in rows for session in named})


def require_whole(lake: TraceLake, sessions: Collection[str], campaigns: Collection[str]) -> None:
    """UsageError when one of the sessions is of a campaign that is not removed with it."""
    others = [one for one in lake.campaigns() if one not in campaigns] if sessions else []
    members = lake.read("campaign_sessions", others).select("session_id", "campaign_id").iter_rows()
    for session, campaign in members:
        if session in sessions:
            raise UsageError(f"campaign {campaign} rests on session {session}; `aaco rm {campaign}` removes both")


def remove_campaigns(lake: TraceLake, campaigns: Mapping[str, Sequence[str]]) -> Round:
    """Remove campaigns, each with these sessions; killed, `aaco gc` or `doctor --mend` goes on.

    LakeError, before anything is removed, when somebody is at work on one of them.
    """
    account, done = Account(lake), Round()
    with account.held(), ExitStack() as held:
        for campaign, sessions in campaigns.items():
            _require_at_rest(lake, campaign, sessions)
            held.enter_context(lake.measuring(campaign, wait_seconds=0))
        groups = [_going(lake, campaign, sessions) for campaign, sessions in campaigns.items()]
        carry_out(lake, account, groups, done)
    return done


def remove_sessions(lake: TraceLake, sessions: Sequence[str]) -> Round:
    """Remove sessions of no campaign; killed, `aaco gc` or `doctor --mend` goes on."""
    account, done = Account(lake), Round()
    with account.held():
        carry_out(lake, account, [[_session(lake, one, "removed by hand")] for one in sessions], done)
    return done


def _require_at_rest(lake: TraceLake, campaign: str, sessions: Sequence[str]) -> None:
    if lake.is_measuring(campaign):
        raise LakeError(f"campaign {campaign} is being measured; wait for its end, or end it, and remove it then")
    busy = running_sessions(lake, sessions)
    if busy:
        raise LakeError(f"session {min(busy)} of campaign {campaign} is in work; remove the campaign once it is done")


def _going(lake: TraceLake, campaign: str, sessions: Sequence[str]) -> list[Removal]:
    """The campaign first: without it nobody goes on measuring it, and what is left of its sessions goes as well."""
    told = f"of campaign {campaign}"
    return [
        Removal("campaign", campaign, lake.table_bytes(campaign, "campaign"), ASKED, "removed by hand"),
        *(_session(lake, one, told) for one in sessions),
    ]


def _session(lake: TraceLake, session: str, told: str) -> Removal:
    return Removal("session", session, lake.disk_bytes(session) - lake.segment_bytes(session), ASKED, told)
