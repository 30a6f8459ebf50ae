"""A week of nights by time travel: Dagster's daemon lives by a clock that is set from night to night; runs are real.

One benchmark, a model of equal layers, made slower for two nights by more of the same. What each night is to show:

1. nothing to hold it against yet: it becomes the rolling baseline;
2. clean;
3. slower from here on: suspected, and confirmed half an hour later;
4. still slower, and everything is killed in the middle and started again: no second alert, no campaign twice;
5. taken back: said half an hour later once more, and the alert is over;
6. the host is off: a night without data;
7. clean, and the missing night is told. Then ROCm is another release: one campaign is asked for, and no second one.

Run as `python -m benchmarks.reliability.week_of_nights --folder WORK`, which needs libfaketime and a C compiler, and says so where
they are missing (exit code 4). Ends with a table night by night; exits with 1 when any night came out otherwise.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import dagster as dg
import numpy as np
import onnx
import polars as pl
from onnx import TensorProto, helper, numpy_helper

from aaco_pipeline.automation.instance import open_instance
from aaco_pipeline.automation.runs import UNFINISHED
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing.alerting import STAGE as CLOSED
from aaco_pipeline.resources.project import HOME_VARIABLE, LAKE_VARIABLE, Project
from benchmarks.reliability.time_travel import Clock, ClockError, new_clock

LAYERS: Final = 20
WIDTH: Final = 128
ROWS: Final = 16
SCHEDULE: Final = "nightly_baseline"
SENSOR: Final = "rocm_stack_changed"
NOT_AVAILABLE: Final = 4
#: One night's campaign, and all that Dagster's daemon needs to come to it.
LONGEST_SECONDS: Final = 3600.0
_POLL_SECONDS: Final = 0.5
_ENTRY: Final = "from aaco_pipeline.cli.main import entry; entry()"
_NIGHTLY: Final = """
benchmarks:
  - model: {model}
    options: {{iterations: {iterations}, warmup: 10}}
    sessions: {sessions}
    traced: 0
