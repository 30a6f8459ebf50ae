"""CPU of `aaco reanalyse --stage timeline` over 1,000 sessions after a code change, with kills in between.

Exits with 1 above 0.15 of `import dagster` a session, or when a kill left anything undone, torn or done twice.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from aaco_pipeline.lake.health import faults
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.project import HOME_VARIABLE, LAKE_VARIABLE
from benchmarks.common import ENTRY, ROOT, cpu_seconds
from benchmarks.performance.command_cost import call
from benchmarks.performance.many_sessions import filled

STAGE: Final = "timeline"
_MOST: Final = 0.15
_RUN: Final = ("run", "--model", "control_flow", "--iterations", "5", "--warmup", "1")
_REANALYSE: Final = ("reanalyse", "--stage", STAGE, "--json")
_EARLIER: Final = "0-earlier"
#: What a backfill begins for a batch of sessions: the job of the stage's asset over a range of partitions.
_DAGSTER: Final = f"""
import sys
import dagster as dg
from aaco_pipeline.automation.instance import open_instance
from aaco_pipeline.definitions import defs
from aaco_pipeline.resources.project import find_project
with open_instance(find_project()) as instance:
    keys = sys.argv[1:]
    instance.add_dynamic_partitions("session", keys)
    tags = {{"dagster/asset_partition_range_start": keys[0], "dagster/asset_partition_range_end": keys[-1]}}
    job = defs.resolve_implicit_global_asset_job_def()
    done = job.execute_in_process(instance=instance, asset_selection=[dg.AssetKey("{STAGE}")], tags=tags,
        run_config={{"loggers": {{"console": {{"config": {{"log_level": "CRITICAL"}}}}}}}})
    sys.exit(not done.success)
"""


def make_old(lake: TraceLake) -> None:
    """Let every manifest say that an earlier version of the code published its stages."""
    for session in lake.sessions():
        manifest = lake.manifest(session)
        stages = tuple(one._replace(code_version=_EARLIER) for one in manifest.stages)
        lake.manifest_path(session, "session").write_bytes(replace(manifest, stages=stages).to_bytes())


def unit() -> list[float]:
    """CPU seconds of `import dagster`, five times."""
    return [cpu_seconds([sys.executable, "-c", "import dagster"]) for _ in range(5)]


def states_of(lake: TraceLake) -> dict[str, str]:
    """By session the version of the code that published the stage."""
    return {m.id: next(one.code_version for one in m.stages if one.stage == STAGE) for m in lake.manifests("session")}


def with_kills(lake: TraceLake, environment: Mapping[str, str], kills: int, chance: random.Random) -> bool:
    """Kill the command at random instants, then let it end; whether everything is done, once, and nothing is torn."""
    make_old(lake)
    done_before = 0
    holds = True
    for number in range(kills):
        command = [sys.executable, "-c", ENTRY, *_REANALYSE]
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(chance.uniform(0, 15))
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        process.wait()
        done = sum(version != _EARLIER for version in states_of(lake).values())
        holds &= done >= done_before
        print(f"  kill {number + 1}: {done:,} of {len(lake.sessions()):,} done", flush=True)
        done_before = done
    told = json.loads(_output([*_REANALYSE], environment))
    holds &= len(told["sessions"]) == len(lake.sessions()) - done_before and len(told["current"]) == done_before
    holds &= not told["failed"] and not told["skipped"] and _EARLIER not in states_of(lake).values()
    left = [fault for fault in faults(lake) if fault.kind not in ("leftover", "stale lock")]
    print(f"  then {len(told['sessions']):,} done and {len(told['current']):,} left alone; torn: {len(left)}")
    return bool(holds) and not left


def _output(arguments: list[str], environment: Mapping[str, str]) -> str:
    command = [sys.executable, "-c", ENTRY, *arguments]
    done = subprocess.run(
        command, env={**os.environ, **environment}, cwd=ROOT, check=True, capture_output=True, text=True
    )
    return done.stdout


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="Where to work; else a temporary folder.")
    options = parser.parse_args(arguments)
    holds = True

    def told(what: str, command: list[str], environment: Mapping[str, str], sessions: int) -> float:
        """CPU a session in units measured before and after: on a machine that others use the unit itself moves."""
        before, seconds, after = unit(), cpu_seconds(command, env={**os.environ, **environment}, cwd=ROOT), unit()
        one = statistics.median([*before, *after])
        each = seconds / sessions / one
        units = f"unit {one:.2f} s, {statistics.median(before):.2f} before and {statistics.median(after):.2f} after"
        print(f"{what}: {seconds:.1f} s CPU, {each:.3f} of the unit a session ({units})", flush=True)
        return each

    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        made = Path(scratch) / "made"
        call(_RUN, {LAKE_VARIABLE: str(made), HOME_VARIABLE: f"{scratch}/made_home"})
        lake, few = (filled(made, Path(scratch) / name, n) for name, n in (("lake", options.sessions), ("few", 100)))
        make_old(lake)
        make_old(few)
        at = {LAKE_VARIABLE: str(lake.path), HOME_VARIABLE: f"{scratch}/home"}
        what = f"aaco reanalyse over {options.sessions:,}"
        command = [sys.executable, "-c", ENTRY, *_REANALYSE]
        holds &= told(what, command, at, options.sessions) <= _MOST
        at_few = {LAKE_VARIABLE: str(few.path), HOME_VARIABLE: f"{scratch}/few_home"}
        told("Dagster's own run over 100", [sys.executable, "-c", _DAGSTER, *few.sessions()], at_few, 100)
        holds &= _EARLIER not in states_of(few).values()
        holds &= with_kills(lake, at, options.kills, random.Random(options.seed))
    print("holds" if holds else f"FAILS: at most {_MOST} of the unit a session, and every kill gone on from")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
