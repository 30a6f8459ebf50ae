"""One of Dagster's console scripts, whose temporary files, sockets above all, go into a folder that is named.

`python -m aaco_pipeline.web.dagster_program FOLDER PROGRAM ARGUMENTS...`. The environment stays as it is: what runs
launch, measured programs among it, has the temporary folder that the person chose.
"""

import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import entry_points


def run_program(folder: str, program: str, arguments: Sequence[str]) -> None:
    """Be `program`, found by its public name, until it ends."""
    tempfile.tempdir = folder
    sys.argv = [program, *arguments]
    (script,) = entry_points(group="console_scripts", name=program)
    script.load()()


if __name__ == "__main__":
    run_program(sys.argv[1], sys.argv[2], sys.argv[3:])
