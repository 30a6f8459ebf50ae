"""Duties of every reader: a small capture in the tests, a row in the docs, light recognition, counts of its records."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import pytest

from aaco_pipeline.capture.discovery import discover_runs
from aaco_pipeline.formats import readers
from aaco_pipeline.formats.capture_tables import SOURCE_ROWS, FormatRow
from aaco_pipeline.formats.readers import READERS, Reader
from tests.formats.examples import EXAMPLES
from tests.formats.readings import checked
from tests.places import ROOT

PAGE: Final = ROOT / "docs" / "captures.md"
FOLDER: Final = ROOT / "aaco_pipeline" / "formats"
#: Folders that read no captures made elsewhere: shared parsing, models, and our own runner's documents.
NO_READERS: Final = {"parsing", "redaction", "onnx", "native"}


def name_of(reader: Reader) -> str:
    return reader.__name__.rpartition(".")[2]


def example(reader: Reader, folder: Path) -> Path:
    name = name_of(reader)
    assert name in EXAMPLES, f"no example of {name}: add one that makes a small capture to tests/formats/examples.py"
    return EXAMPLES[name](folder)


every_reader = pytest.mark.parametrize("reader", READERS, ids=name_of)


def test_every_folder_of_a_format_is_in_the_list_of_readers() -> None:
    found = [*FOLDER.glob("*/__init__.py"), *FOLDER.glob("*/*/__init__.py")]
    folders = {path.parent.name for path in found} - NO_READERS
    forgotten = sorted(folders - {name_of(reader) for reader in READERS})
    assert not forgotten, f"not in READERS of aaco_pipeline/formats/readers.py: {', '.join(forgotten)}"


@every_reader
def test_its_example_is_recognized_by_it_alone(reader: Reader, tmp_path: Path) -> None:
    path = example(reader, tmp_path)
    readers_of = readers.FOLDER_READERS if path.is_dir() else readers.FILE_READERS
    assert [name_of(one) for one in readers_of if one.probe(path)] == [name_of(reader)]
    (run,) = discover_runs(tmp_path).runs
    assert len(run.parts) == 1
    assert not run.unread


@every_reader
def test_its_tables_fulfil_their_contracts(reader: Reader, tmp_path: Path) -> None:
    reading = checked(reader.read(example(reader, tmp_path)))
    assert any(frame.height for frame in reading.tables.values())


@every_reader
def test_it_counts_records_in_and_records_taken(reader: Reader, tmp_path: Path) -> None:
    details = reader.read(example(reader, tmp_path)).details
    assert "source_rows" in details, f"{name_of(reader)}.read gives no detail source_rows: count with Findings.took"
    rows = details["source_rows"]
    assert rows.schema == SOURCE_ROWS
    assert rows.get_column("item").is_unique().all()
    assert rows.get_column("rows_out").sum() > 0
    assert (rows.get_column("rows_out") <= rows.get_column("rows_in")).all()


@every_reader
def test_it_is_documented_and_has_its_row_in_the_docs(reader: Reader) -> None:
    assert isinstance(reader.DOCUMENTATION, FormatRow), f"{name_of(reader)} has no DOCUMENTATION"
    row = f"| {reader.DOCUMENTATION.written_by} | {reader.DOCUMENTATION.recognized_by} | "
    command = "python -m aaco_pipeline.formats.readers docs/captures.md"
    assert row in PAGE.read_text(), f"{name_of(reader)} has no row in docs/captures.md; run: {command}"
    assert len((sys.modules[reader.__name__].__doc__ or "").split()) > 30, f"{name_of(reader)}/__init__ says too little"


def test_the_table_in_the_docs_is_the_readers_own() -> None:
    page = PAGE.read_text()
    assert readers.with_table(page) == page, "run: python -m aaco_pipeline.formats.readers docs/captures.md"


#: Recognizes each path in a fork of its own, so that each begins with what discovery alone has imported.
RECOGNIZING: Final = """
import os, sys
from pathlib import Path
from aaco_pipeline.capture.discovery import discover_runs
for path in sys.argv[1:]:
    if not (child := os.fork()):
        assert discover_runs(Path(path)).runs
        print(*(name for name in sys.modules if name.startswith("aaco_pipeline.formats.")), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, path
"""


def test_recognizing_its_example_imports_no_other_reader(tmp_path: Path) -> None:
    paths = [str(example(reader, Path(tempfile.mkdtemp(dir=tmp_path)))) for reader in READERS]
    command = [sys.executable, "-c", RECOGNIZING, *paths]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    folders = tuple(f"aaco_pipeline.formats.{name_of(reader)}." for reader in READERS)
    heavy = ("json_stream", "json_fields", "counter_passes", "lookup")
    for reader, names in zip(READERS, done.stdout.splitlines(), strict=True):
        loaded = [name for name in names.split() if name.startswith(folders) or name.endswith(heavy)]
        assert [name for name in loaded if f".{name_of(reader)}." not in name] == [], name_of(reader)
