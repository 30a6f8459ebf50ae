"""Kill `aaco compare` at random instants and resume it: each campaign comes to its end exactly once.

No finished session is lost or changed, none is doubled or half, and `aaco doctor` finds nothing. Resumes `--results`.
"""

import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Final

import polars as pl

from aaco_pipeline.pipeline.comparing.judging import STAGE as LAST_STAGE
from aaco_pipeline.pipeline.comparing.measuring import members
from aaco_pipeline.pipeline.comparing.plan import read_plan
from benchmarks.common import keep_trial, killing, reported, seconds_of, trials_of
from benchmarks.reliability.kill_runs import Workplace

BLOCKS: Final = 3
TRACED: Final = 1
SPEC: Final = "control_flow --iterations 3 --warmup 1"
COMPARE: Final = ("compare", "--baseline", SPEC, "--candidate", SPEC)
DESIGN: Final = ("--sessions", str(BLOCKS), "--traced", str(TRACED))
#: One resumed campaign in so many is killed once more.
AGAIN: Final = 4


@dataclass
class Trial:
    """One campaign: when it was killed, what each kill met, and every broken promise in words."""

    number: int
    kills: list[float] = field(default_factory=list)
    met: list[str] = field(default_factory=list)
    too_late: int = 0
    violations: list[str] = field(default_factory=list)


def kill_one(place: Workplace, number: int, rng: random.Random, usual_seconds: float) -> Trial:
    """Kill a new campaign once or twice, let it come to its end, and check all that was promised."""
    trial, kept = Trial(number), dict[str, str]()
    for _ in range(2 if rng.randrange(AGAIN) == 0 else 1):
        killed_after(place, trial, rng.uniform(0, usual_seconds))
        kept |= _measured(place, "finished")
    done = place.call(*_command(place))
    if done.returncode != 0:
        trial.violations.append(f"the resumed command ended with {done.returncode}: {done.stderr or done.stdout}")
    trial.violations += check(place, kept)
    return trial


def killed_after(place: Workplace, trial: Trial, seconds: float) -> None:
    """Start or resume the campaign and kill the command after this many seconds; `trial` records what that met."""
    process = place.start(*_command(place))
    try:
        process.communicate(timeout=seconds)
        trial.too_late += 1
    except subprocess.TimeoutExpired:
        process.kill()  # the command alone: what it started has to notice by itself
        process.communicate()
        trial.kills.append(seconds)
        trial.met.append(_met(place))


def check(place: Workplace, kept: dict[str, str]) -> list[str]:
    """Every promise that is broken; `kept` are the sessions of blocks that were finished before a kill."""
    campaigns = _campaigns(place)
    if len(campaigns) != 1:
        return [f"{len(campaigns)} campaigns of one command: {campaigns}"]
    lake, (campaign,) = place.lake, campaigns
    complaints, rows = list(_blocks(place, campaign)), members(lake, campaign)
    finished = rows.filter(pl.col("state") == "finished").get_column("session_id").to_list()
    if not lake.manifest(campaign, "campaign").of_stage(LAST_STAGE):
        complaints.append("the campaign is not judged")
    if place.begun() != set(finished) or len(set(finished)) != len(finished):
        complaints.append(f"its sessions are {sorted(finished)}, and the lake holds {sorted(place.begun())}")
    complaints += [f"session {one} is half" for one in finished if not lake.progress(one).is_whole]
    now = _measured(place, "finished")
    complaints += [f"session {one} is lost" for one in kept if one not in now]
    complaints += [f"session {one} has changed" for one in kept if now.get(one, kept[one]) != kept[one]]
    return [*complaints, *place.unwell()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill until so many kills met a campaign, and print what was found; 1 when a promise was broken."""
    options = killing(__doc__, 10).parse_args(arguments)
    folder, trials = options.folder.absolute(), trials_of(options.results, Trial)
    usual = _new_place(folder, "usual")
    usual_seconds = seconds_of(lambda: usual.call(*_command(usual)))
    while sum(len(one.kills) for one in trials) < options.kills:
        number = len(trials) + 1
        place = _new_place(folder, f"campaign-{number}")
        trial = kill_one(place, number, random.Random(f"{options.seed}-{number}"), usual_seconds)
        keep_trial(options.results, trials, trial)
        if not trial.violations:  # what broke a promise is kept to be looked at
            shutil.rmtree(place.folder)
    met = Counter(one for trial in trials for one in trial.met)
    rows = [(f"killed {name}", count) for name, count in sorted(met.items())]
    rows += [("kills", met.total()), ("done before their kill", sum(one.too_late for one in trials))]
    broken = [f"campaign {one.number} ({', '.join(one.met)}): {each}" for one in trials for each in one.violations]
    return reported([*rows, ("campaigns", len(trials))], broken)


def _command(place: Workplace) -> tuple[str, ...]:
    """Command that resumes the campaign, or begins it where the kill came before there was one."""
    campaigns = _campaigns(place)
    return ("compare", "--resume", campaigns[-1], "--json") if campaigns else (*COMPARE, *DESIGN, "--json")


def _campaigns(place: Workplace) -> list[str]:
    return [one.id for one in place.lake.manifests("campaign")]


def _measured(place: Workplace, state: str) -> dict[str, str]:
    """The campaign's sessions of a state, each with a digest of its capture, which nothing may change."""
    found: dict[str, str] = {}
    for campaign in _campaigns(place):
        for session in members(place.lake, campaign).filter(pl.col("state") == state).get_column("session_id"):
            files = sorted(one for one in place.lake.raw(session).rglob("*") if one.is_file())
            found[session] = sha256(b"".join(one.read_bytes() for one in files)).hexdigest()
    return found


def _met(place: Workplace) -> str:
    """Progress of the killed command, in words."""
    campaigns = _campaigns(place)
    if not campaigns:
        return "before its plan"
    rows = members(place.lake, campaigns[-1])
    if rows.filter(pl.col("state") == "begun").height:
        return "in a block"
    finished = rows.filter(pl.col("state") == "finished").get_column("block").n_unique()
    return "between blocks" if finished < BLOCKS + TRACED else "after its last block"


def _blocks(place: Workplace, campaign: str) -> Iterator[str]:
    """Differences from the plan: blocks of each purpose, each with one session of every arm, and none left begun."""
    plan, rows = read_plan(place.lake, campaign), members(place.lake, campaign)
    if set(rows.get_column("state")) - {"finished", "killed"}:
        yield "a block is neither finished nor killed"
    finished = rows.filter(pl.col("state") == "finished")
    for purpose, wanted in (("latency", plan.blocks), ("trace", plan.traced_blocks)):
        found = finished.filter(pl.col("purpose") == purpose).get_column("block").n_unique()
        if found != wanted:
            yield f"{found} {purpose} blocks are finished of {wanted} that were planned"
    for (block,), group in finished.group_by("block"):
        if sorted(group.get_column("arm")) != sorted(plan.arms):
            yield f"block {block} holds {sorted(group.get_column('arm'))}"


def _new_place(folder: Path, name: str) -> Workplace:
    """An empty place; what a broken-off call left there is removed."""
    place = Workplace(folder / name)
    shutil.rmtree(place.folder, ignore_errors=True)
    place.folder.mkdir(parents=True)
    return place


if __name__ == "__main__":
    sys.exit(main())
