"""The roofline as a plot: ceilings of the device, and each kernel at what it did, once for every level of memory.

SVG without a script, so that the report, Dagster's metadata and a note show the same. Both axes are logarithmic. A
kernel without floating-point operations has no place in this plot; the caller says how many those are.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from aaco_pipeline.report.units import number, share, shortened

_WIDTH: Final = 760
_HEIGHT: Final = 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 150, 16, 44
#: Readable on white and on dark grey alike.
_INK: Final = "#8a94a3"
_GRID: Final = "#8a94a338"
_LEVELS: Final = {
    "dram": ("DRAM", "#4477aa"),
    "fabric": ("fabric", "#66ccee"),
    "l3": ("L3", "#66ccee"),
    "infinity_cache": ("Infinity Cache", "#a4a8ad"),
    "l2": ("L2", "#228833"),
    "vl1d": ("vL1D", "#ccbb44"),
    "l1": ("L1", "#ccbb44"),
    "lds": ("LDS", "#aa3377"),
}
_ROOF: Final = "#ee6677"
#: Levels of which `roofline` has an arithmetic intensity.
_PLACED: Final = ("dram", "fabric", "l2", "vl1d", "lds")
_ARITHMETIC: Final = ("vector", "vector_packed", "matrix")
_LARGEST: Final = 11.0
_SMALLEST: Final = 3.0


@dataclass(frozen=True)
class _Axis:
    """Powers of ten from `low` to `high`, on pixels from `first` to `last`."""

    low: float
    high: float
    first: float
    last: float

    def place(self, value: float) -> float:
        return self.first + (math.log10(value) - self.low) / (self.high - self.low) * (self.last - self.first)

    def powers(self) -> Iterator[int]:
        """At most about eight of the powers of ten on the axis."""
        step = max(1, math.ceil((self.high - self.low) / 8))
        yield from range(math.ceil(self.low), math.floor(self.high) + 1, step)


def roofline_plot(kernels: Sequence[Mapping[str, Any]], ceilings: Sequence[Mapping[str, Any]]) -> str | None:
    """The plot as SVG, or None when no kernel has a place in it or no ceiling is known.

    `kernels`: rows of `roofline` for whole kernels with name and share_ratio (of the kernel time) beside them.
    `ceilings`: rows of that table for the device. Arithmetic ceilings are drawn for the number formats in
    flops_by_type, for all when no kernel states any.
    """
    placed = [row for row in kernels if _dots(row)]
    bandwidths = [row for row in ceilings if row["unit"] == "byte/s" and row["resource"] in _LEVELS]
    roofs = _roofs(ceilings, placed)
    if not placed or not (bandwidths or roofs):
        return None
    horizontal, vertical = _axes(placed, bandwidths, roofs)
    body = "".join(
        (
            *_grid(horizontal, vertical),
            *(_slope(row, horizontal, vertical) for row in bandwidths),
            *(_ceiling(row, horizontal, vertical) for row in roofs),
            *(_kernel(row, horizontal, vertical) for row in sorted(placed, key=_share_of, reverse=True)),
        )
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" role="img" aria-label="Roofline plot" font-family="sans-serif" font-size="11">{body}</svg>'
    )


def _dots(row: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Where a kernel stands: level and arithmetic intensity, where both it and the rate are above zero."""
    if not row["achieved_flops_per_s"]:
        return []
    found = ((level, row[f"{level}_arithmetic_intensity"]) for level in _PLACED)
    return [(level, intensity) for level, intensity in found if intensity]


def _share_of(row: Mapping[str, Any]) -> float:
    return float(row["share_ratio"] or 0.0)


