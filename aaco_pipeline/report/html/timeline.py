"""Prepare the timeline of a session's page: activities, cells of summed times, and names.

`timeline_lanes` chooses lanes and intervals; `templates/timeline.js` draws them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.analysis.answer.kinds import UNNAMED, kind_of
from aaco_pipeline.analysis.timeline.device_timeline import covered_by
from aaco_pipeline.providers import CPU_PROVIDER
from aaco_pipeline.report.formatting import capital
from aaco_pipeline.report.html.timeline_lanes import (
    COLUMNS,
    DRAWN_CALLS,
    activities,
    drawn_windows,
    inside_windows,
    lanes_in_order,
    top_calls,
)
from aaco_pipeline.report.labels import CAUSES, kind_in_words

Times = npt.NDArray[np.int64]
#: Number of cells over the complete recording, and again over its steady part.
CELLS: Final = 100
#: Number of kernels whose time is kept by name, those with the largest total; the others are combined.
NAMED_KERNELS: Final = 24


def edges_between(
    span: tuple[int, int], steady: tuple[int, int] | None, windows: Sequence[tuple[int, int]], parts: Sequence[int]
) -> Times:
    """Return the cells' edges in order: evenly spaced over `span` and over `steady`, plus the ends of parts."""
    evenly = [np.linspace(*one, CELLS + 1).astype(np.int64) for one in (span, steady) if one is not None]
    ends = np.array([edge for window in windows for edge in window], np.int64)
    edges = np.unique(np.concatenate([*evenly, np.array(parts, np.int64), np.array(span), ends]))
    edges = edges[(edges >= span[0]) & (edges <= span[1])]
    for first, last in windows:
        edges = edges[(edges <= first) | (edges >= last)]
    return edges


def busy_ns(rows: pl.DataFrame, edges: Times) -> list[int]:
    """Return the length of the union of the rows' intervals in each cell."""
    union = covered_by(rows.get_column("start_ns").to_numpy(), rows.get_column("end_ns").to_numpy())
    found: list[int] = union.between(edges[:-1], edges[1:]).tolist()
    return found


def in_cells(rows: pl.DataFrame, edges: Times, *keys: str) -> pl.DataFrame:
    """Return per cell and `keys`: `time_ns`, durations clipped to the cell, and `count`, the number of starts in it.

    Row durations are multiplied by `sign`, which is -1 for nested rows; negative sums become zero.
    """
    start, end = rows.get_column("start_ns").to_numpy(), rows.get_column("end_ns").to_numpy()
    first = np.clip(np.searchsorted(edges, start, side="right") - 1, 0, len(edges) - 2)
    last = np.maximum(np.clip(np.searchsorted(edges, end, side="left") - 1, 0, len(edges) - 2), first)
    times = last - first + 1
    row = np.repeat(np.arange(rows.height), times)
    cell = np.arange(len(row)) - np.repeat(np.cumsum(times) - times, times) + first[row]
    clipped = np.minimum(end[row], edges[cell + 1]) - np.maximum(start[row], edges[cell])
    sign = rows.get_column("sign").to_numpy()[row]
    return (
        rows.select(keys)[row]
        .with_columns(
            cell=pl.Series(cell, dtype=pl.Int64),
            time_ns=pl.Series(np.maximum(clipped, 0) * sign, dtype=pl.Int64),
            count=pl.Series((cell == first[row]) & (sign > 0)),
        )
        .group_by("cell", *keys)
        .agg(pl.col("time_ns").sum(), pl.col("count").sum().cast(pl.Int64))
        .sort("cell", *keys)
    )


