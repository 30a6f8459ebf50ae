"""Making Dagster know what the lake holds: sessions of another host, of a restored copy, or of a home that was deleted.

The lake is the truth. What it has published and Dagster does not show becomes a partition with the materializations and
check results that a run would have left; nothing is measured or computed again. Who calls it: the sensor
`lake_sessions`, a few sessions at a time, and `aaco doctor --mend`, all at once.
"""

from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
from dagster._core.event_api import PartitionKeyFilter

from aaco_pipeline.assets.stage import Session, Stage, stages
from aaco_pipeline.automation.event_storage import connections_kept
from aaco_pipeline.automation.partitions import PARTITIONS_NAME
from aaco_pipeline.automation.sessions import add_partition
from aaco_pipeline.automation.stage_events import amounts, checked, evaluation, version_tags

if TYPE_CHECKING:
    from aaco_pipeline.lake.store import TraceLake

Event = dg.AssetMaterialization | dg.AssetCheckEvaluation


def unknown_sessions(
    lake: "TraceLake", instance: dg.DagsterInstance, busy: Collection[str] = ()
) -> dict[str, frozenset[str]]:
    """Sessions of which the lake has published what Dagster does not show, the newest first, but for `busy` ones.

    With each the stages that Dagster does show of it.
    """
    partitions = set(instance.get_dynamic_partitions(PARTITIONS_NAME))
    shown_of = {name: instance.get_materialized_partitions(dg.AssetKey(name)) for name in stages()}
    found = {}
    with lake.catalogue() as known:
        known.require_readable("session")
        progress = known.progress()
    for session in reversed(progress):
        published = {state.stage for state in progress[session].published} & shown_of.keys()
        shown = frozenset(name for name, sessions in shown_of.items() if session in sessions)
        if session not in busy and not (session in partitions and published <= shown):
            found[session] = shown
    return found


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
    with connections_kept(instance):
        for event in events_of(lake, instance, session, shown):
            instance.report_runless_asset_event(event)
    add_partition(instance, session)


def _results(session: Session, one: Stage) -> Iterator[dg.AssetCheckResult]:
    """The results of a stage's checks, up to one that cannot judge: of a torn table the first has told, and goes on."""
    with suppress(Exception):
        yield from checked(session, one)


def _is_checked(instance: dg.DagsterInstance, one: Stage, check: str, session: str) -> bool:
    key, of_session = dg.AssetCheckKey(dg.AssetKey(one.name), check), PartitionKeyFilter(key=session)
    storage = instance.event_log_storage
    return bool(storage.get_asset_check_execution_history(key, limit=1, partition_filter=of_session))
