"""Remove or rename manifests: every command that rests on them ends with 8 and names them, others still answer."""

import argparse
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from unittest.mock import patch

from aaco_pipeline.assets.stage import Session, stages
from aaco_pipeline.cli.main import main as aaco
from aaco_pipeline.errors import AacoError, LakeError
from aaco_pipeline.lake.layout import MANIFESTS
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.session_stages import run_stages
from aaco_pipeline.resources.project import HOME_VARIABLE, LAKE_VARIABLE, Project
from benchmarks.common import ROOT
from benchmarks.performance.generate_lake import copy_number, publish, read_original

SESSIONS: Final = 50
SEVERAL: Final = 5
_MODEL: Final = "control_flow --iterations 5"
_COMPARED: Final = ("--baseline", _MODEL, "--candidate", f"{_MODEL} --threads 2")
#: A stage that reads the tables of others, and measures nothing.
_STAGE: Final = "completeness"
_ALL: Final = "select count(*) from sessions"

Rename = Mapping[str, str | None]


@dataclass(frozen=True)
class Place:
    """A lake with a campaign, and the project that commands are run in."""

    project: Project
    campaign: str

    @property
    def lake(self) -> TraceLake:
        return TraceLake(self.project.lake)


@dataclass(frozen=True)
class Case:
    """Manifests that are damaged: to which name each goes, None for those that are removed."""

    name: str
    renamed: Rename
    #: The session in whose manifest's place one of them is put.
    overwritten: str | None = None

    @property
    def lost(self) -> set[str]:
        """The sessions and campaigns whose manifests are not in their place."""
        return {*self.renamed, *filter(None, [self.overwritten])}


@dataclass(frozen=True)
class Answer:
    """Output of a command, and its exit code."""

    code: int
    said: str