def own_time(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the dispatches with `sign` 1, and nested ones again with -1 under their parent's kernel."""
    columns = ("start_ns", "end_ns", "kernel_id")
    parents = kernels.select(inside="number", parent="kernel_id")
    children = kernels.drop_nulls("inside").join(parents, on="inside", maintain_order="left")
    return pl.concat(
        [
            kernels.select(*columns, sign=pl.lit(1, pl.Int64)),
            children.select("start_ns", "end_ns", kernel_id="parent", sign=pl.lit(-1, pl.Int64)),
        ]
    )


def by_cell(found: pl.DataFrame, cells: int, *columns: str) -> list[list[Any]]:
    """Flatten the columns of each cell's rows into one list."""
    flat: list[list[Any]] = [[] for _ in range(cells)]
    for (cell,), rows in found.group_by("cell", maintain_order=True):
        flat[int(cell)] = rows.select(columns).to_numpy().ravel().tolist()
    return flat


_TIMES: Final = ("start_ns", "end_ns")
#: Tables and columns that a timeline needs.
TABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "dispatches": (
        *("dispatch_id", "thread_id", "device_id", "queue_id", "stream_id", "kernel_id", *_TIMES, "iteration"),
        *("parent_dispatch_id", "below_resolution"),
    ),
    "memory_copies": ("copy_id", "device_id", "direction", "size_bytes", *_TIMES),
    "gaps": ("device_id", *_TIMES, "cause", "doubt"),
    "api_calls": ("call_id", "process_id", "thread_id", "domain", "name", *_TIMES),
    "kernels": ("kernel_id", "name", "short_name", "family"),
}
#: Kinds of work with their own colour; the others share one.
COLOURS: Final = 7
#: Code for activities without a kind of work on the page.
OTHER_KINDS: Final[Mapping[str, int]] = {"call": -1, "copy": -2, "idle": -3}
#: Maximum length of a name; template names can have tens of thousands of characters.
FULL_NAME: Final = 1500
#: Maximum number of marked parts and iterations.
MARKED: Final = 1000
Row = Mapping[str, Any]
Window = tuple[int, int]


def drawn_timeline(tables: Mapping[str, pl.DataFrame], document: Mapping[str, Any]) -> dict[str, Any] | None:
    """Collect the data that the page's script draws, as JSON-able values; None if no kernel or copy has times.

    `tables` are those in `TABLES`. The keys `answers`, `session_parts`, `iterations`, `moments` and `provider` of
    `document` are used. If not all activities are drawn, `cells` has exact sums of the rest.
    """
    on_cpu = document.get("provider") == CPU_PROVIDER
    rows = activities(tables, on_cpu=on_cpu)
    if not rows.get_column("kind").is_in(["kernel", "copy"]).any():
        return None
    context = _Context(rows, tables["kernels"], document, on_cpu)
    touched = inside_windows(rows, context.windows)
    kept = _thinned(touched).with_columns(pl.col("kind", "lane", "name").cast(pl.String))
    names = _Names(context)
    return {
        "origin_ns": context.span[0],
        "length": context.span[1] - context.span[0],
        "lanes": [{"label": lane, "kind": kind, "device": device} for lane, kind, device in context.lanes.iter_rows()],
        "judged": context.judged,
        "window": context.judged_window(),
        "parts": context.marked_parts(),
        "iterations": context.marked_iterations(),
        "moments": [
            {"roles": one["roles"], "iteration": one["iteration"], "took": one["latency_ns"]}
            | {"start": one["start_ns"] - context.span[0], "end": one["end_ns"] - context.span[0]}
            for one in document["moments"]
        ],
        "windows": [[start - context.span[0], end - context.span[0]] for start, end in context.windows],
        "recorded": rows.height,
        "left_out_calls": touched.height - kept.height,
        "slices": _slices(kept, context, names),
        "cells": None if context.windows == [context.span] else _cells(rows, context, names),
        "names": names.listed,
        "kinds": context.kinds,
    }


