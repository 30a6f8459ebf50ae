"""No name in a capture can steer a terminal or fool an eye: what a command prints or writes shows an escape."""

import json
import re
from pathlib import Path
from shutil import copytree
from typing import Final

import polars as pl
import pytest

from aaco_pipeline.automation.stage_events import expected_errors, markdown_table
from aaco_pipeline.errors import CaptureError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.project import Project
from benchmarks.reliability import hostile_captures, hostile_parts
from tests.cli.conftest import Aaco
from tests.conftest import CapturedLake
from tests.places import ROOT

#: One of each kind: controls of either set, delete, ends of lines, directions, joiners, what is seen as nothing, tags.
MARKS: Final = (
    *("\x00", "\x07", "\x08", "\x1b", "\x7f", "\x85", "\x9b", "\r", "\x0b", "\u2028", "\u2029"),
    *("\u202a", "\u202b", "\u202c", "\u202d", "\u202e", "\u2066", "\u2067", "\u2068", "\u2069", "\u200e", "\u200f"),
    *("\u061c", "\u200b", "\u200c", "\u200d", "\u2060", "\ufeff", "\u00ad", "\u3164", "\ufe0f", "\U000e0041"),
)
HOSTILE: Final = "\x1b[2J\x1b]0;owned\x07|</script><b>`" + "".join(MARKS)
#: As an argument of a command: what a shell can pass.
TYPED: Final = HOSTILE.replace("\0", "")
LEAVES: Final = re.compile("[" + "".join(map(re.escape, MARKS)) + "]")
#: Where a capture's own words go; other texts are this project's.
NAMED: Final = {
    "sessions": ("model_name", "workload", "host", "precision"),
    "environment": ("value",),
    "processes": ("command", "host"),
    "devices": ("product",),
    "kernels": ("name", "short_name"),
    "ops": ("name", "op_type"),
    "operators": ("name", "op_type"),
    "model_nodes": ("name", "op_type"),
    "clock_domains": ("anchor",),
    "evidence": ("reason",),
}


