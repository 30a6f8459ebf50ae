"""Making Dagster know what the lake holds: sessions of another host, of a restored copy, or of a home that was deleted.

The lake is the truth. What it has published and Dagster does not show becomes a partition with the materializations and
check results that a run would have left; nothing is measured or computed again. Who calls it: the sensor
`lake_sessions`, a few sessions at a time, and `aaco doctor --mend`, all at once.
"""

from collections.abc import Collection, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

import dagster as dg
from dagster._core.event_api import PartitionKeyFilter

from aaco_pipeline.assets.stage import Session, Stage, stages
from aaco_pipeline.automation.event_storage import connections_kept
from aaco_pipeline.automation.partitions import PARTITIONS_NAME, add_partition
from aaco_pipeline.automation.stage_events import LAKE_KEY, amounts, checked, evaluation, version_tags
from aaco_pipeline.lake.removals import Account

if TYPE_CHECKING:
    from aaco_pipeline.lake.progress import Progress
    from aaco_pipeline.lake.store import TraceLake

#: The stage that every session begins with.
CAPTURE: Final = "capture"
#: Dagster is asked about so many sessions by name; about more it is asked for all that it has.
_MOST_NAMED: Final = 1000

Event = dg.AssetMaterialization | dg.AssetCheckEvaluation


def unknown_sessions(
    lake: "TraceLake", instance: dg.DagsterInstance, busy: Collection[str] = (), since: str | None = None
) -> dict[str, frozenset[str]]:
    """Sessions of which the lake has published what Dagster does not show, the newest first, but for `busy` ones.

    With each the stages that Dagster does show of it. `since` names a first look at everything; whom it or one after it
    under the same name has found known is taken to be while Dagster has its partition and no further stage has been
    published, and Dagster is asked about the others alone.
    """
    partitions = set(instance.get_dynamic_partitions(PARTITIONS_NAME))
    with lake.catalogue() as known:
        known.require_readable("session")
        progress = known.progress()
        found_known = known.remembered("known") if since is not None else {}
        made_of = {session: f"{since} {_published_in(one)}" for session, one in progress.items()}
        due = [
            session
            for session in reversed(progress)
            if session not in partitions or found_known.get(session, ("", ""))[0] != made_of[session]
        ]
        shown_of = _shown(instance, due)
        found, whole = dict[str, frozenset[str]](), list[str]()
        for session in due:
            published = {state.stage for state in progress[session].published} & shown_of.keys()
            shown = frozenset(name for name, sessions in shown_of.items() if session in sessions)
            if session in partitions and published <= shown:
                whole.append(session)
            elif session not in busy:
                found[session] = shown
        if since is not None:
            known.remember("known", {session: (made_of[session], "") for session in whole})
    return found


def once_of(lake: "TraceLake", instance: dg.DagsterInstance, sessions: Collection[str]) -> set[str]:
    """Those of `sessions` that are known to have been in this lake: several lakes may share Dagster's home.

    Where Dagster shows a session's capture, that names the lake; else this lake's account of removals has the session.
    """
    capture, made = dg.AssetKey(CAPTURE), dg.DagsterEventType.ASSET_MATERIALIZATION
    ask = instance.event_log_storage.get_latest_storage_id_by_partition
    shown = ask(capture, made, partitions=set(sessions)) if sessions else {}
    numbers, own = [one for one in shown.values() if one is not None], set[str]()
    for first in range(0, len(numbers), _MOST_NAMED):
        some = numbers[first : first + _MOST_NAMED]
        asked = dg.AssetRecordsFilter(asset_key=capture, storage_ids=some)
        for record in instance.fetch_materializations(asked, limit=len(some)).records:
            place = record.asset_materialization.metadata.get(LAKE_KEY) if record.asset_materialization else None
            if place is not None and place.value == str(lake.path) and record.partition_key is not None:
                own.add(record.partition_key)
    return own | (set(sessions) - shown.keys()) & Account(lake).named("session")


def events_of(lake: "TraceLake", instance: dg.DagsterInstance, session: str, shown: Collection[str]) -> Iterator[Event]:
    """What Dagster is to show of a session but the stages in `shown`: amounts, versions and checks of each stage."""
    manifest, opened = lake.manifest(session), Session(lake, session, Path())
    for name in (state.stage for state in manifest.stages if state.failure is None):
        one = stages().get(name)
        if one is None:
            continue  # of a later version
        if name not in shown:
            told = amounts(opened, one, manifest.of_stage(name))
            tags = version_tags(manifest, one)
            yield dg.AssetMaterialization(dg.AssetKey(name), metadata=told, partition=session, tags=tags)
        for result in _results(opened, one):
            # Outside of a run Dagster keeps one result of a check for each session, and fails at a second.
            if not shown or not _is_checked(instance, one, str(result.check_name), session):
                yield evaluation(one, session, result)


def make_known(lake: "TraceLake", instance: dg.DagsterInstance, session: str, shown: Collection[str]) -> None:
    """Give Dagster what it is to show of a session, and its partition last: one that is there is complete."""
    with connections_kept(instance) as kept:
        events = list(events_of(lake, instance, session, shown))  # before the block: others cannot store in it
        with kept.at_once():
            for event in events:
                instance.report_runless_asset_event(event)
    add_partition(instance, session)


def _published_in(progress: "Progress") -> str:
    """What is another text whenever other stages have published."""
    return sha256(" ".join(sorted(state.stage for state in progress.published)).encode()).hexdigest()[:16]


def _shown(instance: dg.DagsterInstance, sessions: Collection[str]) -> dict[str, Collection[str]]:
    """By stage those of `sessions`, and maybe others, of which Dagster shows it."""
    if len(sessions) > _MOST_NAMED:
        return {name: instance.get_materialized_partitions(dg.AssetKey(name)) for name in stages()}
    made, named = dg.DagsterEventType.ASSET_MATERIALIZATION, set(sessions)
    ask = instance.event_log_storage.get_latest_storage_id_by_partition
    return {name: ask(dg.AssetKey(name), made, partitions=named).keys() if named else () for name in stages()}


def _results(session: Session, one: Stage) -> Iterator[dg.AssetCheckResult]:
    """The results of a stage's checks, up to one that cannot judge: of a torn table the first has told, and goes on."""
    with suppress(Exception):
        yield from checked(session, one)


def _is_checked(instance: dg.DagsterInstance, one: Stage, check: str, session: str) -> bool:
    key, of_session = dg.AssetCheckKey(dg.AssetKey(one.name), check), PartitionKeyFilter(key=session)
    storage = instance.event_log_storage
    return bool(storage.get_asset_check_execution_history(key, limit=1, partition_filter=of_session))