class _Context:
    """The layout: time span, lanes, windows, and the kinds of work with a colour."""

    def __init__(self, rows: pl.DataFrame, kernels: pl.DataFrame, document: Mapping[str, Any], on_cpu: bool) -> None:
        self.span: Window = rows.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
        self.judged = _judged_device(rows, document["answers"])
        self.parts = [row for row in document["session_parts"] if row["device_id"] == self.judged]
        self._answers: Sequence[Row] = document["answers"]
        self._iterations = [
            row
            for row in document["iterations"]
            if row["pass"] == "trace" and None not in (row["start_ns"], row["end_ns"])
        ]
        steady = [row for row in self.parts if row["part"] == "steady"]
        self.steady: Window | None = (steady[0]["start_ns"], steady[-1]["end_ns"]) if steady else None
        first, last = self.span
        stand_out = [(max(row["start_ns"], first), min(row["end_ns"], last)) for row in document["moments"]]
        self.windows = drawn_windows(rows, self.span, (self.steady or self.span)[0], stand_out)
        self.lanes = lanes_in_order(rows, self.judged)
        self.kernels, self.kinds = _coloured(rows, kernels, on_cpu)

    def judged_window(self) -> dict[str, Any] | None:
        """Return the answer's window if it is within the drawn span, unlike that of an unprofiled pass.

        Also None if no part of the recording is steady, because nothing is judged then.
        """
        for row in self._answers[:1] if self.steady or not self.parts else ():
            start, end = row["window_start_ns"], row["window_end_ns"]
            if start is not None and end is not None and self.span[0] <= start < end <= self.span[1]:
                told = {"rule": row["window_rule"], "interrupted": row["window_ns"] < end - start}
                return {"start": start - self.span[0], "end": end - self.span[0], **told}
        return None

    def marked_parts(self) -> list[dict[str, Any]]:
        longest = sorted(self.parts, key=lambda row: row["start_ns"] - row["end_ns"])[:MARKED]
        return [
            {"part": row["part"], "reason": row["reason"]}
            | {"start": row["start_ns"] - self.span[0], "end": row["end_ns"] - self.span[0]}
            for row in sorted(longest, key=lambda row: int(row["start_ns"]))
        ]

    def marked_iterations(self) -> dict[str, list[int]]:
        """Return the iterations of the traced pass; if there are very many, only those in the windows."""
        marked = self._iterations
        if len(marked) > MARKED:
            touched = [one for one in marked if any(a < one["end_ns"] and one["start_ns"] < b for a, b in self.windows)]
            marked = touched[:MARKED]
        return {
            "number": [row["iteration"] for row in marked],
            "start": [row["start_ns"] - self.span[0] for row in marked],
            "end": [row["end_ns"] - self.span[0] for row in marked],
        }


class _Names:
    """Distinct names for the page: `listed` in order of first use, looked up by kind and key."""

    def __init__(self, context: _Context) -> None:
        self.listed: list[dict[str, Any]] = []
        self._place: dict[tuple[str, Any], int] = {}
        self._kernels = {row["kernel_id"]: row for row in context.kernels.iter_rows(named=True)}

    def of(self, kind: str, key: Any) -> int:
        """Return the index of a kernel's name, by its number, or of any other name."""
        if (kind, key) not in self._place:
            self._place[kind, key] = len(self.listed)
            told = {"full": CAUSES.get(key, key)} if kind == "idle" else {}
            other = {"label": str(key).replace("_", " ") if told else key, "kind": OTHER_KINDS.get(kind)}
            self.listed.append(self._kernel(key) if kind == "kernel" else {**other, **told})
        return self._place[kind, key]

    def _kernel(self, number: int) -> dict[str, Any]:
        if number not in self._kernels:
            others = {"label": "other kernels", "others": True}
            return {"kind": COLOURS, **(others if number == _OTHERS else {"label": f"kernel {number}"})}
        row = self._kernels[number]
        full = row["name"] if len(row["name"]) <= FULL_NAME else row["name"][:FULL_NAME] + " …"
        return {"label": row["label"], "kind": row["colour"]} | ({"full": full} if full != row["label"] else {})


#: Represents the kernels whose time is not kept by name.
_OTHERS: Final = -1


