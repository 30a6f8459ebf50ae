"""The door of the `aaco` command: errors and signals turned into one line and an exit code.

It imports nothing beyond what signals need, so that they are heard from the beginning; the commands are `commands`'s.
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
    interruption.hear()
    code = main(sys.argv[1:])
    interruption.close_ears()
    from aaco_pipeline.lake.limited_sql import statement_goes_on

    if statement_goes_on():
        os._exit(code)  # an orderly end would wait for it
    sys.exit(code)


def main(arguments: list[str]) -> int:
    """Run the command with `arguments`; the exit code. Errors are one line on standard error."""
    # Importing Dagster makes objects by the million that live until the end: looking through them at Python's usual
    # pace is a tenth of what a short command costs.
    gc.set_threshold(_ALLOCATIONS_BETWEEN_COLLECTIONS)
    try:
        from aaco_pipeline.cli.commands import cli

        result = cli.main(args=arguments, prog_name="aaco", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except BaseException as error:
        number = interruption.signal_behind(error)
        if number is not None:
            interruption.leave(number, error)
        if not isinstance(error, Exception | KeyboardInterrupt | SystemExit):
            raise
        return _code(error)


def _code(error: BaseException) -> int:
    """The exit code for what ended a command, which is said in one line; a bug also gets its traceback printed."""
    import click

    from aaco_pipeline.cli.full_disk import FULL_DISK, is_of_a_full_disk
    from aaco_pipeline.errors import AacoError, LakeError

    if isinstance(error, BrokenPipeError | SystemExit):
        if isinstance(error, SystemExit) and error.code not in (None, 1):
            return error.code if isinstance(error.code, int) else INTERNAL_FAULT
        # Whoever read our output has closed it, and there is nobody left to tell. When it is not standalone, click
        # exits by itself with 1 in this case only.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message())
        return 0
    if isinstance(error, AacoError):
        return _fail(str(error), error.exit_code)
    if isinstance(error, click.ClickException):
        return _fail(error.format_message(), BAD_USAGE)
    if isinstance(error, click.Abort | KeyboardInterrupt):  # the measured process alone was interrupted
        return _fail("interrupted; nothing is half-published", INTERRUPTED)
    if is_of_a_full_disk(error):
        return _fail(f"{FULL_DISK}, then run the same command again", LakeError.exit_code)
    import traceback

    from aaco_pipeline.report.words.printable import in_lines

    click.echo(in_lines("".join(traceback.format_exception(error))), err=True, nl=False)
    return _fail("internal fault: this is a bug in aaco_pipeline; please report the lines above", INTERNAL_FAULT)


def _fail(message: str, code: int) -> int:
    from aaco_pipeline.cli.output import say

    say(f"aaco: {' '.join(message.split())}", err=True)
    return code
