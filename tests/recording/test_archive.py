"""The recorder as one file: what is in it, and that it records as the package does, with Python alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aaco_pipeline.errors import LakeError
from aaco_pipeline.recording import archive
from aaco_pipeline.recording.recorder import record
from aaco_pipeline.recording.request import RecordRequest
from aaco_pipeline.resources.configuration import COUNTER_SETS_FILE, load_counter_sets
from tests.places import CONFIGS

MOST_BYTES = 1_000_000
SETS = load_counter_sets(CONFIGS / COUNTER_SETS_FILE)
#: Rooms that the recorder takes something from.
ROOMS = {"errors", "cache_folder", "mark", "recording", "resources", "formats"}
#: Looks through large files with it, in a function; the recorder redacts command lines alone.
LATER = {"aaco_pipeline/formats/parsing/redaction/text.py": {"polars"}}
START = """
import runpy, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from aaco_pipeline.resources.measure import measurement_slot
measurement_slot.PLACES = [Path(sys.argv[2])]
sys.argv = sys.argv[2:]
runpy.run_path(sys.path[0], run_name="__main__")
"""


def test_the_recorder_needs_the_standard_library_alone() -> None:
    others: dict[str, set[str]] = {}
    rooms = set()
    for path in {*archive.modules(), Path(archive.__file__)}:
        for name in archive.imported(path):
            top, _, rest = name.partition(".")
            if top == "aaco_pipeline":
                rooms.add(rest.partition(".")[0])
            elif top not in sys.stdlib_module_names:
                others.setdefault(
                    path.relative_to(archive.__file__.partition("aaco_pipeline/recording")[0]).as_posix(), set()
                ).add(top)
    assert others == LATER
    assert rooms - {"", "__version__"} <= ROOMS


def test_the_archive_is_small_and_the_same_whenever_it_is_made(tmp_path: Path) -> None:
    one, other = tmp_path / "one.pyz", tmp_path / "other.pyz"
    assert archive.write_archive(one, SETS) <= MOST_BYTES
    os.utime(archive.__file__)
    archive.write_archive(other, SETS)
    assert one.read_bytes() == other.read_bytes()
    with pytest.raises(LakeError, match="not written"):
        archive.write_archive(tmp_path / "no such folder" / archive.NAME, SETS)


def test_the_archive_records_with_python_alone_what_the_package_records(tmp_path: Path) -> None:
    file = tmp_path / archive.NAME
    archive.write_archive(file, SETS)
    (tmp_path / "slot").mkdir()
    program = ("sh", "-c", "echo done")
    done = subprocess.run(
        [
            *(sys.executable, "-I", "-S", "-c", START, str(file), str(tmp_path / "slot")),
            *("--output", str(tmp_path / "elsewhere"), "--runs", "1", "--no-output", "--", *program),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    here = record(RecordRequest(program, runs=1, quiet=True), tmp_path / "here", print).folder
    elsewhere = tmp_path / "elsewhere"
    assert _files(elsewhere) == _files(here)
    captures = [json.loads((folder / "capture.json").read_text()) for folder in (here, elsewhere)]
    for capture in captures:
        del capture["measurement_slot"]
    assert captures[0] == captures[1]
    refused = subprocess.run(
        [sys.executable, "-I", "-S", str(file), "--output", str(elsewhere), "--", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)


def _files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