def _judged_device(rows: pl.DataFrame, answers: Sequence[Row]) -> int | None:
    """Return the answer's device, or else the busiest."""
    if answers and answers[0]["device_id"] is not None:
        return int(answers[0]["device_id"])
    running = rows.filter(pl.col("kind").is_in(["kernel", "copy"]), pl.col("device_id").is_not_null())
    time = running.group_by("device_id").agg(time=(pl.col("end_ns") - pl.col("start_ns")).sum())
    busiest = time.sort("time", "device_id", descending=[True, False]).get_column("device_id")
    return int(busiest[0]) if busiest.len() else None


def _coloured(rows: pl.DataFrame, kernels: pl.DataFrame, on_cpu: bool) -> tuple[pl.DataFrame, list[str]]:
    """Return the kernels with `label` and `colour`, and the legend: kinds of work by time, or else operators."""
    families = kernels.get_column("family").unique().drop_nulls().to_list()
    told = pl.col("family").replace_strict(
        {one: kind_of(one) for one in families}, default=None, return_dtype=pl.String
    )
    work = told.fill_null(pl.col("short_name") if on_cpu else pl.lit(UNNAMED))
    # CPU kernels are named after their node, which is only meaningful together with the operator.
    same = pl.col("name") == pl.col("short_name")
    label = pl.when(same | (not on_cpu)).then("short_name").otherwise(pl.format("{}: {}", "short_name", "name"))
    named = kernels.with_columns(
        pl.col("kernel_id").cast(COLUMNS["kernel_id"]), work=work, label=pl.coalesce(label, "short_name", "name")
    )
    time = rows.filter(pl.col("kind") == "kernel").join(named.select("kernel_id", "work"), on="kernel_id")
    ordered = time.group_by("work").agg(time=(pl.col("end_ns") - pl.col("start_ns")).sum())
    kinds = ordered.sort("time", "work", descending=[True, False]).get_column("work").to_list()
    colour = pl.col("work").replace_strict(kinds, range(len(kinds)), default=COLOURS, return_dtype=pl.Int64)
    shown = [*map(capital, map(kind_in_words, kinds[:COLOURS])), *(["Other kernels"] if len(kinds) > COLOURS else [])]
    return named.with_columns(colour=colour.clip(upper_bound=COLOURS)), shown


def _thinned(kept: pl.DataFrame) -> pl.DataFrame:
    """Thin out host calls to a maximum: keep outermost calls, which cover all work of a thread, then the longest
    others.
    """
    calls = kept.filter(pl.col("kind") == "call")
    if calls.height <= DRAWN_CALLS:
        return kept
    outer = top_calls(kept).get_column("number")
    inner = calls.filter(~pl.col("number").is_in(outer.implode()))
    longest = inner.sort(pl.col("start_ns") - pl.col("end_ns"), "number").head(max(DRAWN_CALLS - outer.len(), 0))
    numbers = pl.concat([outer, longest.get_column("number")])
    return kept.filter((pl.col("kind") != "call") | pl.col("number").is_in(numbers.implode()))


