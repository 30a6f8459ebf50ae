"""The text of an ONNX Runtime profile to a frame of its events, chunk by chunk.

What the events become is `aaco_pipeline.formats.ort_profile.tables`.
"""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.formats.parsing.compression import DAMAGED, open_decompressed

#: What names a node's kernel among the events.
NODE: Final = ("name", "op_name", "provider", "node_index")
_CHUNK_BYTES: Final = 16 << 20
_SHAPE_COLUMNS: Final = (*NODE, "input_type_shape", "output_type_shape")
_EVENT: Final = pl.Schema(
    {
        "cat": pl.String(),
        "pid": pl.Int64(),
        "tid": pl.Int64(),
        "dur": pl.Int64(),
        "ts": pl.Int64(),
        "name": pl.String(),
        "args": pl.Struct(
            {
                "op_name": pl.String(),
                "provider": pl.String(),
                "node_index": pl.String(),
                "dropped_event_count": pl.String(),
                # Nested JSON, kept as text: each element is {type: [dimensions]}.
                "input_type_shape": pl.String(),
                "output_type_shape": pl.String(),
            }
        ),
    }
)


def read_events(path: Path, limits: Limits) -> tuple[pl.DataFrame, pl.DataFrame, bool]:
    """All events in file order, each node's first shapes, and whether the file ended as a profile ends.

    Memory: one chunk plus the columns; the shapes' text is dropped chunk by chunk but for each node's first.
    """
    frames: list[pl.DataFrame] = []
    shapes: list[pl.DataFrame] = []
    count = 0
    complete = False
    for chunk, last in _chunks(path, limits):
        body = chunk.strip()
        if not frames:
            if not body.startswith(b"["):
                raise CaptureError(f"{path}: not an ONNX Runtime profile; expected a JSON array of events")
            body = body[1:]
        frame, complete = _parse_chunk(path, body, count, last)
        frame = frame.unnest("args")
        count += frame.height
        if count > limits.events:
            raise CaptureError(f"{path}: more than {limits.events} events; raise the limit or capture fewer iterations")
        shapes.append(frame.filter(pl.col("cat") == "Node").select(_SHAPE_COLUMNS).unique(NODE, keep="first"))
        frames.append(frame.drop("input_type_shape", "output_type_shape"))
    events = pl.concat(frames).with_row_index("position").with_columns(pl.col("position").cast(pl.Int64))
    return events, pl.concat(shapes).unique(NODE, keep="first", maintain_order=True), complete


def _parse_chunk(path: Path, body: bytes, before: int, last: bool) -> tuple[pl.DataFrame, bool]:
    """The events of one chunk, and whether it ends the array. A last chunk that does not is read up to the cut."""
    if last and body.endswith(b"]"):
        try:
            return _parse(path, body[:-1], before, cut=False), True
        except CaptureError:
            pass  # perhaps the file is cut behind a bracket within an event: then the line before is the last whole one
    return _parse(path, body, before, cut=last), False


def _parse(path: Path, lines: bytes, before: int, cut: bool) -> pl.DataFrame:
    lines = lines.replace(b"},\n", b"}\n").strip().removesuffix(b",")
    if not lines:
        return pl.DataFrame(schema=_EVENT)
    if not lines.startswith(b"{"):  # Polars would take some other beginnings for compressed data
        raise CaptureError(f"{path}: not an ONNX Runtime profile, or damaged after event {before}: no event in braces")
    try:
        return pl.read_ndjson(io.BytesIO(lines), schema=_EVENT)
    except (pl.exceptions.PolarsError, ValueError) as error:
        whole, newline, _ = lines.rpartition(b"\n")
        # The file stops within an event: everything before that event is whole. A line of several is another format.
        if cut and (newline or before or lines.count(b'"cat"') <= 1):
            return _parse(path, whole, before, cut=False)
        reason = str(error).splitlines()[0]
        raise CaptureError(f"{path}: not an ONNX Runtime profile, or damaged after event {before}: {reason}") from error


def _chunks(path: Path, limits: Limits) -> Iterator[tuple[bytes, bool]]:
    """The file in pieces that end at a line's end; the flag marks the last."""
    taken = 0
    rest = b""
    try:
        with open_decompressed(path) as stream:
            piece = stream.read(_CHUNK_BYTES)
            while True:
                taken += len(piece)
                if taken > limits.file_bytes:
                    raise CaptureError(f"{path}: more than {limits.file_bytes} bytes when unpacked; not read")
                following = stream.read(_CHUNK_BYTES)
                if not following:
                    yield rest + piece, True
                    return
                lines, newline, tail = piece.rpartition(b"\n")
                if newline:
                    yield rest + lines + newline, False
                    rest = tail
                else:
                    rest += piece
                    if len(rest) > limits.line_bytes:
                        raise CaptureError(f"{path}: a line of more than {limits.line_bytes} bytes; not a profile")
                piece = following
    except DAMAGED as error:
        raise CaptureError(f"{path}: cannot be read: {error}") from error
