"""The workflow that docs/ci.md shows: YAML with the steps that it promises, whose every `aaco` line is a command."""

import re
import shlex
from typing import Any

import click
import yaml

from aaco_pipeline.cli.commands import cli
from tests.cli.commands import COMMANDS
from tests.places import ROOT

PAGE = (ROOT / "docs" / "ci.md").read_text("utf-8")


def steps() -> list[dict[str, Any]]:
    (shown,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    workflow = yaml.safe_load(shown)
    assert workflow[True] == "pull_request"  # YAML reads `on` as a truth
    (job,) = workflow["jobs"].values()
    found: list[dict[str, Any]] = job["steps"]
    return found


def commands() -> list[list[str]]:
    lines = [line for step in steps() for line in step.get("run", "").splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("aaco ")]


def test_every_command_of_the_workflow_is_one() -> None:
    assert [arguments[0] for arguments in commands()] == ["compare", "report", "report"]
    for arguments in commands():
        name, command, rest = cli.resolve_command(click.Context(cli, info_name="aaco"), arguments)
        assert command is not None
        command.make_context(name, rest)


def test_what_is_kept_is_what_was_written() -> None:
    written = {arguments[arguments.index("--output") + 1] for arguments in commands()}
    (kept,) = (step["with"]["path"].split() for step in steps() if "upload-artifact" in step.get("uses", ""))
    assert written == {"verdict.md", "page/verdict.html", "page/junit.xml"}
    assert kept == ["verdict.json", "page/"]
    (told,) = (step for step in steps() if "GITHUB_STEP_SUMMARY" in step.get("run", ""))
    assert "cat verdict.md" in told["run"]
    assert told["if"].startswith("always()")  # a regression ends the step before it


def test_the_page_names_every_form() -> None:
    option = next(one for one in COMMANDS["compare"].params if one.name == "form" and one.type.name == "choice")
    assert isinstance(option.type, click.Choice)
    named = re.findall(r"^\| `([a-z-]+)` \|", PAGE.split("## ")[0], re.MULTILINE)
    assert sorted(named) == sorted({*option.type.choices, "--format"})
