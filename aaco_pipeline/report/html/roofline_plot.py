"""Draw the roofline as a plot: device ceilings, and each kernel's achieved rate for the memory levels it used.

The SVG has no script or style, so the report, Dagster's metadata and a note show the same image; a page may colour it
by its classes. Both axes are logarithmic. Kernels without floating-point operations cannot be plotted; the caller
states their number.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

import polars as pl

from aaco_pipeline.analysis.roofline.fitted_ceilings import FITTED
from aaco_pipeline.analysis.roofline.kernel_work import kernels_by_time
from aaco_pipeline.report.formatting import DECIMAL, number, prefixed, share, shortened

WIDE: Final = 760
NARROW: Final = 330
#: Maximum number of kernels in one plot, longest first.
DRAWN_KERNELS: Final = 60
#: Number of longest kernels that show every memory level; the others only show the outermost known level.
_IN_FULL: Final = 8
_FONT: Final = 11
_CHARACTER: Final = 6.0
_LINE: Final = 15
_BOTTOM: Final = 44
#: Width for the roof labels.
_NAMES: Final = 158
#: Readable on white and on dark grey.
_INK: Final = "#7d8794"
_ROOF: Final = "#e05a6d"
_LEVELS: Final = {
    "dram": ("DRAM", "#4a86c5"),
    "fabric": ("fabric", "#3fb1c9"),
    "infinity_cache": ("Infinity Cache", "#8f7fe0"),
    "l3": ("L3", "#8f7fe0"),
    "l2": ("L2", "#2f9e4f"),
    "vl1d": ("vL1D", "#c0a020"),
    "l1": ("L1", "#c0a020"),
    "lds": ("LDS", "#c0559a"),
}
#: Memory levels with an arithmetic intensity in `roofline`, outermost first.
_PLACED: Final = ("dram", "fabric", "l2", "vl1d", "lds")
_ARITHMETIC: Final = ("vector", "vector_packed", "matrix")
_DASHES: Final = {"spec": ' stroke-dasharray="5 4"', "reported": ' stroke-dasharray="2 2"'}
_LARGEST: Final = 13.0
_SMALLEST: Final = 3.0
#: Two levels with closer intensities are drawn as one dot.
_SAME: Final = 1.02
_LEAST_DECADES: Final = 2.0
_SUPERSCRIPTS: Final = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
Row = Mapping[str, Any]
_Point = tuple[float, float]


@dataclass(frozen=True)
class _Axis:
    """Logarithmic axis from 10^`low` to 10^`high`, mapped to pixels `first` to `last`."""

    low: float
    high: float
    first: float
    last: float

    def place(self, value: float) -> float:
        return self.first + (math.log10(value) - self.low) / (self.high - self.low) * (self.last - self.first)

    def ticks(self, most: int) -> Iterator[float]:
        """Return about `most` powers of ten on the axis; if few fit, also their multiples by two and five."""
        span = self.high - self.low
        step = max(1, math.ceil(span / most))
        between = (1.0, 2.0, 5.0) if 3 * span <= most else (1.0,)
        for power in range(math.floor(self.low), math.floor(self.high) + 1, step):
            yield from (x for part in between if self.low <= math.log10(x := part * 10.0**power) <= self.high)


@dataclass(frozen=True)
class _Frame:
    """Axes, width and content of the plot."""

    horizontal: _Axis
    vertical: _Axis
    bandwidths: Sequence[Row]
    roofs: Sequence[Row]

    def slope_end(self, bandwidth: Row) -> float:
        """Return the intensity at which a bandwidth meets the highest roof of its kind; the plot's end if there is
        none.
        """
        highest = [row["value"] for row in self.roofs if row["source"] == bandwidth["source"]]
        highest = highest or [row["value"] for row in self.roofs]
        return max(highest) / float(bandwidth["value"]) if highest else math.inf

    def roof_begin(self, roof: Row) -> float:
        """Return the intensity at which the fastest bandwidth meets a roof; the plot's start if there is none."""
        fastest = [row["value"] for row in self.bandwidths if row["source"] == roof["source"]]
        fastest = fastest or [row["value"] for row in self.bandwidths]
        return float(roof["value"]) / max(fastest) if fastest else 0.0


def roofline_of_session(tables: Mapping[str, pl.DataFrame]) -> str | None:
    """Plot a session's tables ceilings, roofline, kernels and kernel_stats."""
    roofs = tables["ceilings"].filter(pl.col("source") != FITTED)
    return roofline_plot(kernels_by_time(tables).to_dicts(), roofs.to_dicts())