def _roofs(ceilings: Iterable[Mapping[str, Any]], kernels: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The arithmetic ceilings of the number formats that were counted."""
    known = [row for row in ceilings if row["resource"] in _ARITHMETIC and row["unit"] == "flop/s"]
    counted = {part["dtype"] for row in kernels for part in row["flops_by_type"] or () if part["flops"]}
    return [row for row in known if not counted or row["dtype"] in counted]


def _axes(
    kernels: Iterable[Mapping[str, Any]], bandwidths: Sequence[Mapping[str, Any]], roofs: Sequence[Mapping[str, Any]]
) -> tuple[_Axis, _Axis]:
    """Room for every kernel, and for the ridges where the ceilings meet."""
    intensities, rates = [], [float(row["value"]) for row in roofs]
    for row in kernels:
        rates.append(row["achieved_flops_per_s"])
        intensities += [intensity for _, intensity in _dots(row)]
    intensities += [roof["value"] / bandwidth["value"] for roof in roofs for bandwidth in bandwidths]
    left, right = math.log10(min(intensities)) - 0.4, math.log10(max(intensities)) + 0.6
    low, high = math.log10(min(rates)) - 0.4, math.log10(max(rates)) + 0.25
    return _Axis(left, right, _LEFT, _WIDTH - _RIGHT), _Axis(low, high, _HEIGHT - _BOTTOM, _TOP)


def _grid(horizontal: _Axis, vertical: _Axis) -> Iterator[str]:
    for power in horizontal.powers():
        x = horizontal.place(10.0**power)
        yield f'<path d="M{x:.1f} {vertical.last}V{vertical.first}" stroke="{_GRID}"/>'
        label = f"{10.0**power:g}" if -3 <= power <= 4 else f"1e{power}"
        yield _label(x, vertical.first + 16, label, "middle")
    for power in vertical.powers():
        y = vertical.place(10.0**power)
        yield f'<path d="M{horizontal.first} {y:.1f}H{horizontal.last}" stroke="{_GRID}"/>'
        yield _label(horizontal.first - 6, y + 4, _rate(10.0**power).removesuffix("FLOP/s").strip(), "end")
    middle = (horizontal.first + horizontal.last) / 2
    yield _label(middle, vertical.first + 34, "arithmetic intensity, FLOP per byte at the level", "middle")
    yield _label(6, vertical.last - 4, "FLOP/s", "start")


def _slope(row: Mapping[str, Any], horizontal: _Axis, vertical: _Axis) -> str:
    """A bandwidth: rate = intensity x bandwidth, cut to the plot."""
    name, colour = _LEVELS[row["resource"]]
    start = max(10**horizontal.low, 10**vertical.low / row["value"])
    end = min(10**horizontal.high, 10**vertical.high / row["value"])
    if start >= end:
        return ""
    points = [(horizontal.place(x), vertical.place(x * row["value"])) for x in (start, end)]
    told = f"{name} {row['source']}: {number(row['value'] / 1e9)} GB/s"
    return (
        f'<path d="M{points[0][0]:.1f} {points[0][1]:.1f}L{points[1][0]:.1f} {points[1][1]:.1f}" stroke="{colour}" '
        f'fill="none"{_dashed(row)}><title>{escape(told)}</title></path>'
        + _label(points[1][0] - 4, points[1][1] + 12, name, "end", colour)
    )


def _ceiling(row: Mapping[str, Any], horizontal: _Axis, vertical: _Axis) -> str:
    y = vertical.place(row["value"])
    told = f"{row['resource'].replace('_', ' ')} {row['dtype'] or ''} ({row['source']})"
    return (
        f'<path d="M{horizontal.first} {y:.1f}H{horizontal.last}" stroke="{_ROOF}"{_dashed(row)}>'
        f"<title>{escape(told)}: {_rate(row['value'])}</title></path>"
        + _label(horizontal.last + 4, y + 4, told, "start", _ROOF)
    )


def _kernel(row: Mapping[str, Any], horizontal: _Axis, vertical: _Axis) -> str:
    """One dot for each level, joined: far apart, a cache served what memory did not; close together, nothing was."""
    y = vertical.place(row["achieved_flops_per_s"])
    dots = sorted(_dots(row), key=lambda dot: dot[1])
    radius = _SMALLEST + (_LARGEST - _SMALLEST) * math.sqrt(_share_of(row))
    ends = [horizontal.place(intensity) for _, intensity in (dots[0], dots[-1])]
    circles = "".join(
        f'<circle cx="{horizontal.place(intensity):.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{_LEVELS[level][1]}" '
        'fill-opacity="0.75"/>'
        for level, intensity in dots
    )
    told = f"{shortened(row['name'])}: {_rate(row['achieved_flops_per_s'])}"
    told += "" if row["share_ratio"] is None else f", {share(row['share_ratio'])} of the kernel time"
    told += "".join(f", {number(intensity)} FLOP/B at {_LEVELS[level][0]}" for level, intensity in dots)
    line = f'<path d="M{ends[0]:.1f} {y:.1f}H{ends[1]:.1f}" stroke="{_INK}" stroke-opacity="0.6"/>'
    return f"<g><title>{escape(told)}</title>{line}{circles}</g>"


def _dashed(row: Mapping[str, Any]) -> str:
    return ' stroke-dasharray="5 4"' if row["source"] == "spec" else ""


def _label(x: float, y: float, text: str, anchor: str, colour: str = _INK) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'


def _rate(value: float) -> str:
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{number(value / factor)} {prefix}FLOP/s"
    return f"{number(value)} FLOP/s"
