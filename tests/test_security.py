"""SECURITY.md has a row for every surface: commands, Dagster's jobs, sensors and schedules, and formats."""

import re
from collections import Counter
from typing import Final

import click

from aaco_pipeline.cli.commands import cli
from aaco_pipeline.definitions import defs
from aaco_pipeline.formats.readers import READERS
from tests.places import ROOT

COLUMNS: Final = ("surface", "trusts", "leaves the machine", "limited by")
_NAME: Final = re.compile(r"`([^`]+)`")


def rows() -> list[tuple[str, ...]]:
    """The rows of the table of surfaces, a text a column."""
    section = (ROOT / "SECURITY.md").read_text().split("## Every surface\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    head, _, *body = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]
    assert head == COLUMNS
    return body


def named() -> Counter[str]:
    return Counter(name for row in rows() for name in _NAME.findall(row[0]))


def test_every_row_says_what_is_trusted_what_leaves_and_what_limits() -> None:
    assert [row for row in rows() if len(row) != len(COLUMNS) or not all(row)] == []


def test_every_command_has_a_row_of_its_own() -> None:
    commands = {f"aaco {name}" for name in cli.list_commands(click.Context(cli))}
    in_table = {name for name in named() if name.startswith("aaco ") and "--" not in name}
    assert in_table == commands
    assert [name for name in commands if named()[name] > 1] == []


def test_everything_that_dagster_can_start_has_a_row() -> None:
    jobs = {job.name for job in defs.resolve_all_job_defs()}
    sensors = {sensor.name for sensor in defs.sensors or ()}
    schedules = {schedule.name for schedule in defs.schedules or ()}
    assert (jobs | sensors | schedules) - set(named()) == set()


def test_every_format_has_a_row() -> None:
    formats = {reader.__name__.rpartition(".")[2] for reader in READERS}
    assert formats - set(named()) == set()