@pytest.fixture(scope="module")
def hostile(captured: CapturedLake, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A lake of one session whose names all end in everything that could do harm."""
    folder = tmp_path_factory.mktemp("hostile")
    copytree(captured.lake.path, folder / "lake")
    lake = TraceLake(folder / "lake")
    for session in lake.sessions()[1:]:
        lake.remove(session)
    (session,) = lake.sessions()
    manifest = lake.manifest(session)
    for stage in {entry.stage for entry in manifest.entries}:
        tables = {entry.table: lake.read_entry(entry) for entry in manifest.of_stage(stage) if entry.file}
        lake.publish(session, stage, {name: planted(name, frame, session) for name, frame in tables.items()})
    return Project(ROOT, lake.path, folder / "home")


def planted(name: str, frame: pl.DataFrame, session: str) -> pl.DataFrame:
    """The table with harm in all its names, each still different from the others."""
    columns = [column for column in NAMED.get(name, ()) if column in frame.columns]
    frame = frame.with_columns(pl.col(column).fill_null("") + HOSTILE for column in columns)
    return frame if "session_id" in frame.columns else frame.with_columns(session_id=pl.lit(session))


@pytest.mark.parametrize(
    "arguments",
    [
        ("ls",),
        ("show",),
        ("show", "--critical-path"),
        ("show", "--shapes"),
        ("show", "--kernel", "0"),
        ("show", "--kernel", TYPED),
        ("show", TYPED),
        ("report", "--format", "terminal"),
        ("report", "--format", "markdown"),
        ("report", "--format", "json"),
        ("show", "--json"),
        ("sql", "SELECT * FROM sessions"),
        ("sql", "SELECT * FROM kernels", "--format", "csv"),
        ("sql", "SELECT * FROM environment", "--format", "csv", "--guard-formulas"),
        ("sql", "SELECT * FROM evidence", "--json"),
        ("sql", f'SELECT model_name AS "{TYPED}" FROM sessions'),
        ("sql", f'SELECT model_name AS "{TYPED}" FROM sessions', "--format", "csv"),
        ("sql", f"SELECT {HOSTILE}"),
        ("sql", "SELECT error(any_value(model_name)) FROM sessions"),
        ("tables", TYPED),
        ("run", "--model", TYPED),
        ("ingest", f"/nowhere/{TYPED}"),
        ("doctor",),
    ],
    ids=lambda arguments: "-".join(one.split(HOSTILE[:4])[0] for one in arguments)[:40],
)
def test_no_mark_leaves_through_a_command(arguments: tuple[str, ...], aaco: Aaco, hostile: Project) -> None:
    answer = aaco(*arguments, project=hostile)
    printed = answer.stdout + answer.stderr
    assert printed.strip()
    assert LEAVES.findall(printed) == []
    assert "Traceback" not in printed
    if arguments[0] in ("show", "report", "sql"):
        assert re.search(r"\\+(x1b|u001b)", printed), "what was there is shown"


def test_no_mark_leaves_through_the_page(aaco: Aaco, hostile: Project, tmp_path: Path) -> None:
    assert aaco("report", "--output", str(tmp_path / "page.html"), project=hostile).returncode == 0
    page = (tmp_path / "page.html").read_bytes().decode()
    assert LEAVES.findall(page) == []
    assert "\\x1b[2J" in page
    assert "<b>`" not in page
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert LEAVES.findall("".join(texts_of(json.loads(data)))) == []
    assert page.count("</script>") == 3


@pytest.mark.parametrize(
    "name",
    [
        *("rocprofv3_csv: a link to a file of the host", "rocprofv3_csv: in a folder that is a link to the host's"),
        *("kineto: a device without end", "rocpd: a named pipe", "rocpd: a terabyte of holes"),
        *("rocpd: dispatches are a view without end", "rocpd: two tables of the same pages"),
        *("thread_trace: lists a million deep", "folders: loop of links", "folders: names that steer"),
        "folders: names of no text",
    ],
)
def test_a_hostile_capture_is_one_line_and_brings_nothing_of_the_host(name: str, aaco: Aaco, tmp_path: Path) -> None:
    """A few of the set that `benchmarks/reliability/hostile_captures.py` ingests whole."""
    (case,) = [one for one in hostile_captures.cases() if one.name == name]
    (tmp_path / "stranger").mkdir()
    hostile_parts.fill_host(tmp_path / "host")
    path = case.make(tmp_path / "stranger", tmp_path / "host")
    answer = aaco("ingest", str(path), project=Project(ROOT, tmp_path / "lake", tmp_path / "home"))
    (line,) = answer.stderr.splitlines()
    assert (answer.returncode, line[:6], LEAVES.findall(line)) == (6, "aaco: ", [])
    kept = [file for file in (tmp_path / "lake").rglob("*") if file.is_file()]
    assert not [file for file in kept if hostile_parts.MARKER.encode() in file.read_bytes()]


def texts_of(value: object) -> list[str]:
    """Every text in a document."""
    if isinstance(value, dict):
        return [text for pair in value.items() for one in pair for text in texts_of(one)]
    return [text for one in value for text in texts_of(one)] if isinstance(value, list) else [str(value)]


def test_no_mark_leaves_through_dagster() -> None:
    table = markdown_table(pl.DataFrame({f"name{HOSTILE}": [f"gemm{HOSTILE}", None]}))
    assert LEAVES.findall(table) == []
    assert len(table.splitlines()) == 4
    with pytest.raises(Exception, match="gemm") as caught, expected_errors():
        raise CaptureError(f"gemm{HOSTILE}: cannot be read")
    assert LEAVES.findall(str(caught.value)) == []


def test_parquet_holds_names_as_they_are(hostile: Project) -> None:
    (model,) = TraceLake(hostile.lake).sql("SELECT model_name FROM sessions").to_series().to_list()
    assert model.endswith(HOSTILE)
