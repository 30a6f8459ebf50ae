"""Shapes and types of the inputs of framework operators, where a Kineto trace recorded them (`record_shapes=True`).

The trace's tables are `aaco_pipeline.formats.kineto`'s; this reads what they have no column for.
"""

from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.formats.parsing.json_fields import Objects
from aaco_pipeline.formats.parsing.json_stream import Cursor, CutError, Pieces, Positions
from aaco_pipeline.lake.validation import empty_table, to_contract

SHAPES: Final = pl.Schema(
    {
        "operator": pl.String(),
        "thread_id": pl.Int64(),
        "start_ns": pl.Int64(),
        "shapes": pl.String(),
        "types": pl.String(),
    }
)
_OUTER: Final = ("ph", "cat", "name", "tid", "ts")
_INNER: Final = ("Input Dims", "Input type")
_EVENTS: Final = "traceEvents"


def read_operator_shapes(path: Path, limits: Limits | None = None) -> pl.DataFrame:
    """One row per operator whose inputs were recorded, in file order, with the columns of `SHAPES`.

    start_ns is on the trace's own clock, as `kineto.read` gives it before it is put on a session's axis; shapes and
    types are the JSON text of the trace. A cut trace gives what it holds. CaptureError as `kineto.read`.
    """
    limits = limits or Limits()
    found: list[pl.DataFrame] = []
    with Pieces(path, limits) as pieces:
        cursor = Cursor(path, pieces, limits)
        try:
            if cursor.follows(b"["):
                _collect(cursor, found)
            else:
                for key in cursor.entries():
                    if key == _EVENTS and cursor.follows(b"["):
                        _collect(cursor, found)
                    else:
                        cursor.value()
        except CutError:
            pass
    return pl.concat([SHAPES.to_frame(), *found])


def of_calls(shapes: pl.DataFrame, api_calls: pl.DataFrame) -> pl.DataFrame:
    """The table `operator_shapes`: what `read_operator_shapes` gives, by the calls of the operators.

    Both hold the same operators and differ in the zero of their clocks; an operator of which two began in one
    nanosecond is left out. Without operators in both, or when they cannot be the same ones, there are no rows.
    """
    calls = api_calls.filter(pl.col("domain") == "operator").select(
        "call_id", "start_ns", operator=pl.col("name").cast(pl.String)
    )
    if not calls.height or not shapes.height:
        return empty_table("operator_shapes")
    offset = int(calls.get_column("start_ns").min()) - int(shapes.get_column("start_ns").min())  # type: ignore[arg-type]
    own = shapes.with_columns(start_ns=pl.col("start_ns") + offset).unique(["operator", "start_ns"], keep="none")
    joined = calls.join(own, on=["operator", "start_ns"], how="inner", maintain_order="left")
    return to_contract("operator_shapes", joined.select("call_id", "operator", "shapes", "types"))


def _collect(cursor: Cursor, into: list[pl.DataFrame]) -> None:
    for piece, part in cursor.batches():
        if not len(part.start):
            continue
        events = _Lists(piece, part, _OUTER, "args", _INNER)
        everything = np.arange(events.count)
        rows = (events.texts("cat", everything) == "cpu_op").fill_null(False).arg_true().to_numpy().astype(np.int64)
        if not len(rows):
            continue
        frame = pl.DataFrame(
            {
                "operator": events.texts("name", rows).cast(pl.Categorical).cast(pl.String),
                "thread_id": events.integers("tid", rows).series(),
                "start_ns": events.thousandths("ts", rows).series(),
                "shapes": events.lists("Input Dims", rows),
                "types": events.lists("Input type", rows),
            }
        )
        into.append(frame.drop_nulls().select(pl.col(name).cast(dtype) for name, dtype in SHAPES.items()))


class _Lists(Objects):
    """Objects of which some values are lists, taken as their text."""

    def lists(self, name: str, rows: Positions) -> pl.Series:
        """The text of a list, null where the key is absent or its value is no list."""
        _, valid, start = self._values(name, rows)
        valid = valid & (self.piece[start] == ord("["))
        brackets = np.flatnonzero((self.piece == ord("[")) | (self.piece == ord("]")))
        # A list ends where as many have closed as have opened since it began: the next place of the depth before it.
        step = np.where(self.piece[brackets] == ord("["), 1, -1)
        depth = np.cumsum(step)
        first = np.searchsorted(brackets, start)
        texts = [
            _text(self.piece, brackets, depth, int(at), int(b)) if ok else None
            for at, b, ok in zip(start, first, valid, strict=True)
        ]
        return pl.Series(name, texts, pl.String)


def _text(
    piece: "np.ndarray[tuple[int], np.dtype[np.uint8]]", brackets: Positions, depth: Positions, at: int, first: int
) -> str:
    closing = first + 1
    while depth[closing] >= depth[first]:
        closing += 1
    return piece[at : int(brackets[closing]) + 1].tobytes().decode()
