"""`--wait`: a command that measures waits so long for the measurement slot, and then says in one line who holds it."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from aaco_pipeline.resources.measure.measurement_slot import measurement_slot
from aaco_pipeline.resources.project import Project
from tests.cli.commands import COMMANDS

MEASURING = ("run", "sweep", "compare", "nightly", "bisect", "calibrate", "optimize", "record")


@pytest.mark.parametrize(
    "command",
    [
        ("run", "--model", "squeezenet"),
        ("compare", "--baseline", "squeezenet", "--candidate", "squeezenet", "--sessions", "5"),
        ("calibrate", "--threads", "1"),
        ("record", "--", "true"),
    ],
    ids=lambda command: command[0],
)
def test_a_command_gives_up_in_one_line_that_names_the_holder_and_leaves_nothing(
    refused: Callable[..., str],
    copied: Project,
    untouched: Callable[[Project], AbstractContextManager[None]],
    command: tuple[str, ...],
) -> None:
    with untouched(copied), measurement_slot():
        line = refused(4, command[0], "--wait", "0", *command[1:], project=copied)
        assert f"the measurement slot was not free within 0 s: process {os.getpid()} of " in line
        assert "is measuring since" in line


def test_every_command_that_takes_the_slot_has_the_option_and_no_other_has() -> None:
    has = {name for name, one in COMMANDS.items() if any(option.name == "wait" for option in one.params)}
    assert has == {*MEASURING}
