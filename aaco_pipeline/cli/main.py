"""Entry point of the `aaco` command: errors and signals become one line and an exit code.

It imports only what signal handling needs, so that signals are handled from the start; the commands are in `commands`.
"""

import gc
import os
import sys
from typing import Final

from aaco_pipeline.cli import interruption

INTERNAL_FAULT: Final = 1
BAD_USAGE: Final = 2
INTERRUPTED: Final = 130
_ALLOCATIONS_BETWEEN_COLLECTIONS: Final = 100_000


def entry() -> None:
    """Run the command and exit with its documented code."""
    try:
        interruption.hear()
        code = main(sys.argv[1:])
        interruption.close_ears()
    except BaseException as error:
        interruption.leave_for(error)
        raise
    from aaco_pipeline.lake.limited_sql import statement_goes_on

    if statement_goes_on():
        os._exit(code)  # a normal exit would wait for it
    sys.exit(code)


def main(arguments: list[str]) -> int:
    """Run the command with `arguments` and return the exit code. Errors are one line on standard error."""
    # Imports create hundreds of thousands of permanent objects. Collecting garbage at the default rate would take a
    # large part of a short command's run time.
    gc.set_threshold(_ALLOCATIONS_BETWEEN_COLLECTIONS)
    try:
        from aaco_pipeline.cli.commands import cli

        result = cli.main(args=arguments, prog_name="aaco", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except SystemExit as error:
        if error.code != 1:
            raise
        return _unread()  # outside standalone mode, click reports a broken pipe this way
    except BrokenPipeError:
        return _unread()
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  (outermost handler: every error becomes one line)
        interruption.leave_for(error)
        return _failed(error)


def _unread() -> int:
    """Return the exit code for a broken pipe: the reader of our output has exited."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _failed(error: BaseException) -> int:
    """Print the error that ended a command as one line, and return its exit code."""
    import click

    from aaco_pipeline.cli.output import say

    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message())
        return 0
    message, code = _explained(error)
    say(f"aaco: {' '.join(message.split())}", err=True)
    return code


def _explained(error: BaseException) -> tuple[str, int]:
    """Return the message and exit code for an error; print the traceback of a bug."""
    import click

    from aaco_pipeline.cli.interruption import FULL_DISK, is_of_a_full_disk
    from aaco_pipeline.errors import AacoError, LakeError
    from aaco_pipeline.report.formatting import in_lines

    if isinstance(error, AacoError):
        return str(error), error.exit_code
    if isinstance(error, click.ClickException):
        return error.format_message(), BAD_USAGE
    if isinstance(error, click.Abort | KeyboardInterrupt):  # only an interrupted measured process raises this
        return "interrupted; nothing is half-published", INTERRUPTED
    if is_of_a_full_disk(error):
        return f"{FULL_DISK}, then run the same command again", LakeError.exit_code
    import traceback

    click.echo(in_lines("".join(traceback.format_exception(error))), err=True, nl=False)
    return "internal fault: this is a bug in aaco_pipeline; please report the lines above", INTERNAL_FAULT
