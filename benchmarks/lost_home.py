"""Delete Dagster's home beside a lake of many sessions: within two ticks all are partitions again, none measured again.

One squeezenet session is measured and published under as many ids as asked for. Dagster's home is then deleted, and the
sensor `lake_sessions` is evaluated, in a new home. Run as `python benchmarks/lost_home.py`; it
exits with 1 when a session is missing after two ticks, lacks a stage's state or a check, or anything in the lake has
changed.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import dagster as dg
from aaco_pipeline.automation.known_sessions import unknown_sessions

import aaco_pipeline
from aaco_pipeline.assets.stage import Session, materialize, stages
from aaco_pipeline.automation.instance import open_instance
from aaco_pipeline.automation.partitions import PARTITIONS_NAME
from aaco_pipeline.automation.resources import LakeResource
from aaco_pipeline.automation.sensors import lake_sessions
from aaco_pipeline.automation.stage_assets import check_specs
from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.lake.identity import new_session_id
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.sessions import register
from aaco_pipeline.resources.measure.runner import InferenceRunner
from aaco_pipeline.resources.project import Project

ROOT: Final = Path(aaco_pipeline.__file__).parents[1]
TICKS: Final = 2


def fill(lake: TraceLake, count: int, configs: Path) -> None:
    """Measure one session and publish it under `count` ids, raw capture, tables, trace and report."""
    first = register(lake, MeasurementRequest(model="squeezenet", iterations=5, warmup=1))
    materialize(Session(lake, first, configs, InferenceRunner(configs=str(configs)).measure))
    manifest = lake.manifest(first)
    tables = {
        name: {entry.table: lake.read_entry(entry) for entry in manifest.of_stage(name)} for name in manifest.expected
    }
    codes = {state.stage: state.code_version for state in manifest.stages}
    for _ in range(count - 1):
        session = new_session_id("squeezenet")
        with lake.receive_raw(session) as folder:
            shutil.copytree(lake.raw(first), folder, dirs_exist_ok=True)
        lake.expect(session, manifest.expected)
        for name in manifest.expected:
            own = {
                table: frame.drop("session_id", strict=False)  # what is read has the key in its columns
                for table, frame in tables[name].items()
            }
            lake.publish(session, name, own, code_version=codes[name])


def tick(lake: TraceLake, instance: dg.DagsterInstance) -> tuple[int, float]:
    """One tick: sessions made known, and seconds."""
    before, began = len(instance.get_dynamic_partitions(PARTITIONS_NAME)), time.monotonic()
    with dg.build_sensor_context(instance, resources={"lake": LakeResource(path=str(lake.path))}) as context:
        lake_sessions(context)
    return len(instance.get_dynamic_partitions(PARTITIONS_NAME)) - before, time.monotonic() - began


def unshown(lake: TraceLake, instance: dg.DagsterInstance) -> list[str]:
    """Every session, stage or check that Dagster does not show, in words."""
    sessions = set(lake.sessions())
    complaints = [f"{one} is unknown" for one in sessions - set(instance.get_dynamic_partitions(PARTITIONS_NAME))]
    complaints += [f"{one} lacks a stage's state" for one in unknown_sessions(lake, instance)]
    storage = instance.event_log_storage
    for one in stages().values():
        for spec in check_specs(one):
            records = storage.get_asset_check_execution_history(spec.key, limit=10 * len(sessions))
            checked = {record.partition for record in records}
            complaints += [f"{session} lacks check {spec.name} of {one.name}" for session in sessions - checked]
    return complaints


def state_of(lake: TraceLake) -> dict[str, tuple[int, int]]:
    """Every file of the lake with its size and time; a new measurement or publication would change some."""
    files = (path for path in lake.path.rglob("*") if path.is_file() and ".locks" not in path.parts)
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


def main(arguments: Sequence[str] | None = None) -> int:
    """Lose a home and print what the ticks brought back; 1 when anything is missing."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--sessions", type=int, default=200)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        project = Project(ROOT, Path(folder) / "lake", Path(folder) / "home")
        lake = TraceLake(project.lake)
        fill(lake, options.sessions, project.configs)
        before = state_of(lake)
        shutil.rmtree(project.dagster_home, ignore_errors=True)
        complaints: list[str] = []
        with open_instance(project) as instance:
            for number in range(1, TICKS + 1):
                cpu = sum(os.times()[:2])
                known, seconds = tick(lake, instance)
                cpu = sum(os.times()[:2]) - cpu
                print(f"tick {number}: {known} sessions in {seconds:.1f} s, {cpu:.1f} s CPU")
            complaints += unshown(lake, instance)
            if instance.get_runs_count():
                complaints.append(f"{instance.get_runs_count()} runs were made")
        if state_of(lake) != before:
            complaints.append("the lake has changed")
    print(f"{options.sessions} sessions, {len(complaints)} complaints")
    for complaint in complaints[:20]:
        print(complaint, file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
