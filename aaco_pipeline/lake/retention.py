"""Retention: which sessions, runs and campaigns may be removed, and a log of removals with reasons.

`aaco_pipeline.pipeline.retention` removes them.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from aaco_pipeline.errors import LakeError, UsageError
from aaco_pipeline.lake.contracts import all_tables
from aaco_pipeline.lake.files import lake_errors
from aaco_pipeline.lake.journal import Journal
from aaco_pipeline.lake.layout import MANIFESTS, RAW, SESSION_ID, LakeFolder, time_of
from aaco_pipeline.lake.listing import Question, answers, capture_bytes
from aaco_pipeline.lake.manifest import Manifest
from aaco_pipeline.lake.store import TraceLake

ACCOUNT: Final = "removals.jsonl"
#: Maximum wait for another cleanup of the same lake.
WAIT_SECONDS: Final = 10.0
Kind = Literal["session", "campaign", "leftover", "run"]
_KINDS: Final = ("session", "campaign", "leftover", "run")
#: Rule for items named by the user: once started, removal is completed even if a limit would keep them.
ASKED: Final = "asked"


@dataclass(frozen=True)
class Removal:
    """The removal of a session or campaign by id, or of a leftover by path. Runs come from earlier versions."""

    kind: Kind
    name: str
    bytes: int
    rule: str
    reason: str


class Account:
    """The log of removals from one lake. Creating the object touches nothing.

    Each line is a JSON object, synced before (`begun`) and after (`removed`) a removal; the next call completes
    removals that were begun but not finished.
    """

    def __init__(self, lake: LakeFolder) -> None:
        self.path: Final = lake.path / ACCOUNT
        self._lake: Final = lake

    def held(self) -> AbstractContextManager[None]:
        """Keep others from removing with this log. LakeError if the wait times out."""
        return self._lake.holding(self._lake.path / ".locks" / "removals.lock", "the lake's retention", WAIT_SECONDS)

    def pending(self) -> list[Removal]:
        """Return removals that were begun but not completed, in order."""
        open_: dict[tuple[str, str], Removal] = {}
        for event, removal in self._lines():
            if event == "begun":
                open_[removal.kind, removal.name] = removal
            else:
                open_.pop((removal.kind, removal.name), None)
        return list(open_.values())

    def named(self, kind: Kind) -> set[str]:
        """Return all names of a kind whose removal was ever begun, so they once existed in this lake."""
        return {removal.name for _, removal in self._lines() if removal.kind == kind}

    def begin(self, removals: Sequence[Removal]) -> None:
        """Record the next removal."""
        self._append("begun", removals)

    def end(self, removals: Sequence[Removal]) -> None:
        """Record that a removal is complete."""
        self._append("removed", removals)

    def _append(self, event: str, removals: Sequence[Removal]) -> None:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        lines = [json.dumps({"at": at, "event": event, **vars(removal)}) + "\n" for removal in removals]
        with lake_errors(self.path):
            self._lake.storage.append(self.path, "".join(lines).encode())

    def _lines(self) -> Iterator[tuple[str, Removal]]:
        """Parse each complete line."""
        with lake_errors(self.path):
            try:
                lines = self._lake.storage.read(self.path).splitlines()
            except FileNotFoundError:
                return
        for line in lines:
            try:
                content = json.loads(line)
                event = content["event"]
                removal = Removal(*(content[name] for name in ("kind", "name", "bytes", "rule", "reason")))
            except (ValueError, KeyError, TypeError):
                continue  # cut off by a kill
            if removal.kind in _KINDS and isinstance(removal.name, str) and isinstance(removal.bytes, int):
                yield event, removal


#: An unfinished session modified this recently may still be in use, here or on another host.
UNFINISHED_STAYS: Final = timedelta(days=1)
#: A campaign is open until it publishes something, at most this long after its last session.
CAMPAIGN_STAYS_OPEN: Final = timedelta(days=7)
_BELONGS_TO: Final = Question(
    "arm", ("campaign_id", "arm"), ("sessions",), "SELECT session_id, campaign_id, arm FROM sessions ORDER BY ALL"
)
_UNITS: Final = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
_AGE: Final = re.compile(r"([1-9][0-9]{0,4})([hdw])")

#: Only the last one removes sessions.
Rule = Literal[
    "requested",
    "in_work",
    "unfinished",
    "unreadable",
    "campaign",
    "open_campaign",
    "baseline",
    "no_limits",
    "age",
    "newest",
    "beyond_limits",
]


@dataclass(frozen=True)
class Limits:
    """Sessions to keep: those younger than `keep` and the `keep_last` newest; with neither, nothing is removed.

    One limit is enough to keep a session. `keep_baselines` also keeps sessions measured as a baseline.
    """

    keep: timedelta | None = None
    keep_last: int | None = None
    keep_baselines: bool = False

    def __post_init__(self) -> None:
        if self.keep_last is not None and self.keep_last < 1:
            raise UsageError(f"{self.keep_last} newest sessions cannot be kept; expected a number from 1")

    @property
    def are_set(self) -> bool:
        """True if any session may be removed at all."""
        return self.keep is not None or self.keep_last is not None


@dataclass(frozen=True)
class SessionFacts:
    """Facts that decide whether one session is removed.

    `needed_by` is a campaign whose published tables depend on it; `is_readable` is False if that is unknown.
    """

    id: str
    bytes: int
    changed_at: datetime
    is_whole: bool = True
    is_locked: bool = False
    is_requested: bool = False
    is_readable: bool = True
    is_baseline: bool = False
    campaign: str | None = None
    needed_by: str | None = None

    @property
    def made_at(self) -> datetime:
        """Return when the session was begun, by its id; if its time is invalid, when it was last changed."""
        return time_of(self.id) or self.changed_at


@dataclass(frozen=True)
class Decision:
    """The decision whether to remove one session, the rule behind it, and the rule in words."""

    session_id: str
    bytes: int
    age: timedelta
    goes: bool
    rule: Rule
    reason: str


def parse_age(text: str) -> timedelta:
    """Parse `90d`, `36h` or `12w`; UsageError for anything else."""
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not an age; expected a number and h, d or w, such as 90d")
    return int(match[1]) * _UNITS[match[2]]


def age_words(age: timedelta) -> str:
    """Format an age in days, or in hours below two days."""
    hours = int(age.total_seconds()) // 3600
    return f"{hours} h" if hours < 48 else f"{hours // 24} d"


def decide(
    sessions: Collection[SessionFacts], limits: Limits, now: datetime, busy: Collection[str] = ()
) -> list[Decision]:
    """Decide for each session whether it is removed, oldest first. `busy` are sessions in use right now.

    Sessions that are needed or in use are kept regardless of the limits.
    """
    whole = sorted((one.id for one in sessions if one.is_whole), reverse=True)
    last = limits.keep_last
    # Count only finished sessions: ten consecutive failures must not displace all good ones.
    oldest_kept = None if last is None else whole[last - 1] if last <= len(whole) else ""
    newest_of: dict[str, datetime] = {}
    for one in sessions:
        if one.campaign is not None:
            newest_of[one.campaign] = max(one.made_at, newest_of.get(one.campaign, one.made_at))
    decided = []
    for one in sorted(sessions, key=lambda one: one.id):
        age = now - one.made_at
        kept = _needed(one, limits, now, busy, newest_of) or _within(one, limits, age, oldest_kept)
        rule, reason = kept or ("beyond_limits", _beyond(limits))
        decided.append(Decision(one.id, one.bytes, age, kept is None, rule, reason))
    return decided


def _needed(
    one: SessionFacts, limits: Limits, now: datetime, busy: Collection[str], newest_of: Mapping[str, datetime]
) -> tuple[Rule, str] | None:
    """Return the reason for keeping a session regardless of its age, or None."""
    is_young = now - one.changed_at < UNFINISHED_STAYS
    is_open = one.campaign is not None and now - newest_of[one.campaign] < CAMPAIGN_STAYS_OPEN
    reasons: tuple[tuple[bool, Rule, str], ...] = (
        (one.is_requested, "requested", "asked for, not measured yet"),
        (one.is_locked or one.id in busy, "in_work", "in work right now"),
        (
            is_young and not one.is_whole,
            "unfinished",
            f"not finished, and changed in the last {age_words(UNFINISHED_STAYS)}",
        ),
        (not one.is_readable, "unreadable", "its table `sessions` cannot be read; see `aaco doctor`"),
        (one.needed_by is not None, "campaign", f"campaign {one.needed_by} rests on it"),
        (is_open, "open_campaign", f"campaign {one.campaign} is open"),
        (limits.keep_baselines and one.is_baseline, "baseline", "measured as a baseline"),
    )
    return next(((rule, reason) for holds, rule, reason in reasons if holds), None)


def _within(one: SessionFacts, limits: Limits, age: timedelta, oldest_kept: str | None) -> tuple[Rule, str] | None:
    """Return the reason why the limits keep a session; None if it exceeds all of them."""
    if not limits.are_set:
        return "no_limits", "no limit is set"
    if limits.keep is not None and age < limits.keep:
        return "age", f"younger than {age_words(limits.keep)}"
    if oldest_kept is not None and one.id >= oldest_kept:
        return "newest", _newest(limits)
    return None


def _beyond(limits: Limits) -> str:
    told = [f"older than {age_words(limits.keep)}"] if limits.keep is not None else []
    if limits.keep_last is not None:
        told.append(f"not {_newest(limits)}")
    return ", ".join(told)


def _newest(limits: Limits) -> str:
    return "the newest" if limits.keep_last == 1 else f"among the {limits.keep_last} newest"


def session_facts(lake: TraceLake) -> list[SessionFacts]:
    """Return the facts of every session, including those only requested or captured, oldest first.

    LakeError if a manifest or a campaign's table is unreadable, because the sessions they need would be unknown.
    """
    requested = set(lake.requests())
    unreadable: dict[str, LakeError] = {}
    with lake.catalogue() as known, lake_errors(lake.path):
        known.require_readable("session")
        campaigns = list(known.manifests("campaign"))
        progress, published = known.progress(), known.published_bytes()
        sessions = sorted(filter(SESSION_ID.fullmatch, {*progress, *requested, *lake.captured()}))
        captures = capture_bytes(lake, known, sessions)
        belonging = answers(lake, known, _BELONGS_TO, [one for one in sessions if one in progress], unreadable)
    named = _named_by(lake, campaigns)
    resting = {manifest.id for manifest in campaigns if manifest.files}
    captured_as_held = Journal(lake).sessions_held()
    changed_at = _changed_at(lake)

    def of(session: str) -> SessionFacts:
        belongs = belonging.get(session, {})
        campaign = belongs.get("campaign_id")
        if session in requested:
            campaign = campaign or _campaign_of(lake.requested(session))
        return SessionFacts(
            id=session,
            bytes=published.get(session, 0) + captures[session],
            changed_at=datetime.fromtimestamp(changed_at.get(session, 0.0), UTC),
            is_whole=session in progress and progress[session].is_whole is not False,
            is_locked=session in captured_as_held or lake.storage.is_held(lake.lock_path(session)),
            is_requested=session in requested,
            is_readable=session not in unreadable,
            is_baseline=belongs.get("arm") == "baseline",
            campaign=campaign,
            needed_by=named.get(session) or (campaign if campaign in resting else None),
        )

    with lake_errors(lake.path):
        return [of(session) for session in sessions]


def _named_by(lake: TraceLake, campaigns: Iterable[Manifest]) -> dict[str, str]:
    """Map each session id found in a published table of a campaign to the campaign."""
    return {
        text: manifest.id for manifest in campaigns for text in _texts(lake, manifest) if SESSION_ID.fullmatch(text)
    }


def _texts(lake: TraceLake, manifest: Manifest) -> Iterator[str]:
    import polars as pl

    for entry in manifest.entries:
        if entry.table not in all_tables():
            raise LakeError(
                f"campaign {manifest.id} has a table {entry.table}, which this aaco_pipeline does not know, nor what "
                "it needs; upgrade aaco_pipeline"
            )
        for column in lake.read_entry(entry).iter_columns():
            texts = column.explode() if column.dtype == pl.List(pl.String) else column
            if texts.dtype == pl.String:
                yield from texts.drop_nulls().unique()


def _campaign_of(request: str | None) -> str | None:
    """Return the campaign that a measurement request belongs to."""
    try:
        campaign = json.loads(request or "{}").get("campaign_id")
    except (ValueError, AttributeError):
        return None
    return campaign if isinstance(campaign, str) else None


def _changed_at(lake: TraceLake) -> dict[str, float]:
    """Return when each session's manifest or capture last changed, in seconds since 1970."""
    found: dict[str, float] = {}
    with lake_errors(lake.path):
        for folder in (MANIFESTS, RAW):
            for one in lake.storage.listed(lake.path / folder):
                session = one.name.removesuffix(".json").removeprefix("session_id=")
                found[session] = max(one.changed_at, found.get(session, 0.0))
    return found
