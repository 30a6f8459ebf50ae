"""The scaling curve in words and as a picture, from rows as the lake holds them."""

import io
from contextlib import redirect_stdout
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.report import scaling
from aaco_pipeline.report.html.page import templates
from aaco_pipeline.report.scaling import placed_curve, print_scaling

SVG = "{http://www.w3.org/2000/svg}"


def row(batch: int, rate: float, prompt: int | None = None, **facts: Any) -> dict[str, Any]:
    return {
        "session_id": f"20260101T000000Z-{batch:08x}",
        "batch_size": batch,
        "prompt_tokens": prompt,
        "time_ns": 1_000_000,
        "time_to_first_token_ns": None if prompt is None else 2_000_000,
        "throughput_per_s": rate,
        "throughput_ci_low_per_s": rate * 0.9,
        "throughput_ci_high_per_s": rate * 1.1,
        "throughput_unit": "inference/s" if prompt is None else "token/s",
        "speedup_ratio": rate / 100,
        "efficiency_ratio": rate / 100 / batch,
        "is_knee": False,
        "is_saturated": False,
        **facts,
    }


CURVE = [row(1, 100), row(2, 195, is_knee=True), row(4, 200, is_saturated=False)]


def scaling_plot(curve: list[dict[str, Any]]) -> str:
    template = templates().get_template("scaling_plot.svg.jinja")
    return template.render(sentences=scaling.sentences(curve), **placed_curve(curve))


def test_the_sentence_names_the_best_batch_the_knee_and_whether_the_end_was_reached() -> None:
    told = scaling.sentences(CURVE)
    assert "best at batch 4: 200 inference/s, × 2 of batch 1" in told
    assert "The knee is at batch 2." in told
    assert "was not saturated at batch 4, the largest measured" in told
    saturated = scaling.sentences([row(1, 100), row(2, 195, is_saturated=True), row(4, 200)])
    assert "saturated from batch 2 on" in saturated
    assert "no clear knee" in saturated


def test_each_prompt_length_has_its_sentence_and_its_line() -> None:
    curve = [row(1, 100, 16), row(2, 150, 16), row(1, 50, 64), row(2, 60, 64)]
    told = scaling.sentences(curve)
    assert told.startswith("With prompts of 16 tokens, throughput is best at batch 2")
    assert "With prompts of 64 tokens" in told
    picture = ElementTree.fromstring(scaling_plot(curve))
    assert len(list(picture.iter("polyline"))) == 2
    assert {text.text for text in picture.iter("text")} >= {"prompt 16", "prompt 64"}


@given(
    st.dictionaries(
        st.integers(1, 10**6), st.floats(0.001, 1e9, allow_nan=False, allow_infinity=False), min_size=1, max_size=9
    )
)
def test_every_curve_is_a_picture_with_its_points_inside(rates: dict[int, float]) -> None:
    picture = ElementTree.fromstring(scaling_plot([row(batch, rates[batch]) for batch in sorted(rates)]))
    circles = [(float(c.get("cx", "")), float(c.get("cy", ""))) for c in picture.iter("circle")]
    assert len(circles) == len(rates)
    assert all(0 <= x <= 720 and 0 <= y <= 300 for x, y in circles)


@pytest.mark.parametrize("prompt", [None, 16])
def test_the_terminal_shows_only_the_columns_that_have_something(prompt: int | None) -> None:
    out = io.StringIO()
    with redirect_stdout(out):
        print_scaling("sweep-x", [row(1, 100, prompt), row(2, 150, prompt, is_knee=True)])
    text = out.getvalue()
    assert "sweep-x" in text
    assert "2 (knee)" in text
    assert ("first token" in text) == (prompt is not None)
    assert (" prompt " in text) == (prompt is not None)