def cases(place: Place) -> list[Case]:
    """The ways in which manifests are damaged, each with a session of the campaign among its sessions."""
    sessions = place.lake.sessions()
    member = members(place)[0]
    others = [one for one in sessions if one != member]
    several = [member, *others[:: max(1, len(others) // (SEVERAL - 1))][: SEVERAL - 1]]
    return [
        Case("one removed", {member: None}),
        Case("several removed", dict.fromkeys(several)),
        Case("all removed", dict.fromkeys(sessions)),
        Case("one renamed", {member: "x"}),
        Case("several renamed", {one: f"20990101T000000Z-{number:08x}" for number, one in enumerate(several)}),
        Case("one in another's place", {member: others[-1]}, overwritten=others[-1]),
        Case("campaign removed", {place.campaign: None}),
        Case("campaign renamed", {place.campaign: "x"}),
    ]


def members(place: Place) -> list[str]:
    """The sessions of the campaign."""
    rows = place.lake.read("campaign_sessions", place.campaign).filter(state="finished", purpose="latency")
    return sorted(rows.get_column("session_id"))


@contextmanager
def damaged(lake: TraceLake, case: Case) -> Iterator[None]:
    """A block in which manifests are not in their places."""
    folder, kept = lake.path / MANIFESTS, lake.path.with_name("kept")
    shutil.copytree(folder, kept)
    try:
        for one, other in case.renamed.items():
            path = folder / f"{one}.json"
            path.unlink() if other is None else path.replace(folder / f"{other}.json")
        yield
    finally:
        shutil.rmtree(folder)
        kept.rename(folder)


def roads(place: Place, lost: Collection[str], member: str) -> "dict[str, tuple[Callable[[], Answer], set[str]]]":
    """Commands that rest on a lost session or campaign, by name, and which of them; without any, all that is asked."""
    present = [one for one in place.lake.sessions() if one not in lost and not one.startswith("2099")]
    lost_sessions = {one for one in lost if one != place.campaign}
    one = member if member in lost or not lost else ""
    everything, of_campaign = {*lost}, {*lost} & {place.campaign} or {member}
    asked: dict[str, tuple[Sequence[str], set[str]]] = {
        "ls": (("ls",), everything),
        "ls --json": (("ls", "--json"), everything),
        "tables": (("tables",), everything),
        "doctor": (("doctor", "--json"), everything),
        "gc": (("gc", "--dry-run"), everything),
        "report of the campaign": (("report", place.campaign, "--format", "json"), of_campaign),
    }
    if not lost_sessions:
        asked["sql over campaigns"] = (("sql", "select count(*) from verdicts"), everything)
    if place.campaign in lost:
        asked["compare --resume"] = (("compare", "--resume", place.campaign), everything)
    if one:
        other = next(two for two in [*present, *sorted(lost)] if two != one)
        asked |= {
            "sql over all": (("sql", _ALL), lost_sessions),
            "sql over it": (("sql", f"{_ALL} where session_id = '{one}'"), {one}),
            "show": (("show", one), {one}),
            "report": (("report", one, "--format", "json"), {one}),
            "diff": (("diff", one, other, "--json"), {one}),
        }
    found = {name: (_command(place.project, arguments), rests) for name, (arguments, rests) in asked.items()}
    return found | ({"a stage": (_stage(place, one), {one})} if one else {})


def _command(project: Project, arguments: Sequence[str]) -> Callable[[], Answer]:
    def called() -> Answer:
        environment = {LAKE_VARIABLE: str(project.lake), HOME_VARIABLE: str(project.dagster_home)}
        text = io.StringIO()
        with patch.dict(os.environ, environment), redirect_stdout(text), redirect_stderr(text):
            code = aaco(list(arguments))
        return Answer(code, text.getvalue())

    return called


def _stage(place: Place, session: str) -> Callable[[], Answer]:
    """A stage of the session alone, as commands and Dagster run it."""

    def ran() -> Answer:
        try:
            run_stages(Session(place.lake, session, place.project.configs), [stages()[_STAGE]])
        except AacoError as error:
            return Answer(error.exit_code, str(error))
        return Answer(0, "")

    return ran


def is_named(answer: Answer, rests: Collection[str]) -> bool:
    """Return whether a road ended with 8 and named what it rests on: each id, or the first and their number."""
    named = [one for one in rests if one in answer.said]
    is_counted = f" {len(rests)} manifests are lost" in answer.said
    return answer.code == LakeError.exit_code and bool(named) and (len(named) == len(rests) or is_counted)


def made(folder: Path, sessions: int) -> Place:
    """A lake of this many sessions with one campaign."""
    project = Project(ROOT, folder / "lake", folder / "home")
    told = _command(project, ("compare", *_COMPARED, "--sessions", "5", "--traced", "1", "--format", "json"))()
    if told.code not in (0, 5):
        raise SystemExit(f"the campaign was not measured: {told.said}")
    lake = TraceLake(project.lake)
    (campaign,) = lake.campaigns()
    measured = lake.sessions()
    with patch.object(os, "fsync", lambda descriptor: None):
        originals = [read_original(lake, one) for one in measured]
        for number in range(sessions - len(measured)):
            original = originals[number % len(originals)]
            publish(lake, original, copy_number(original.manifest.id, number, number))
    told = _command(project, ("doctor", "--mend"))()
    if told.code:
        raise SystemExit(f"the lake is not well: {told.said}")
    return Place(project, campaign)


def run(place: Place) -> tuple[dict[tuple[str, str], bool], list[str]]:
    """Return whether each road named each case, and what was wrong of roads that were to be well."""
    found: dict[tuple[str, str], bool] = {}
    member = members(place)[0]
    wrong = _well(place, member)
    for case in cases(place):
        with damaged(place.lake, case):
            for name, (road, rests) in roads(place, case.lost, member).items():
                answer = road()
                found[name, case.name] = is_named(answer, rests)
                if not found[name, case.name]:
                    wrong.append(f"{name}, {case.name}: {answer.code} {answer.said[-500:]}")
    return found, [*wrong, *_well(place, member)]


def _well(place: Place, member: str) -> list[str]:
    answers = {name: road() for name, (road, _) in roads(place, (), member).items()}
    return [f"{name}, undamaged: {one.code} {one.said[-500:]}" for name, one in answers.items() if one.code]


def table(found: Mapping[tuple[str, str], bool]) -> str:
    """Road by case: named or NOT; – where the road does not rest on it."""
    ways = list(dict.fromkeys(case for _, case in found))
    lines = [("road", *ways)]
    for name in dict.fromkeys(road for road, _ in found):
        lines.append((name, *({True: "named", False: "NOT", None: "–"}[found.get((name, way))] for way in ways)))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Damage a lake in every way and print what each road said; 1 when one did not name it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sessions", type=int, default=SESSIONS)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found, wrong = run(made(Path(folder), options.sessions))
    print(table(found))
    print(f"{sum(found.values())} of {len(found)} named")
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