def roofline_plot(kernels: Sequence[Row], ceilings: Sequence[Row], *, width: int = WIDE) -> str | None:
    """Draw the plot as SVG; None if no kernel can be placed or no ceiling is known.

    `kernels`: rows of `roofline` for complete kernels, with name and share_ratio (of the kernel time); the longest are
    drawn. `ceilings`: rows of that table; only the device with the most ceilings is drawn. Arithmetic ceilings are
    drawn for the number formats in flops_by_type, or for all if no kernel states any. `width` is in pixels, `WIDE` or
    `NARROW` for a phone.
    """
    placed = sorted((row for row in kernels if _dots(row)), key=_share_of, reverse=True)[:DRAWN_KERNELS]
    of_device = _of_one_device(ceilings)
    bandwidths = [row for row in of_device if row["unit"] == "byte/s" and row["resource"] in _LEVELS]
    roofs = _roofs(of_device, placed)
    if not placed or not (bandwidths or roofs):
        return None
    dots = [_shown_dots(row, place) for place, row in enumerate(placed)]
    frame = _frame(placed, dots, bandwidths, roofs, width)
    legend, height = _legend(bandwidths, roofs, {level for each in dots for level, _ in each}, width, frame)
    body = "".join(
        (
            *_grid(frame, width),
            *(_slope(row, frame) for row in bandwidths),
            *(_roof(row, frame) for row in roofs),
            *(_roof_labels(frame) if width >= WIDE else ()),
            # Draw the longest first, so that smaller dots are on top of larger ones.
            *(_kernel(row, each, frame) for row, each in zip(placed, dots, strict=True)),
            *legend,
        )
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="Roofline plot" font-family="sans-serif" font-size="{_FONT}">{body}</svg>'
    )


def placed_kernels(kernels: Iterable[Row]) -> int:
    """Count the kernels that can be plotted, regardless of the limit."""
    return sum(bool(_dots(row)) for row in kernels)


# ---- what is drawn ---------------------------------------------------------------------------------------------------


def _dots(row: Row) -> list[tuple[str, float]]:
    """Return a kernel's dots: level and arithmetic intensity, if both intensity and rate are above zero."""
    if not row["achieved_flops_per_s"]:
        return []
    found = ((level, row[f"{level}_arithmetic_intensity"]) for level in _PLACED)
    return [(level, intensity) for level, intensity in found if intensity]


def _shown_dots(row: Row, place: int) -> list[tuple[str, float]]:
    """Return all levels of the longest kernels and the outermost level of the others; levels with equal bytes share a
    dot.
    """
    shown: list[tuple[str, float]] = []
    for level, intensity in _dots(row):
        if all(max(intensity, other) >= _SAME * min(intensity, other) for _, other in shown):
            shown.append((level, intensity))
    return shown if place < _IN_FULL else shown[:1]


def _share_of(row: Row) -> float:
    return float(row["share_ratio"] or 0.0)


def _of_one_device(ceilings: Sequence[Row]) -> list[Row]:
    known = Counter(row["device_id"] for row in ceilings)
    device = min(known, key=lambda each: (-known[each], each), default=None)
    return [row for row in ceilings if row["device_id"] == device]


def _roofs(ceilings: Iterable[Row], kernels: Iterable[Row]) -> list[Row]:
    """Return the arithmetic ceilings of the counted number formats."""
    known = [row for row in ceilings if row["resource"] in _ARITHMETIC and row["unit"] == "flop/s"]
    counted = {part["dtype"] for row in kernels for part in row["flops_by_type"] or () if part["flops"]}
    return [row for row in known if not counted or row["dtype"] in counted]


