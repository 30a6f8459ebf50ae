"""The `aaco` commands, each in the module of its group, imported on demand."""

from importlib import import_module
from typing import Final

import click

from aaco_pipeline import __version__
from aaco_pipeline.cli.options import LAKE_HELP

#: Every command with its module; the command is the function of the same name.
_MODULES: Final = {
    "alerts": "nightly",
    "amend": "ingest",
    "baseline": "nightly",
    "bisect": "bisect",
    "calibrate": "calibrate",
    "capture": "record",
    "check": "check",
    "compact": "housekeeping",
    "compare": "compare",
    "diff": "compare",
    "doctor": "host",
    "gc": "housekeeping",
    "info": "host",
    "ingest": "ingest",
    "init": "host",
    "ls": "sessions",
    "nightly": "nightly",
    "optimize": "optimize",
    "reanalyse": "reanalyse",
    "perfetto": "report",
    "quiet": "quiet",
    "record": "record",
    "replay": "replay",
    "report": "report",
    "rm": "housekeeping",
    "run": "run",
    "show": "sessions",
    "sql": "query",
    "sweep": "run",
    "tables": "query",
    "ui": "ui",
}
_EPILOG: Final = (
    "Exit codes: 0 done, 1 internal fault, 2 bad usage or configuration, 3 model or program cannot be loaded or run, "
    "4 hardware, provider or tool not available, 5 regression found, 6 capture cannot be read, 7 inconclusive "
    "(with --strict), 8 lake cannot be read, written or locked, 9 the recording is not whole (check), "
    "130 interrupted, 143 terminated."
)


class _Commands(click.Group):
    """Command group that imports each command only when it is used, so that short commands start fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _MODULES:
            return None
        command = getattr(import_module(f"aaco_pipeline.cli.{_MODULES[cmd_name]}"), cmd_name)
        assert isinstance(command, click.Command)
        return command


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}, epilog=_EPILOG
)
@click.version_option(__version__, prog_name="aaco")
@click.option("--lake", metavar="PATH", help=LAKE_HELP)
@click.pass_context
def cli(context: click.Context, lake: str | None) -> None:
    """Performance truth for AMD AI compute: where did the time go, and why?

    Start with `aaco run --model squeezenet`, then `aaco show latest`.
    """
    context.obj = lake
