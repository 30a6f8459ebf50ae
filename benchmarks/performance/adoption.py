"""CPU time of Dagster's daemon adopting sessions that the command made, its growth, and kills in between.

Afterwards every session must have every stage exactly once and no tick may have failed. `--kills 20` adds kills.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import dagster as dg

from aaco_pipeline.assets.stage import Session, materialize
from aaco_pipeline.automation.adoption import JOB, adopt_sessions
from aaco_pipeline.automation.instance import open_instance
from aaco_pipeline.automation.resources import LakeResource
from aaco_pipeline.automation.sensors import lake_sessions
from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.lake.layout import new_session_id
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.sessions import register
from aaco_pipeline.resources.measure.runner import InferenceRunner
from aaco_pipeline.resources.project import Project
from benchmarks.common import ROOT
from benchmarks.reliability.kill_runs import Workplace, kill_group

MORE: Final = 50
#: A tick of the daemon is half a minute after the one before, and adopts 50 sessions.
LONGEST_SECONDS_A_SESSION: Final = 6.0
#: A run that was killed before it said whose it is blocks the next one until Dagster's monitoring gives it up.
LONGEST_START_SECONDS: Final = 600.0
_QUIET: Final = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
_FAILED_TICK: Final = "caught an error for sensor lake_sessions"


def measure(lake: TraceLake, configs: Path) -> str:
    """Measure one small session, with all its stages."""
    session = register(lake, MeasurementRequest(model="control_flow", iterations=2, warmup=1))
    materialize(Session(lake, session, configs, InferenceRunner(configs=str(configs)).measure))
    return session


def fill(lake: TraceLake, first: str, count: int) -> None:
    """Publish the tables of a session under `count` other ids."""
    manifest = lake.manifest(first)
    tables = {
        name: {entry.table: lake.read_entry(entry) for entry in manifest.of_stage(name)} for name in manifest.expected
    }
    codes = {state.stage: state.code_version for state in manifest.stages}
    for _ in range(count):
        session = new_session_id("copy")
        lake.expect(session, manifest.expected)
        for name in manifest.expected:
            own = {table: frame.drop("session_id", strict=False) for table, frame in tables[name].items()}
            lake.publish(session, name, own, code_version=codes[name])


def adopt_here(lake: TraceLake, instance: dg.DagsterInstance) -> float:
    """Tick and run once in this process; the CPU time in seconds."""
    began = time.process_time()
    resources = {"lake": LakeResource(path=str(lake.path))}
    with dg.build_sensor_context(instance, resources=resources) as context:
        asked = lake_sessions(context)
    assert isinstance(asked, dg.RunRequest), asked
    config = {**asked.run_config, **_QUIET}
    assert adopt_sessions.execute_in_process(config, instance=instance, resources=resources).success
    return time.process_time() - began


@contextmanager
def daemon(project: Project, log: Path) -> Iterator["subprocess.Popen[str]"]:
    """Dagster's daemon at the head of a process group, which is killed at the end."""
    with log.open("ab") as output:
        process = Workplace(project.lake.parent).start_daemon(output)
    try:
        yield process
    finally:
        kill_group(process)


def cpu_seconds(group: int) -> float:
    """CPU time of the living processes of a session of processes and of their children that have ended."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == group:
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def materialized(lake: TraceLake, instance: dg.DagsterInstance) -> dict[str, Counter[str]]:
    """Count materializations of each session in Dagster, by stage."""
    found: dict[str, Counter[str]] = {}
    for stage in lake.manifest(lake.sessions()[0]).expected:
        counts, cursor = Counter[str](), None
        while True:
            answer = instance.fetch_materializations(dg.AssetKey(stage), limit=1000, cursor=cursor)
            counts.update(str(record.partition_key) for record in answer.records)
            cursor = answer.cursor
            if not answer.has_more:
                break
        found[stage] = counts
    return found


def is_adopted(lake: TraceLake, instance: dg.DagsterInstance) -> bool:
    """Return whether Dagster has the last stage of every session and no run of the job is active."""
    last = lake.manifest(lake.sessions()[0]).expected[-1]
    shown = instance.get_materialized_partitions(dg.AssetKey(last))
    states = [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.NOT_STARTED]
    return set(lake.sessions()) <= set(shown) and not instance.get_runs(dg.RunsFilter(job_name=JOB, statuses=states))


def wait_until_adopted(lake: TraceLake, instance: dg.DagsterInstance) -> None:
    """TimeoutError when the daemon does not adopt every session."""
    deadline = time.monotonic() + LONGEST_START_SECONDS + LONGEST_SECONDS_A_SESSION * len(lake.sessions())
    while not is_adopted(lake, instance):
        if time.monotonic() > deadline:
            raise TimeoutError("the daemon has not adopted every session")
        time.sleep(1.0)


def kill_often(project: Project, instance: dg.DagsterInstance, kills: int, log: Path) -> None:
    """Kill the daemon and all that it started, each time at another instant of a run that adopts."""
    rng = random.Random(35)
    for number in range(kills):
        before = {run.run_id for run in instance.get_runs(dg.RunsFilter(job_name=JOB))}
        # Every other time it has begun by then, so that it is killed among its events.
        states = [dg.DagsterRunStatus.STARTED] if number % 2 else None
        with daemon(project, log):
            deadline = time.monotonic() + LONGEST_START_SECONDS
            asked = dg.RunsFilter(job_name=JOB, statuses=states)
            while not {run.run_id for run in instance.get_runs(asked)} - before:
                if time.monotonic() > deadline:
                    raise TimeoutError("the daemon has not requested a run")
                time.sleep(0.2)
            pause = rng.uniform(0, 25)
            time.sleep(pause)
        print(f"kill {number + 1} of {kills}: {pause:.1f} s after the run was requested or begun", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Adopt a backlog and print what it cost; 1 when a session, stage or tick is wrong."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=0)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        project = Project(ROOT, Path(folder) / "lake", Path(folder) / "home")
        log = Path(tempfile.gettempdir()) / "adoption_daemon.log"
        log.write_bytes(b"")
        lake = TraceLake(project.lake)
        with open_instance(project) as instance:
            first = measure(lake, project.configs)
            fill(lake, first, MORE - 1)
            before = adopt_here(lake, instance)
            fill(lake, first, options.sessions)
            kill_often(project, instance, options.kills, log)
            with daemon(project, log) as process:
                wait_until_adopted(lake, instance)
                cpu = cpu_seconds(process.pid)
            fill(lake, first, MORE)
            after = adopt_here(lake, instance)
            counts = materialized(lake, instance)
        wrong = [
            f"{session}: {stage} {made[session]} times"
            for stage, made in counts.items()
            for session in lake.sessions()
            if made[session] != 1
        ]
        failed = log.read_text().count(_FAILED_TICK)
    if not options.kills:
        print(f"{options.sessions} sessions by the daemon: {cpu / options.sessions:.3f} CPU s each")
    print(f"{MORE} sessions here: {before:.1f} CPU s with none adopted, {after:.1f} with {options.sessions + MORE}")
    print(f"{options.kills} kills, {failed} failed ticks, {len(wrong)} stages missing or doubled")
    for one in wrong[:20]:
        print(one, file=sys.stderr)
    return 1 if wrong or failed else 0


if __name__ == "__main__":
    sys.exit(main())