"""


@dataclass
class Night:
    """What is done to one night, and what came of it."""

    number: int
    slowdown: bool = False
    is_killed: bool = False
    is_off: bool = False
    has_second_slot: bool = False
    events: tuple[str, ...] = ()
    wrong: list[str] = field(default_factory=list)


#: The week; `events` are the kinds of the alerts' events that belong to the night.
WEEK: Final = (
    Night(1),
    Night(2),
    Night(3, slowdown=True, has_second_slot=True, events=("suspected", "confirmed")),
    Night(4, slowdown=True, is_killed=True),
    Night(5, has_second_slot=True, events=("recovering", "resolved")),
    Night(6, is_off=True, events=("missing",)),
    Night(7),
)


@dataclass
class Week:
    """A project of its own, its clock, and the daemon that serves it."""

    folder: Path
    clock: Clock
    first: datetime
    slowdown: float
    daemon: "subprocess.Popen[bytes] | None" = None

    @property
    def lake(self) -> TraceLake:
        return TraceLake(self.folder / "lake")

    @property
    def project(self) -> Project:
        return Project(self.folder, self.lake.path, self.folder / "home")

    @property
    def model(self) -> Path:
        return self.folder / "models" / "chain.onnx"

    def start(self) -> None:
        """Dagster's daemon, at the head of a process group of its own."""
        command = [sys.executable, "-m", "dagster._daemon", "run", "-w", str(self.folder / "workspace.yaml")]
        with (self.folder / "daemon.log").open("ab") as log:
            self.daemon = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """The daemon, its code server and every run, at once."""
        if self.daemon is not None:
            for group in {self.daemon.pid, *_groups_below(self.daemon.pid)}:
                os.killpg(group, signal.SIGKILL)
            self.daemon.wait()
            self.daemon = None

    def aaco(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return self._call([sys.executable, "-P", "-c", _ENTRY, *arguments])

    def set_rocm(self, version: str) -> None:
        """The release of ROCm that this host has, as far as the project can see."""
        stated = self.folder / "rocm" / ".info" / "version"
        stated.parent.mkdir(parents=True, exist_ok=True)
        stated.write_text(f"{version}\n")

    def switch_on(self) -> None:
        """What a person does in Dagster's page of schedules."""
        command = ["schedule", "start", SCHEDULE, "-w", str(self.folder / "workspace.yaml")]
        done = self._call([sys.executable, "-m", "dagster", *command])
        if done.returncode != 0:
            raise RuntimeError(f"the schedule cannot be switched on: {done.stderr[-2000:]}")

    def campaigns(self, night: Night) -> pl.DataFrame:
        """The campaigns of a night in the order they were planned, with whether each is closed."""
        planned = self.lake.read("campaigns").filter(pl.col("night") == self.at(night).date()).sort("planned_at")
        closed = [
            bool(self.lake.manifest(one, "campaign").of_stage(CLOSED)) for one in planned.get_column("campaign_id")
        ]
        return planned.with_columns(is_closed=pl.Series(closed, dtype=pl.Boolean))

    def at(self, night: Night) -> datetime:
        """Shortly before the schedule's tick of a night."""
        return self.first + timedelta(days=night.number - 1)

    def _environment(self) -> dict[str, str]:
        places = {LAKE_VARIABLE: str(self.lake.path), HOME_VARIABLE: str(self.folder / "home")}
        return {**self.clock.environment, **places, "ROCM_PATH": str(self.folder / "rocm")}

    def _call(self, command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            command, cwd=self.folder, env=self._environment(), capture_output=True, text=True, check=False
        )


def prepare(week: Week, sessions: int, iterations: int) -> None:
    """The project, its model and its one benchmark, with the schedule switched on the evening before."""
    week.folder.mkdir(parents=True)
    week.clock.set(week.first - timedelta(hours=6))
    made = week.aaco("init")
    if made.returncode != 0:
        raise RuntimeError(f"aaco init: {made.stderr}")
    week.model.parent.mkdir()
    text = _NIGHTLY.format(model=week.model, iterations=iterations, sessions=sessions)
    (week.folder / "configs" / "nightly.yaml").write_text(text)
    write_model(week.model, LAYERS)
    week.set_rocm("7.1.0")
    with open_instance(week.project):
        pass  # which makes Dagster's home
    week.switch_on()


def write_model(path: Path, layers: int) -> None:
    """A chain of equal products: its time is their number."""
    nodes = [helper.make_node("MatMul", [f"x{one}", "w"], [f"x{one + 1}"], name=f"layer{one}") for one in range(layers)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [ROWS, WIDTH]) for name in ("x0", f"x{layers}")]
    weights = numpy_helper.from_array(np.full((WIDTH, WIDTH), 1 / WIDTH, np.float32), "w")
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], [weights])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    temporary = path.with_suffix(".new")
    onnx.save(made, temporary)
    temporary.replace(path)


def live(week: Week, night: Night) -> None:
    """Let one night happen; what is wrong with it is noted on it."""
    if night.is_off:
        week.kill()
        return
    write_model(week.model, round(LAYERS * (1 + week.slowdown)) if night.slowdown else LAYERS)
    week.clock.set(week.at(night))
    if week.daemon is None:
        week.start()
    if night.is_killed:
        _await(night, "its first session", lambda: _begun(week, night))
        week.kill()
        week.start()
    _await(night, "the end of its first time slot", lambda: _ended(week, night, 1))
    found = week.lake.read("alerts").filter(pl.col("night") == week.at(night).date())
    if night.has_second_slot and found.is_empty():
        night.wrong.append("its first time slot found nothing, so there is nothing to confirm")
    elif night.has_second_slot:
        week.clock.set(week.clock.now() + timedelta(minutes=35))
        _await(night, "the end of its second time slot", lambda: _ended(week, night, 2))
    _await(night, "the end of its runs", lambda: not _living(week))


