"""Operators with the shapes of their inputs in words."""

import json
from typing import Any

import pytest

from aaco_pipeline.report.words.shapes import SHAPES, shapes_answer, shapes_text


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
