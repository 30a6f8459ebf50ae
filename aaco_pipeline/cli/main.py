"""The door of the `aaco` command: its groups put together, and errors turned into one line and an exit code.

Each command is in the module of its group; this module imports nothing heavy, so that `--help` is quick.
"""

import gc
import os
import sys
import traceback
from importlib import import_module
from typing import Final

import click

from aaco_pipeline import __version__
from aaco_pipeline.cli.full_disk import FULL_DISK, is_of_a_full_disk
from aaco_pipeline.cli.lake_option import LAKE_HELP
from aaco_pipeline.cli.output import say
from aaco_pipeline.errors import AacoError, LakeError
from aaco_pipeline.lake.limited_sql import statement_goes_on
from aaco_pipeline.report.words.printable import in_lines

INTERNAL_FAULT: Final = 1
BAD_USAGE: Final = 2
INTERRUPTED: Final = 130
_ALLOCATIONS_BETWEEN_COLLECTIONS: Final = 100_000
#: Every command and the module of its group, in which the function of the same name is the command.
_MODULES: Final = {
    "alerts": "alerts",
    "amend": "amend",
    "baseline": "baseline",
    "bisect": "bisect",
    "calibrate": "calibrate",
    "capture": "capture",
    "check": "check",
    "compact": "compact",
    "compare": "compare",
    "diff": "diff",
    "doctor": "host",
    "gc": "gc",
    "info": "host",
    "ingest": "ingest",
    "init": "init",
    "ls": "sessions",
    "nightly": "nightly",
    "optimize": "optimize",
    "reanalyse": "reanalyse",
    "quiet": "quiet",
    "record": "record",
    "replay": "replay",
    "report": "report",
    "rm": "rm",
    "run": "run",
    "show": "sessions",
    "sql": "query",
    "sweep": "sweep",
    "tables": "query",
    "ui": "ui",
}
_EPILOG: Final = (
    "Exit codes: 0 done, 1 internal fault, 2 bad usage or configuration, 3 model or program cannot be loaded or run, "
    "4 hardware, provider or tool not available, 5 regression found, 6 capture cannot be read, 7 inconclusive "
    "(with --strict), 8 lake cannot be read, written or locked, 9 the recording is not whole (check), 130 interrupted."
)


class _Commands(click.Group):
    """The commands, each imported when it is asked for: a short one does not wait for the others."""

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


def entry() -> None:
    """Run the command and exit with its documented code."""
    code = main(sys.argv[1:])
    if statement_goes_on():
        os._exit(code)  # an orderly end would wait for it
    sys.exit(code)


def main(arguments: list[str]) -> int:
    """Run the command with `arguments`; the exit code. Errors are one line on standard error."""
    # Importing Dagster makes objects by the million that live until the end: looking through them at Python's usual
    # pace is a tenth of what a short command costs.
    gc.set_threshold(_ALLOCATIONS_BETWEEN_COLLECTIONS)
    try:
        result = cli.main(args=arguments, prog_name="aaco", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0
    except (BrokenPipeError, SystemExit):
        # Whoever read our output has closed it, and there is nobody left to tell. When it is not standalone, click
        # exits by itself in this case only, and would do so with 1.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # noqa: BLE001  (the outermost door: every error becomes one line and a code)
        return _fail(*_explained(error))
    except KeyboardInterrupt:
        return _fail("interrupted; nothing is half-published", INTERRUPTED)


def _explained(error: Exception) -> tuple[str, int]:
    """The line and the exit code for an error; a bug also gets its traceback printed."""
    if isinstance(error, AacoError):
        return str(error), error.exit_code
    if isinstance(error, click.ClickException):
        return error.format_message(), BAD_USAGE
    if isinstance(error, click.Abort):
        return "interrupted; nothing is half-published", INTERRUPTED
    if is_of_a_full_disk(error):
        return f"{FULL_DISK}, then run the same command again", LakeError.exit_code
    click.echo(in_lines("".join(traceback.format_exception(error))), err=True, nl=False)
    return "internal fault: this is a bug in aaco_pipeline; please report the lines above", INTERNAL_FAULT


def _fail(message: str, code: int) -> int:
    say(f"aaco: {' '.join(message.split())}", err=True)
    return code
