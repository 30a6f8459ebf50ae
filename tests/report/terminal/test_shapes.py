"""The operators of a session by shapes: in the document, on a terminal, on the page, and as CSV."""

import csv
import io
import json
from pathlib import Path

import pytest

from aaco_pipeline.cli.main import main
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.document.session import session_document, shapes_document
from aaco_pipeline.report.html.page import render_html
from aaco_pipeline.report.terminal.shapes import print_shapes
from tests.report.made_up import EVIL, SESSION, rows_of

PRODUCT = {"operator": f"aten::mm {EVIL}", "shapes": "[[4, 8], [8, 2]]", "types": "[]", "call_count": 2}
RATES = {"kernel_ns": 300, "flops": 128.0, "least_bytes": 112, "achieved_flops_per_s": 1e12, "dtype": "bf16"}


@pytest.fixture
def lake(tmp_path: Path) -> TraceLake:
    """A lake of one session with two operators and a collective."""
    made = TraceLake(tmp_path / "lake")
    made.publish(SESSION, "capture", {"sessions": rows_of("sessions", [{"source_kind": "capture"}])})
    lists = {"operator": "aten::cat", "shapes": "[[[2, 3]]]", "types": "[]", "kernel_ns": 100, "reason": "of a list"}
    shapes = rows_of("operator_shapes", [lists, PRODUCT | RATES])
    made.publish(SESSION, "roofline", {"operator_shapes": shapes.sort("operator")})
    part = {"name": "all_reduce", "size_bytes": 17_632_384, "expected_participants": 8, "duration_ns": 9_000_000}
    rate = {"bus_bytes_per_s": 3.4e9, "share_ratio": 0.0077, "remark": "a late rank or a broken transport"}
    made.publish(SESSION, "critical_path", {"collectives": rows_of("collectives", [part | rate])})
    return made


def test_the_longest_comes_first_with_its_share(lake: TraceLake) -> None:
    rows = shapes_document(lake, SESSION)["operator_shapes"]
    assert [(row["kernel_ns"], row["share_of_time"]) for row in rows] == [(300, 0.75), (100, 0.25)]


def test_a_terminal_shows_operators_and_collectives_and_no_mark_of_theirs(lake: TraceLake) -> None:
    screen = io.StringIO()
    print_shapes(shapes_document(lake, SESSION), screen)
    told = screen.getvalue()
    assert "is known for 75.0 % of it" in " ".join(told.split())
    assert "4×8, 8×2" in told
    assert "a late rank or a broken transport" in told
    assert "\x1b" not in told


def test_the_page_has_the_section_where_there_are_rows(lake: TraceLake) -> None:
    page = render_html(session_document(lake, SESSION), None)
    assert '<section id="shapes"' in page
    assert "4×8, 8×2" in page
    assert "a late rank or a broken transport" in page
    assert EVIL not in page


def test_csv_and_json_are_whole(lake: TraceLake, capsys: pytest.CaptureFixture[str]) -> None:
    def printed(*options: str) -> str:
        assert main(["show", SESSION, *options, "--lake", str(lake.path)]) == 0
        return capsys.readouterr().out

    rows = list(csv.DictReader(io.StringIO(printed("--shapes", "--csv"))))
    assert [row["kernel_ns"] for row in rows] == ["300", "100"]
    assert rows[1]["flops"] == ""
    found = json.loads(printed("--shapes", "--json"))
    assert [row["reason"] for row in found["operator_shapes"]] == [None, "of a list"]


@pytest.mark.parametrize("wrong", [("--csv",), ("--shapes", "--csv", "--json"), ("--shapes", "--critical-path")])
def test_options_that_exclude_each_other_are_refused(wrong: tuple[str, ...], lake: TraceLake) -> None:
    assert main(["show", SESSION, *wrong, "--lake", str(lake.path)]) == 2