def change_stack(week: Week) -> list[str]:
    """Let ROCm be another release, twice as long as the sensor waits; what is wrong with what it asked for."""
    before = _sensor_runs(week)
    week.set_rocm("7.2.0")
    for _ in range(2):
        seen = _sensor_ticks(week)
        week.clock.set(week.clock.now() + timedelta(minutes=10))
        _wait_for(lambda seen=seen: _sensor_ticks(week) > seen and not _living(week))  # type: ignore[misc]
    asked = _sensor_runs(week) - before
    campaigns = week.lake.read("campaigns").filter(pl.col("kind") == "stack").get_column("campaign_id")
    wrong = [] if before == 0 else [f"{SENSOR} asked for {before} campaigns before anything had changed"]
    if asked != 1 or campaigns.len() != 1:
        wrong.append(f"{SENSOR} asked for {asked} campaigns, and {campaigns.len()} were planned, expected 1")
    return wrong


def check(week: Week) -> None:
    """Hold every night against what it was to show."""
    events = week.lake.read("alerts")
    ticks = _ticks(week)
    for night in WEEK:
        wanted = 0 if night.is_off else 2 if night.has_second_slot else 1
        campaigns = week.campaigns(night)
        if campaigns.height != wanted or not campaigns.get_column("is_closed").all():
            night.wrong.append(f"{campaigns.height} campaigns, expected {wanted}")
        for campaign in campaigns.iter_rows(named=True):
            night.wrong.extend(_broken(week.lake, campaign["campaign_id"], campaign["blocks"]))
        of_night = events.filter(pl.col("night") == week.at(night).date()).sort("at").get_column("event").to_list()
        if of_night != list(night.events):
            night.wrong.append(f"events {of_night}, expected {list(night.events)}")
        found = ticks.get(week.at(night).date().isoformat(), [])
        if found != ([] if night.is_off else ["SUCCESS"]):
            night.wrong.append(f"ticks {found}")
    doctor = week.aaco("doctor")
    if doctor.returncode != 0:
        WEEK[-1].wrong.append(f"doctor: {doctor.stdout}")


def row(week: Week, night: Night) -> str:
    """A night in a line: ticks, campaigns with their verdicts, events."""
    day = week.at(night).date()
    campaigns = week.campaigns(night).get_column("campaign_id")
    events = week.lake.read("alerts").filter(pl.col("night") == day).sort("at").get_column("event").to_list()
    what = "off" if night.is_off else "slower" if night.slowdown else "as ever"
    return " | ".join(
        (
            f"{night.number} {day} {what}{', killed' if night.is_killed else ''}",
            f"{len(_ticks(week).get(day.isoformat(), []))} ticks",
            "; ".join(_verdict(week.lake, one) for one in campaigns) or "–",
            ", ".join(events) or "–",
        )
    )


