"""A session on a terminal: the answer, the kernels, and the evidence when asked.

How a kernel is called where a line has little room: told apart from its namesakes, and never cut in the middle.

Operators with the shapes of their inputs in words.

The operators of a session by shapes: in the document, on a terminal, on the page, and as CSV.
"""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from aaco_pipeline.cli.main import main
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.html.page import render_html
from aaco_pipeline.report.session.document import session_document, shapes_document
from aaco_pipeline.report.session.sentences import Document, answer, facts
from aaco_pipeline.report.session.view import (
    SHAPES,
    kernel_in_words,
    print_evidence,
    print_session,
    print_shapes,
    shapes_answer,
    shapes_text,
)
from tests.report.full_session import MODEL
from tests.report.made_up import EVIL, SESSION, printed, rows_of


def test_terminal_tells_the_answer_and_the_kernels(bare: TraceLake, document: Document) -> None:
    told = printed(print_session, session_document(bare, SESSION))
    lines = told.splitlines()
    assert lines[0].startswith(f"{SESSION}  {MODEL}, on CPUExecutionProvider")
    assert lines[1].startswith("The median inference takes ")
    assert "By kernel" in told
    unnamed = {**document["top_kernels"][1], "operator": None}
    told = " ".join(printed(print_session, {**document, "top_kernels": [unnamed]}).split())
    for text in (EVIL, "Where the time went", "By kind of work", answer(document), facts(document)):
        assert text in told


def test_terminal_tells_what_the_answer_rests_on_and_what_was_missing_when_asked(
    bare: TraceLake, document: Document
) -> None:
    told = printed(print_evidence, session_document(bare, SESSION))
    for text in ("nobody <b>counted</b>", "the stage telemetry has published nothing"):
        assert text in told
        assert text not in printed(print_session, session_document(bare, SESSION))
    assert "time that goes to the device's own work 50.0 % time_shares" in " ".join(
        printed(print_evidence, document).split()
    )


def test_kernels_that_could_save_most_say_by_what_they_are_ordered(document: Document) -> None:
    first = {**document["optimization_priority"][0], "bound": "dram", "share_ratio": 0.5}
    known = {**first, "name": "near", "critical_ns": 9_000, "saves_at_most_ns": 5_000}
    rows = [{**first, "name": "roofless", "critical_ns": 7_000, "saves_at_most_ns": None}, known]
    rows.append({**first, "name": "unplaced", "critical_ns": None, "saves_at_most_ns": None})
    told = " ".join(printed(print_session, {**document, "optimization_priority": rows}).split())
    assert told.index("at most 7 µs, no roof") < told.index("at most 5 µs") < told.index("unplaced")


CALLED = "void mul_mat<(type)12, 1, false>(void const*, void const*, int const*, float*, unsigned int)"


@pytest.mark.parametrize(
    ("name", "short", "told"),
    [
        ("r64_nchwc", "Conv", "Conv r64_nchwc"),
        ("vecCopy(double*, double*, int)", "vecCopy", "vecCopy(double*, double*, int)"),
        ("quantize(float const*, void*, long, long, long, unsigned int)", "quantize", "quantize"),
        (CALLED, "mul_mat", "mul_mat<(type)12, 1, false>"),
        (CALLED.replace("12", "8"), "mul_mat", "mul_mat<(type)8, 1, false>"),
        ("void a::f<x<1>, g<y>, &op::operator->>(int, int, int, int, int)", "f", "f<x<1>, g<y>, &op::operator->>"),
        ("void ck::entry<1, ck::Gemm<ck::Shape<256, 256, 64>, float>>(int)", "entry [Gemm]", "entry [Gemm]"),
        (f"void f<{'x, ' * 20}y>(int)", "f", "f"),
        ("void f<a<b, long enough to be cut at the end of the text", "f", "f"),
        (f"Cijk_{'MT128_' * 10}", "Cijk", f"Cijk_{'MT128_' * 10}"),
        ("x", None, "x"),
    ],
)
def test_a_kernel_is_called_by_what_tells_it_apart(name: str, short: str | None, told: str) -> None:
    assert kernel_in_words({"name": name, "operator": short}) == told


def row(**facts: Any) -> dict[str, Any]:
    """A row of `operator_shapes` as a document has it."""
    plain = {
        "operator": "aten::mm",
        "shapes": "[[8944, 1024], [1024, 2816]]",
        "detail": None,
        "dtype": "bf16",
        "inputs_from": "trace",
    }
    time = {"call_count": 48, "kernel_ns": 5_000_000, "copy_ns": 0, "share_of_time": 0.5, "reason": None}
    rates = {"achieved_flops_per_s": 4.664e14, "achieved_bytes_per_s": 6.7e11, "bound": "matrix", "share_ratio": 0.357}
    return plain | time | {"flops": 5.158e10, "least_bytes": 74_457_088} | rates | facts


@pytest.mark.parametrize(
    ("shapes", "detail", "text"),
    [
        ([[8944, 1024], [1024, 2816]], None, "8944×1024, 1024×2816"),
        ([[2, 3], [], []], "causal", "2×3; causal"),
        ([[[1, 559, 32], [1, 559, 32]], []], None, "[1×559×32 and 1 more]"),
        ([[[7]]], None, "[7]"),
        ([[], []], None, ""),
        ("damaged", None, ""),
    ],
)
def test_shapes_are_written_as_people_do(shapes: Any, detail: str | None, text: str) -> None:
    assert shapes_text(row(shapes=json.dumps(shapes), detail=detail)) == text


def test_a_row_is_told_in_units_and_what_is_not_known_is_left_open() -> None:
    told = {name: show(row()) for name, show in SHAPES.items()}
    assert (told["*work a call"], told["*rate"], told["*of its roof"]) == ("51.58 Gflop", "466.4 Tflop/s", "35.7 %")
    unknown = dict.fromkeys(("flops", "least_bytes", "achieved_flops_per_s", "achieved_bytes_per_s", "bound"))
    open_ = {name: show(row(**unknown, share_ratio=None, dtype=None)) for name, show in SHAPES.items()}
    assert [name for name, text in open_.items() if text is None] == [
        *("format", "*work a call", "*rate", "*least bytes", "*bandwidth", "*of its roof", "roof")
    ]


def test_the_answer_says_how_much_is_known_and_what_took_longest() -> None:
    unknown = row(operator="aten::cat", flops=None, least_bytes=None, kernel_ns=1_000_000, share_of_time=0.1)
    told = shapes_answer({"operator_shapes": [row(kernel_ns=9_000_000, share_of_time=0.9), unknown]})
    assert "is known for 90.0 % of it" in told
    assert "aten::mm on 8944×1024, 1024×2816 took longest, 90.0 %, at 466.4 Tflop/s" in told
    assert "whose inputs are recorded" in shapes_answer({"operator_shapes": []})


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