def _frame(
    kernels: Iterable[Row],
    dots: Iterable[Sequence[tuple[str, float]]],
    bandwidths: Sequence[Row],
    roofs: Sequence[Row],
    width: int,
) -> _Frame:
    """Choose axes with room for every kernel, for the ridges where ceilings meet, and for the roof labels."""
    intensities = [intensity for each in dots for _, intensity in each]
    intensities += [roof["value"] / bandwidth["value"] for roof in roofs for bandwidth in bandwidths]
    rates = [float(row["value"]) for row in roofs] + [float(row["achieved_flops_per_s"]) for row in kernels]
    left, right = _span(min(intensities), max(intensities), 0.3)
    # All known points are below the roofs, so an axis that is too short is extended downward.
    low, high = _span(min(rates), max(rates), 0.3, below=1.0)
    wide = width >= WIDE
    # Maximum upward shift of roof labels.
    top = 26 + (_LINE * len(_named(roofs)) // 2 if wide else 0)
    end = width - (_NAMES if wide and roofs else 12)
    return _Frame(_Axis(left, right, 58, end), _Axis(low, high, top + (330 if wide else 240), top), bandwidths, roofs)


def _span(least: float, most: float, room: float, below: float = 0.5) -> tuple[float, float]:
    """Return the ends of an axis in powers of ten, far enough apart for several ticks.

    `below` is the fraction of the extension that is added at the lower end.
    """
    low, high = math.log10(least) - room, math.log10(most) + room
    short = max(0.0, _LEAST_DECADES - (high - low))
    return low - below * short, high + (1 - below) * short


# ---- the parts -------------------------------------------------------------------------------------------------------


def _grid(frame: _Frame, width: int) -> Iterator[str]:
    horizontal, vertical = frame.horizontal, frame.vertical
    for tick in horizontal.ticks(9 if width >= WIDE else 5):
        x = horizontal.place(tick)
        yield _line((x, vertical.last), (x, vertical.first), _INK, 'class="grid" stroke-opacity="0.22"')
        yield _label(x, vertical.first + 16, _tick(tick), "middle")
    for tick in vertical.ticks(8):
        y = vertical.place(tick)
        yield _line((horizontal.first, y), (horizontal.last, y), _INK, 'class="grid" stroke-opacity="0.22"')
        yield _label(horizontal.first - 8, y + 4, _rate(tick).removesuffix("FLOP/s").strip(), "end")
    middle = (horizontal.first + horizontal.last) / 2
    yield _label(middle, vertical.first + 34, "arithmetic intensity, FLOP per byte moved at the level", "middle")
    yield _label(6, 14, "FLOP/s", "start")


def _slope(row: Row, frame: _Frame) -> str:
    """Draw a bandwidth: rate = intensity x bandwidth, clipped to the plot and the highest roof."""
    horizontal, vertical = frame.horizontal, frame.vertical
    name, colour = _LEVELS[row["resource"]]
    start = max(10**horizontal.low, 10**vertical.low / row["value"])
    end = min(10**horizontal.high, 10**vertical.high / row["value"], frame.slope_end(row))
    if start >= end:
        return ""
    ends = [(horizontal.place(x), vertical.place(x * row["value"])) for x in (start, end)]
    told = f"{name}, {_kind(row)}: {_bandwidth(row['value'])}"
    return _line(ends[0], ends[1], colour, f'stroke-width="1.5"{_dashed(row)}', told)


def _roof(row: Row, frame: _Frame) -> str:
    horizontal, y = frame.horizontal, frame.vertical.place(row["value"])
    begin = horizontal.place(max(10**horizontal.low, frame.roof_begin(row)))
    told = f"{_unit(row)}, {_kind(row)}: {_rate(row['value'])}"
    return _line((begin, y), (horizontal.last, y), _ROOF, f'stroke-width="1.5"{_dashed(row)}', told)


def _named(roofs: Sequence[Row]) -> list[Row]:
    """Select one roof per unit and number format, preferably the measured one; lowest first."""
    by_unit: dict[str, Row] = {}
    for row in roofs:
        if _unit(row) not in by_unit or row["source"] == "measured":
            by_unit[_unit(row)] = row
    return sorted(by_unit.values(), key=lambda row: (row["value"], _unit(row)))


def _roof_labels(frame: _Frame) -> Iterator[str]:
    """Draw labels at the roofs' right ends, shifted upward to avoid overlap, with a line to their roof."""
    end, lowest = frame.horizontal.last, math.inf
    for row in _named(frame.roofs):
        y = frame.vertical.place(row["value"])
        lowest = min(y, lowest - _LINE)
        yield _line((end, y), (end + 12, lowest), _ROOF, 'stroke-opacity="0.6"')
        yield _label(end + 15, lowest + 4, _roof_text(row), "start", f'fill="{_ROOF}" class="roof"')


def _roof_text(row: Row) -> str:
    return f"{_unit(row).removeprefix('vector ') if 'packed' in _unit(row) else _unit(row)} {_rate(row['value'])}"


def _kernel(row: Row, dots: Sequence[tuple[str, float]], frame: _Frame) -> str:
    """Draw a connected dot per level: distant dots mean that a cache saved traffic, close dots that none did."""
    y = frame.vertical.place(row["achieved_flops_per_s"])
    radius = _SMALLEST + (_LARGEST - _SMALLEST) * math.sqrt(min(1.0, _share_of(row)))
    places = [frame.horizontal.place(intensity) for _, intensity in dots]
    circles = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{_LEVELS[level][1]}" fill-opacity="0.8"/>'
        for x, (level, _) in zip(places, dots, strict=True)
    )
    told = f"{shortened(row['name'])}: {_rate(row['achieved_flops_per_s'])}"
    told += "" if row["share_ratio"] is None else f", {share(row['share_ratio'])} of the kernel time"
    told += "".join(f", {number(intensity)} FLOP/B at {_LEVELS[level][0]}" for level, intensity in _dots(row))
    joined = _line((min(places), y), (max(places), y), _INK, 'stroke-opacity="0.6"') if len(dots) > 1 else ""
    return f"<g><title>{escape(told)}</title>{joined}{circles}</g>"