def table(week: Week) -> str:
    """The week night by night, and what is wrong with each."""
    return "\n".join(
        line for night in WEEK for line in (row(week, night), *(f"    WRONG: {one}" for one in night.wrong))
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Live the week and print its table; 1 when a night came out otherwise, 4 where no time can be travelled."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where project, lake and Dagster's home come to lie")
    parser.add_argument("--sessions", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--slowdown", type=float, default=0.05)
    options = parser.parse_args(arguments)
    folder = options.folder.absolute()
    try:
        clock = new_clock(folder.with_name(f"{folder.name}.clock"))
    except ClockError as error:
        print(error, file=sys.stderr)
        return NOT_AVAILABLE
    shutil.rmtree(folder, ignore_errors=True)
    tomorrow = datetime.now(UTC).replace(hour=1, minute=59, second=30, microsecond=0) + timedelta(days=1)
    week = Week(folder, clock, tomorrow, options.slowdown)
    prepare(week, options.sessions, options.iterations)
    try:
        for night in WEEK:
            began = time.monotonic()
            live(week, night)
            print(f"{row(week, night)} ({time.monotonic() - began:.0f} s)", file=sys.stderr, flush=True)
        check(week)
        after = change_stack(week)
    finally:
        week.kill()
    print(table(week))
    print("another release of ROCm: one campaign was asked for", *(f"    WRONG: {one}" for one in after), sep="\n")
    return 1 if after or any(night.wrong for night in WEEK) else 0


# ---- inside ----------------------------------------------------------------------------------------------------------


def _await(night: Night, what: str, holds: Callable[[], bool]) -> None:
    if not _wait_for(holds):
        night.wrong.append(f"{what} did not come in {LONGEST_SECONDS:.0f} s")


def _wait_for(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + LONGEST_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _begun(week: Week, night: Night) -> bool:
    campaigns = week.campaigns(night).get_column("campaign_id").to_list()
    rows = week.lake.read("campaign_sessions", campaigns) if campaigns else pl.DataFrame({"block": []})
    return rows.get_column("block").n_unique() > 3


def _ended(week: Week, night: Night, slots: int) -> bool:
    campaigns = week.campaigns(night)
    return campaigns.height >= slots and bool(campaigns.get_column("is_closed").all())


def _living(week: Week) -> bool:
    with open_instance(week.project) as instance:
        return bool(instance.get_runs(dg.RunsFilter(statuses=list(UNFINISHED)), limit=1))


def _ticks(week: Week) -> dict[str, list[str]]:
    """What became of the schedule's ticks, by the day they were for; one that skipped is none."""
    found: dict[str, list[str]] = {}
    with open_instance(week.project) as instance:
        for state in instance.all_instigator_state():
            if state.instigator_name != SCHEDULE:
                continue
            for tick in instance.get_ticks(state.instigator_origin_id, state.selector_id):
                if tick.status.value != "SKIPPED":
                    day = datetime.fromtimestamp(tick.timestamp, UTC).date().isoformat()
                    found.setdefault(day, []).append(tick.status.value)
    return found


def _ticks_of_sensor(week: Week) -> list[Any]:
    with open_instance(week.project) as instance:
        states = instance.all_instigator_state()
        return [
            tick
            for state in states
            if state.instigator_name == SENSOR
            for tick in instance.get_ticks(state.instigator_origin_id, state.selector_id)
        ]


def _sensor_ticks(week: Week) -> int:
    """Ticks of the sensor that have ended."""
    return sum(tick.status.value != "STARTED" for tick in _ticks_of_sensor(week))


def _sensor_runs(week: Week) -> int:
    """Runs that the sensor asked for."""
    return sum(len(tick.run_ids) for tick in _ticks_of_sensor(week))


def _broken(lake: TraceLake, campaign: str, blocks: int) -> Iterator[str]:
    """What is not as planned of a campaign's blocks."""
    rows = lake.read("campaign_sessions", campaign)
    finished = rows.filter(pl.col("state") == "finished")
    if finished.get_column("block").n_unique() != blocks:
        yield f"{campaign}: {finished.get_column('block').n_unique()} blocks of {blocks}"
    if "begun" in rows.get_column("state"):
        yield f"{campaign}: a block is neither finished nor killed"


def _verdict(lake: TraceLake, campaign: str) -> str:
    """The candidate's verdict in short."""
    rows = lake.read("verdicts", campaign).filter((pl.col("role") == "primary") & (pl.col("candidate") == "candidate"))
    if rows.is_empty():
        return "no verdict"
    row = rows.row(0, named=True)
    ends = [row[name] for name in ("effect_ratio", "ci_low", "ci_high")]
    interval = "" if None in ends else " {:.3f} [{:.3f}, {:.3f}]".format(*ends)
    return f"{row['verdict']}{interval}"


def _groups_below(pid: int) -> set[int]:
    """The process groups of all that a process has started."""
    groups, left = set(), [pid]
    while left:
        for task in Path(f"/proc/{left.pop()}/task").glob("*/children"):
            children = [int(number) for number in task.read_text().split()]
            groups |= {os.getpgid(one) for one in children}
            left += children
    return groups


if __name__ == "__main__":
    sys.exit(main())
