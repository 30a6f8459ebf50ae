"""The recorder's own command, `python3 aaco-record.pyz --output FOLDER -- PROGRAM …`, for hosts without this project.

The project's own command is `aaco_pipeline.cli.record`; its settings are declared in `request`.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from aaco_pipeline import __version__
from aaco_pipeline.errors import AacoError, ModelError
from aaco_pipeline.recording.recorder import record
from aaco_pipeline.recording.request import TRACES, RecordRequest, kind_of, settings, spelling

_INTERRUPTED = 130


def main(arguments: Sequence[str]) -> int:
    """Record, print the recording's location, and return the exit code. Errors are one line on standard error."""
    words = list(arguments)
    asked, program = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    given = vars(_parser().parse_args(asked))
    folder = Path(given.pop("output"))
    try:
        request = RecordRequest(tuple(program), **given)
        recorded = record(request, folder, _say)
    except AacoError as error:
        _say(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        _say("interrupted; nothing is recorded")
        return _INTERRUPTED
    _say(f"{recorded.folder}: recorded; where the project is, `aaco ingest {recorded.folder.name}` takes it in")
    if recorded.failure is not None:
        _say(recorded.failure)
        return ModelError.exit_code
    return 0


def _say(line: str) -> None:
    print(f"aaco: {line}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="aaco-record",
        usage="%(prog)s [OPTIONS] --output FOLDER -- PROGRAM ARGUMENTS…",
        description="Record a program as it runs: times, telemetry, what the GPU did; in a folder for `aaco ingest`.",
        epilog="Exit codes: 0 done, 2 bad usage, 3 the program failed (what there is, is kept), 4 a profiler that was "
        "asked for is not available, 8 the folder cannot be written, 130 interrupted.",
    )
    parser.add_argument("--version", action="version", version=f"aaco_pipeline {__version__}")
    parser.add_argument("--output", required=True, metavar="FOLDER", help="Folder to leave, not there yet.")
    for setting in settings():
        default, text = setting.default, setting.metadata["help"]
        if isinstance(default, bool):
            parser.add_argument(spelling(setting), dest=setting.name, action="store_true", help=text)
            continue
        parser.add_argument(
            spelling(setting),
            dest=setting.name,
            type=kind_of(setting),
            default=default,
            choices=TRACES if setting.name == "trace" else None,
            metavar=setting.metadata["metavar"],
            help=text if default is None else f"{text} Default: {default}.",
        )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