def _legend(
    bandwidths: Sequence[Row], roofs: Sequence[Row], levels: Iterable[str], width: int, frame: _Frame
) -> tuple[list[str], int]:
    """Draw the legend: levels with their bandwidths, meaning of lines and dots, in as many rows as needed; also set the
    height.
    """
    drawn_levels = {*levels, *(row["resource"] for row in bandwidths)}
    entries = [_level_entry(level, bandwidths) for level in _LEVELS if level in drawn_levels]
    if width < WIDE:
        roof = f'<path d="M0 -4H12" stroke-width="1.5" stroke="{_ROOF}"/>'
        entries += [(roof, 12, _roof_text(row)) for row in _named(roofs)]
    sources = {row["source"] for row in (*bandwidths, *roofs)}
    ink = f'stroke-width="1.5" stroke="{_INK}"'
    for source, name in (("measured", "measured"), ("reported", "reported"), ("spec", "published")):
        if source in sources:
            entries.append((f'<path d="M0 -4H18" {ink}{_DASHES.get(source, "")}/>', 18, name))
    entries.append((f'<circle cx="9" cy="-4" r="7" fill="{_INK}" fill-opacity="0.6"/>', 18, "share of kernel time"))
    x, y, drawn = 8.0, frame.vertical.first + _BOTTOM + 12.0, []
    for mark, wide, text in entries:
        taken = wide + 6 + _CHARACTER * len(text)
        if x > 8 and x + taken > width - 4:
            x, y = 8.0, y + 18
        drawn.append(f'<g transform="translate({x:.0f} {y:.0f})">{mark}{_label(wide + 6, 0, text, "start")}</g>')
        x += taken + 18
    return drawn, math.ceil(y + 10)


def _level_entry(level: str, bandwidths: Iterable[Row]) -> tuple[str, int, str]:
    name, colour = _LEVELS[level]
    known = {row["source"]: _bandwidth(row["value"]) for row in bandwidths if row["resource"] == level}
    told = known.get("measured") or known.get("reported") or known.get("spec")
    return f'<circle cx="5" cy="-4" r="5" fill="{colour}"/>', 10, f"{name} {told}" if told else name


# ---- forms -----------------------------------------------------------------------------------------------------------


def _unit(row: Row) -> str:
    return f"{row['resource'].replace('_', ' ')} {row['dtype'] or ''}".strip()


def _kind(row: Row) -> str:
    return {"spec": "published", "reported": "as reported of such devices"}.get(row["source"], "measured")


def _dashed(row: Row) -> str:
    return _DASHES.get(row["source"], "")


def _line(begin: _Point, end: _Point, colour: str, more: str, title: str | None = None) -> str:
    start = f'<path d="M{begin[0]:.1f} {begin[1]:.1f}L{end[0]:.1f} {end[1]:.1f}" stroke="{colour}" fill="none" {more}'
    return f"{start}/>" if title is None else f"{start}><title>{escape(title)}</title></path>"


def _label(x: float, y: float, text: str, anchor: str, more: str = f'fill="{_INK}"') -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{escape(text)}</text>'


def _tick(value: float) -> str:
    power = math.floor(math.log10(value) + 1e-9)
    if -3 <= power <= 4:
        return f"{value:,g}"
    times = value / 10.0**power
    return ("" if times < 1.5 else f"{times:.0f}·") + "10" + str(power).translate(_SUPERSCRIPTS)


def _rate(value: float) -> str:
    return _prefixed(value, "FLOP/s")


def _bandwidth(value: float) -> str:
    return _prefixed(value, "B/s")


def _prefixed(value: float, unit: str) -> str:
    prefix, least = prefixed(value, DECIMAL, "")
    digits = f"{value / least:.{'3g' if value < 100 * least else '0f'}}" if least > 1 else number(value)
    return f"{digits} {prefix}{unit}"
