"""The roofline plot: where its dots and lines lie, what is left out, and that its text is legible and harmless."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.report.html.roofline_plot import DRAWN_KERNELS, NARROW, WIDE, placed_kernels, roofline_plot
from tests.report.made_up import EVIL

LEVELS: Final = ("dram", "fabric", "l2", "vl1d", "lds")
CIRCLE: Final = re.compile(r'<circle cx="([0-9.-]+)" cy="([0-9.-]+)" r="([0-9.]+)"')
Row = Mapping[str, Any]


def kernel(rate: float | None, *, share: float | None = 0.1, name: str = "k", **intensities: float) -> Row:
    placed = {f"{level}_arithmetic_intensity": intensities.get(level) for level in LEVELS}
    return {"name": name, "share_ratio": share, "achieved_flops_per_s": rate, "flops_by_type": None, **placed}


def ceiling(resource: str, value: float, source: str = "measured", dtype: str | None = None, device: int = 0) -> Row:
    unit = "byte/s" if dtype is None else "flop/s"
    return {"resource": resource, "value": value, "source": source, "dtype": dtype, "unit": unit, "device_id": device}


ROOFS: Final = (ceiling("dram", 1e12), ceiling("l2", 4e12), ceiling("vector", 2e13, dtype="fp32"))


def drawn(kernels: Sequence[Row], ceilings: Sequence[Row] = ROOFS, width: int = WIDE) -> str:
    plot = roofline_plot(kernels, ceilings, width=width)
    assert plot is not None
    ElementTree.fromstring(plot)
    return plot


def dots(plot: str) -> list[tuple[float, float, float]]:
    """Circles of kernels: those of the legend stand in groups that are moved."""
    body = re.sub(r"<g transform=.*?</g>", "", plot)
    return [(float(x), float(y), float(r)) for x, y, r in CIRCLE.findall(body)]


def texts(plot: str) -> list[tuple[float, float, str, str]]:
    """x, y, anchor and text of every label, those of the legend at the place that they are moved to."""
    found = []
    for moved, inner in re.findall(r'<g transform="translate\(([0-9. ]+)\)">(.*?)</g>', plot):
        x, y = map(float, moved.split())
        at, text = re.findall(r'<text x="([0-9.]+)".*?>(.*?)</text>', inner)[0]
        found.append((x + float(at), y, "start", text))
    rest = re.sub(r"<g transform=.*?</g>", "", plot)
    label = re.compile(r'<text x="([0-9.-]+)" y="([0-9.-]+)" text-anchor="(\w+)".*?>(.*?)</text>')
    return found + [(float(x), float(y), anchor, text) for x, y, anchor, text in label.findall(rest)]


def boxes(plot: str) -> list[tuple[float, float, float, float]]:
    """About where each label lies: its left, right, top and bottom."""
    lying = []
    for x, y, anchor, text in texts(plot):
        wide = 5.6 * len(text)
        left = {"start": x, "middle": x - wide / 2, "end": x - wide}[anchor]
        lying.append((left, left + wide, y - 9, y + 2))
    return lying


def test_a_kernel_on_its_roof_lies_on_the_line_and_a_slower_one_below() -> None:
    plot = drawn([kernel(1e12, dram=1.0), kernel(1e11, dram=1.0, share=0.05)])
    (x, y, _), (slower_x, slower_y, _) = dots(plot)
    assert slower_x == x
    assert slower_y > y
    slope = re.search(r'd="M([0-9.]+) ([0-9.]+)L([0-9.]+) ([0-9.]+)"[^>]*><title>DRAM', plot)
    assert slope is not None
    x1, y1, x2, y2 = map(float, slope.groups())
    assert y == pytest.approx(y1 + (x - x1) / (x2 - x1) * (y2 - y1), abs=0.5)


def test_slopes_and_roofs_meet_and_go_no_further() -> None:
    plot = drawn([kernel(1e12, dram=1.0)], [ceiling("dram", 1e12), ceiling("vector", 2e13, dtype="fp32")])
    lines = re.findall(r'd="M([0-9.]+) ([0-9.]+)L([0-9.]+) ([0-9.]+)"[^>]*><title>', plot)
    (_, _, *ridge), (*begin, _, _) = lines
    assert ridge == begin


def test_measured_is_solid_published_is_dashed_and_the_legend_says_so() -> None:
    both = [ceiling("dram", 1e12), ceiling("dram", 1.2e12, "spec"), ceiling("vector", 2e13, dtype="fp32")]
    plot = drawn([kernel(1e12, dram=1.0)], both)
    titled = re.findall(r"<path ([^>]*)><title>(.*?)</title>", plot)
    assert [("dasharray" in path, "published" in title) for path, title in titled] == [
        (False, False),
        (True, True),
        (False, False),
    ]
    assert {"measured", "published", "DRAM 1 TB/s"} <= {text for *_, text in texts(plot)}
    assert "published" not in drawn([kernel(1e12, dram=1.0)])


def test_dots_grow_with_the_share_of_the_time_and_small_ones_lie_on_large_ones() -> None:
    sizes = [radius for *_, radius in dots(drawn([kernel(1e12, share=s, dram=1.0) for s in (0.01, 0.6, None, 0.2)]))]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] / sizes[-1] > 2
    assert len(sizes) == 4


def test_the_longest_kernels_stand_at_every_level_the_others_at_the_outermost() -> None:
    many = [kernel(1e12, share=0.5 / (n + 1), dram=4.0, l2=1.0, name=f"k{n}") for n in range(10)]
    placed = dots(drawn(many))
    assert len(placed) == 2 * 8 + 2
    assert len({x for x, *_ in placed}) == 2


def test_levels_that_passed_the_same_bytes_are_one_dot() -> None:
    assert len(dots(drawn([kernel(1e12, dram=1.0, fabric=1.01, l2=1.5)]))) == 2


def test_only_so_many_kernels_are_drawn_the_longest_first() -> None:
    many = [kernel(1e12, share=n / 1000, dram=1.0, name=f"kernel {n}") for n in range(DRAWN_KERNELS + 40)]
    plot = drawn(many)
    assert len(dots(plot)) == DRAWN_KERNELS
    assert f"kernel {DRAWN_KERNELS + 39}:" in plot
    assert "kernel 39:" not in plot
    assert len(plot) < 40_000
    assert placed_kernels(many) == len(many)


def test_a_kernel_without_work_or_bytes_has_no_place() -> None:
    nowhere = [kernel(None, dram=1.0), kernel(0.0, dram=1.0), kernel(1e12), kernel(1e12, dram=0.0)]
    assert placed_kernels(nowhere) == 0
    assert roofline_plot(nowhere, ROOFS) is None
    assert len(dots(drawn([*nowhere, kernel(1e12, dram=1.0)]))) == 1


def test_without_a_ceiling_there_is_no_plot() -> None:
    assert roofline_plot([kernel(1e12, dram=1.0)], []) is None
    assert roofline_plot([kernel(1e12, dram=1.0)], [{**ceiling("vector", 1e12, dtype="int8"), "unit": "op/s"}]) is None


def test_of_two_devices_the_one_with_the_most_ceilings_is_drawn() -> None:
    plot = drawn([kernel(1e11, dram=1.0)], [ceiling("dram", 5e10, device=0), *({**c, "device_id": 1} for c in ROOFS)])
    assert "50 GB/s" not in plot
    assert "1 TB/s" in plot


def test_only_roofs_of_number_formats_that_were_counted_are_drawn() -> None:
    roofs = [*ROOFS, ceiling("matrix", 2e14, dtype="fp16")]
    counted = {**kernel(1e12, dram=1.0), "flops_by_type": [{"dtype": "fp32", "flops": 5.0}]}
    assert "fp16" in drawn([kernel(1e12, dram=1.0)], roofs)
    assert "fp16" not in drawn([counted], roofs)


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_names_of_roofs_that_nearly_coincide_do_not_lie_on_one_another(width: int) -> None:
    near = [ceiling("vector", 2e13 * (1 + n / 100), dtype=f"fp{n}") for n in range(4)]
    lying = boxes(drawn([kernel(1e12, dram=1.0)], [*ROOFS[:2], *near], width))
    assert len(lying) > 10
    for index, (left, right, top, bottom) in enumerate(lying):
        for other in lying[index + 1 :]:
            assert right <= other[0] or other[1] <= left or bottom <= other[2] or other[3] <= top


def test_names_are_text_and_nothing_else() -> None:
    plot = drawn([kernel(1e12, dram=1.0, name=EVIL)])
    assert "<img" not in plot
    assert "&lt;/script&gt;" in plot
    assert "style" not in plot


@given(
    st.lists(
        st.tuples(st.floats(1.0, 1e16), st.floats(1e-6, 1e9), st.none() | st.floats(0.0, 1.0)), min_size=1, max_size=5
    ),
    st.floats(1e6, 1e14),
    st.floats(1e6, 1e17),
    st.sampled_from([WIDE, NARROW]),
)
def test_everything_lies_within_the_picture(
    placed: list[tuple[float, float, float | None]], bandwidth: float, peak: float, width: int
) -> None:
    kernels = [kernel(rate, dram=intensity, share=share) for rate, intensity, share in placed]
    plot = drawn(kernels, [ceiling("dram", bandwidth), ceiling("vector", peak, "spec", "fp64")], width)
    height = float(ElementTree.fromstring(plot).attrib["height"])
    for x, y, radius in dots(plot):
        assert 0 < x < width
        assert 0 < y < height - 20
        assert radius >= 3
    for left, right, top, bottom in boxes(plot):
        assert -20 < left < right < width + 20
        assert 0 <= top < bottom <= height
    ticks = [text for *_, anchor, text in texts(plot) if anchor == "middle"]
    assert 3 <= len(ticks) <= 11
    assert all(math.isfinite(float(number)) for number in re.findall(r'[cxy]="([0-9.e+-]+)"', plot))
