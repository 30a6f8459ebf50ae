"""Sessions for tests: taking a capture in, running stages without Dagster, and publishing a table wrong.

A stage is run by its own function (`aaco_pipeline.assets.stage`); how Dagster runs them is what tests/automation asks.
"""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from aaco_pipeline.assets.stage import Outcome, Session, materialize, stages
from aaco_pipeline.capture.discovery import discover_runs
from aaco_pipeline.lake.layout import new_session_id
from aaco_pipeline.lake.manifest import Manifest
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.verified import RAW_LIST
from aaco_pipeline.resources.ingestion import copy_capture
from tests.places import CONFIGS


def without_stage(manifest: Manifest, stage: str) -> Manifest:
    """Give the manifest as if `stage` had never run."""
    return replace(
        manifest,
        entries=tuple(one for one in manifest.entries if one.stage != stage),
        stages=tuple(one for one in manifest.stages if one.stage != stage),
        artifacts=tuple(one for one in manifest.artifacts if one.stage != stage),
    )


def taken_in(lake: TraceLake, path: Path) -> str:
    """The session of the one run at `path`, of which nothing is published yet; a skip where the path is not here."""
    if not path.exists():
        pytest.skip(f"{path} is not here: AACO_SHARED names the folder of real captures")
    (run,) = discover_runs(path).runs
    session = new_session_id()
    with lake.receive_raw(session) as folder:
        copy_capture(run, folder, None)
    return session


def unlisted(raw: Path) -> Path:
    """A raw folder whose files may be changed: as an earlier version received it, without a list of their digests."""
    (raw / RAW_LIST).unlink()
    return raw


def made_by(lake: TraceLake, session: str, stage: str) -> Outcome:
    """What one stage makes of what is published of a session; nothing is published."""
    return stages()[stage](Session(lake, session, CONFIGS))


def replayed(lake: TraceLake, session: str, *names: str) -> dict[str, Outcome]:
    """Run and publish these stages of a session, each after all that it needs; all stages when none is named."""
    wanted = list(names or stages())
    for name in wanted:
        wanted += [needed for needed in stages()[name].dependencies if needed not in wanted]
    return materialize(Session(lake, session, CONFIGS), wanted)


def tables_of(lake: TraceLake, session: str, stage: str) -> dict[str, pl.DataFrame]:
    """What is published of a stage, by table."""
    return {entry.table: lake.read_entry(entry) for entry in lake.manifest(session).of_stage(stage)}


def republished(lake: TraceLake, session: str, stage: str, **changed: pl.DataFrame) -> None:
    """Publish a stage again with some of its tables changed, as a bug in it would."""
    before = tables_of(lake, session, stage)
    assert all(not frame.equals(before[name]) for name, frame in changed.items())
    lake.publish(session, stage, {**before, **changed})


def said(outcome: Outcome) -> dict[str, tuple[str, str | None]]:
    """Status and reason of everything that a stage stated in evidence, by item."""
    return {one.item: (one.status, one.reason) for one in outcome.evidence}
