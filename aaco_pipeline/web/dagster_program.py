"""Run one of Dagster's console scripts with its temporary files, mainly sockets, in a given folder.

`python -m aaco_pipeline.web.dagster_program FOLDER PROGRAM ARGUMENTS...`. The environment is unchanged: processes
started by runs, including measured programs, use the user's own temporary folder.
"""

import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import entry_points


def run_program(folder: str, program: str, arguments: Sequence[str]) -> None:
    """Run `program`, found by its public name, in this process until it ends."""
    tempfile.tempdir = folder
    sys.argv = [program, *arguments]
    (script,) = entry_points(group="console_scripts", name=program)
    script.load()()


if __name__ == "__main__":
    run_program(sys.argv[1], sys.argv[2], sys.argv[3:])
