"""The small plots: well-formed, with every point inside the picture, and none where there is nothing to draw."""

import base64
from xml.etree import ElementTree

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.report.html.plots import as_markdown_image, latency_plot

SVG = "{http://www.w3.org/2000/svg}"


def iterations(latencies: list[int], name: str = "latency", phase: str = "measure") -> pl.DataFrame:
    return pl.DataFrame(
        {"pass": name, "phase": phase, "iteration": range(len(latencies)), "latency_ns": latencies},
        schema_overrides={"latency_ns": pl.Int64, "iteration": pl.Int32},
    )


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=2000))
def test_every_point_lies_inside_and_the_slowest_is_among_them(latencies: list[int]) -> None:
    plot = latency_plot(iterations(latencies))
    assert plot is not None
    picture = ElementTree.fromstring(plot)
    points = [(float(c.get("cx", "")), float(c.get("cy", ""))) for c in picture.iter(f"{SVG}circle")]
    assert all(0 <= x <= 640 and 0 <= y <= 180 for x, y in points)
    assert len(points) <= 601
    if max(latencies) > min(latencies):
        assert min(y for _, y in points) == 15.0


def test_the_unprofiled_pass_is_drawn_before_the_traced_one() -> None:
    both = pl.concat([iterations([7_000] * 3), iterations([9_000_000] * 3, name="trace")])
    plot = latency_plot(both)
    assert plot is not None
    assert "7 µs" in plot
    assert "9 ms" not in plot
    traced = latency_plot(iterations([9_000_000] * 3, name="trace"))
    assert traced is not None
    assert "9 ms" in traced


def test_without_measured_iterations_there_is_no_plot() -> None:
    assert latency_plot(iterations([])) is None
    assert latency_plot(iterations([5, 6], phase="warmup")) is None


def test_the_image_is_carried_in_the_text_itself() -> None:
    text = as_markdown_image("<svg/>", "nothing")
    assert text.startswith("![nothing](data:image/svg+xml;base64,")
    assert base64.b64decode(text.rpartition(",")[2].removesuffix(")")) == b"<svg/>"