def _slices(kept: pl.DataFrame, context: _Context, names: _Names) -> dict[str, Any]:
    """Return the drawn activities as columns, ordered by start.

    `start` is delta-encoded; `iteration` is run-length encoded as (length, value) for kernels, -1 without an iteration;
    `inside` is the offset back to the slice of the enclosing operator, 0 without one.
    """
    lanes = context.lanes.get_column("lane")
    key = pl.coalesce(pl.when(pl.col("kind") == "kernel").then(pl.col("kernel_id").cast(pl.String)), "name")
    kept = kept.with_columns(key=key).with_row_index("slice").with_columns(pl.col("slice").cast(pl.Int64))
    places = kept.select("kind", "key", "kernel_id").unique(maintain_order=True)
    found = [names.of(kind, number if kind == "kernel" else key) for kind, key, number in places.iter_rows()]
    places = places.select("kind", "key", place=pl.Series(found, dtype=pl.Int64))
    kept = kept.join(places, on=["kind", "key"], how="left", maintain_order="left")
    around = kept.filter(pl.col("kind") == "kernel").select(inside="number", around="slice")
    outward = kept.join(around, on="inside", how="left", maintain_order="left").select(
        (pl.col("slice") - pl.col("around")).fill_null(0)
    )
    own = pl.when(pl.col("kind") == "kernel").then(pl.col("iteration").fill_null(-1)).forward_fill().fill_null(-1)
    iterations, before = kept.select(own).to_series(), pl.col("start_ns").shift(1).fill_null(context.span[0])
    steps_out = outward.to_series()
    return {
        "start": kept.select(pl.col("start_ns") - before).to_series().to_list(),
        "took": (kept.get_column("end_ns") - kept.get_column("start_ns")).to_list(),
        "lane": kept.get_column("lane").replace_strict(lanes, range(lanes.len()), return_dtype=pl.Int64).to_list(),
        "name": kept.get_column("place").to_list(),
        "iteration": [] if (iterations < 0).all() else [list(run) for run in iterations.rle().struct.unnest().rows()],
        "short": kept.filter(pl.col("short").fill_null(False)).get_column("slice").to_list(),
        "inside": steps_out.to_list() if (steps_out > 0).any() else [],
    }


def _cells(rows: pl.DataFrame, context: _Context, names: _Names) -> dict[str, Any]:
    """Sum over the cells: busy time per lane and device, own time and count per kernel, idle time by cause."""
    marks = [edge for row in context.parts[:MARKED] for edge in (row["start_ns"], row["end_ns"])]
    if (window := context.judged_window()) is not None:
        marks += [window["start"] + context.span[0], window["end"] + context.span[0]]
    edges = edges_between(context.span, context.steady, context.windows, marks)
    count = len(edges) - 1
    running = rows.filter(pl.col("kind").is_in(["kernel", "copy"])).select("device_id", *_TIMES)
    devices = context.lanes.filter(pl.col("kind") != "call").get_column("device_id").unique().sort()
    by_lane = {lane: busy_ns(own, edges) for (lane,), own in rows.select("lane", *_TIMES).group_by("lane")}
    own = own_time(rows.filter(pl.col("kind") == "kernel"))
    totals = in_cells(own, edges, "kernel_id").group_by("kernel_id").agg(pl.col("time_ns").sum())
    most = totals.sort("time_ns", "kernel_id", descending=[True, False]).head(NAMED_KERNELS)
    named = pl.col("kernel_id").is_in(most.get_column("kernel_id").implode())
    own = own.with_columns(kernel_id=pl.when(named).then("kernel_id").otherwise(_OTHERS))
    kernels = in_cells(own, edges, "kernel_id")
    numbers = kernels.get_column("kernel_id").unique().sort()
    kernels = kernels.with_columns(
        pl.col("kernel_id").replace_strict(numbers, [names.of("kernel", one) for one in numbers], return_dtype=pl.Int64)
    )
    idle = in_cells(
        rows.filter(pl.col("kind") == "idle").with_columns(sign=pl.lit(1, pl.Int64)), edges, "device_id", "name"
    ).with_columns(pl.col("name").cast(pl.String))
    idle = idle.sort("cell", "device_id", "name")
    causes = idle.get_column("name").unique().sort()
    idle = idle.with_columns(
        pl.col("name").replace_strict(causes, [names.of("idle", one) for one in causes], return_dtype=pl.Int64)
    )
    return {
        "edges": [int(edge) - context.span[0] for edge in edges],
        "lanes": [by_lane[lane] for lane in context.lanes.get_column("lane")],
        "devices": [
            {"device": device, "busy": busy_ns(running.filter(pl.col("device_id").eq_missing(device)), edges)}
            for device in devices
        ],
        "kernels": by_cell(kernels, count, "kernel_id", "time_ns", "count"),
        "idle": by_cell(idle, count, "device_id", "name", "time_ns"),
    }
