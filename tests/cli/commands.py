"""Every command of `aaco` by its name."""

from typing import Final

import click

from aaco_pipeline.cli.commands import cli


def _commands() -> dict[str, click.Command]:
    context = click.Context(cli)
    found = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}


COMMANDS: Final = _commands()
