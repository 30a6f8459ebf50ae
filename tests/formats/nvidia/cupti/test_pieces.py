"""Large CUPTI streams: the tables are the same wherever chunks, blocks and pieces end."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aaco_pipeline.capture.merging import NamedReading, merge_parts
from aaco_pipeline.formats.capture_tables import CaptureTables
from aaco_pipeline.formats.nvidia import cupti
from aaco_pipeline.formats.nvidia.cupti import layout, stream
from aaco_pipeline.lake import on_disk
from tests.formats.nvidia.cupti import streams
from tests.formats.nvidia.cupti.streams import Row, kernel, packed_records, records

SETTINGS = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
LAUNCHES = 60
READINGS = [
    {"monotonic": 1_000, "realtime": 5_000, "cupti": 21_000},
    {"monotonic": 900_000, "realtime": 904_000, "cupti": 920_000},
]
TAKEN_OVER = {"monotonic": 70_000, "realtime": 74_000, "cupti": 7_000_000_000}


def launches(threads: int) -> tuple[list[Row], list[Row]]:
    """Kernels and their calls, those of each thread in their own order; every seventh kernel has no call."""
    correlations = [1 + (at * 7 % LAUNCHES if threads > 1 else at) for at in range(LAUNCHES)]
    at_ns = {correlation: 30_000 + 1_000 * correlation for correlation in correlations}
    kernels: list[Row] = [
        kernel(
            at_ns[c] + 400, correlation=c, name=1 + c % 3, static_shared=c % 2 * 1024, stream=c % 4, end=at_ns[c] + 900
        )
        for c in correlations
    ]
    calls: list[Row] = [
        {"start": at_ns[c], "end": at_ns[c] + 300, "thread": 70 + c % threads, "correlation": c, "call": 3, "domain": 1}
        for c in correlations
        if c % 7
    ]
    return kernels, calls


def chunked(kind: int, rows: Sequence[Row], ends: Sequence[int], packed: bool) -> list[bytes]:
    """The rows in chunks that end at these places."""
    places = [0, *sorted({end for end in ends if 0 < end < len(rows)}), len(rows)]
    make = packed_records if packed else records
    return [make(kind, rows[first:last]) for first, last in pairwise(places)]


def alternating(*kinds: Sequence[bytes]) -> Iterator[bytes]:
    """The chunks of several kinds in turn, as the recorder's buffers bring them."""
    for at in range(max(map(len, kinds))):
        yield from (chunks[at] for chunks in kinds if at < len(chunks))


def read(path: Path, pieces: Sequence[bytes]) -> CaptureTables:
    path.write_bytes(b"".join(pieces))
    return cupti.read(path)


def assert_same(one: CaptureTables, other: CaptureTables) -> None:
    assert {name: table.rows() for name, table in one.tables.items()} == {
        name: table.rows() for name, table in other.tables.items()
    }
    assert {name: table.schema for name, table in one.tables.items()} == {
        name: table.schema for name, table in other.tables.items()
    }
    assert one.evidence == other.evidence
    assert {name: table.rows() for name, table in one.details.items()} == {
        name: table.rows() for name, table in other.details.items()
    }


@SETTINGS
@given(
    clock=st.sampled_from(["own", "of CUPTI", "taken over"]),
    kernels=st.lists(st.integers(1, LAUNCHES), max_size=5),
    calls=st.lists(st.integers(1, LAUNCHES), max_size=5),
    threads=st.integers(1, 3),
    packed=st.booleans(),
    piece=st.integers(1, 70),
)
def test_tables_do_not_depend_on_where_chunks_and_pieces_end(
    tmp_path: Path, *, clock: str, kernels: list[int], calls: list[int], threads: int, packed: bool, piece: int
) -> None:
    """Chunks of calls alone, of kernels alone, of one record, and kernels before their calls are among them."""
    ran, called = launches(threads)
    read_clocks = {"own": [], "of CUPTI": READINGS, "taken over": [READINGS[0] | {"cupti": 1_000}, TAKEN_OVER]}[clock]
    head = [
        streams.header(),
        streams.notes("host node01", *([] if clock == "of CUPTI" else ["clock monotonic"])),
        streams.texts(layout.CALL_NAMES, {1 << 16 | 3: "cudaLaunchKernel_v7000"}),
        streams.texts(layout.NAMES, {1: "a(int)", 2: "b(int)", 3: "a(int)"}),
        *([records(layout.CLOCKS, read_clocks)] if read_clocks else []),
        streams.records(layout.DEVICES, [streams.device()]),
    ]
    names = [{"time": 40_000, "range": 1, "kind": 1, "thread": 70, "name": 9}, {"time": 60_000, "range": 1, "kind": 2}]
    end = [streams.texts(layout.NAMES, {9: "step 0"}), records(layout.RANGES, names)]
    end += [records(layout.ENDS, [{"time": 99_999, "reason": 1}])]
    path = tmp_path / "41-7.cupti"
    whole = read(path, [*head, records(layout.KERNELS, ran), records(layout.CALLS, called), *end])
    together = merge_parts([NamedReading(path.name, whole)])
    small = pytest.MonkeyPatch()
    try:
        small.setattr(on_disk, "PIECE_ROWS", piece)
        small.setattr(on_disk, "_COLUMN_BYTES", 8 * piece)
        small.setattr(stream, "_BLOCK_BYTES", 100 * piece)
        chunks = alternating(
            chunked(layout.KERNELS, ran, kernels, packed), chunked(layout.CALLS, called, calls, packed)
        )
        cut = read(path, [*head, *chunks, *end])
        assert_same(cut, whole)
        assert_same(merge_parts([NamedReading(path.name, cut)]), together)
    finally:
        small.undo()


@SETTINGS
@given(lost=st.integers(1, 4_000), piece=st.integers(1, 70))
def test_a_kill_leaves_every_chunk_before_the_one_that_it_cut(tmp_path: Path, lost: int, piece: int) -> None:
    ran, called = launches(1)
    chunks = [
        streams.header(),
        *alternating(
            *(
                [make(kind, rows[at : at + 10]) for at in range(0, len(rows), 10)]
                for make, kind, rows in ((packed_records, layout.KERNELS, ran), (records, layout.CALLS, called))
            )
        ),
    ]
    content = b"".join(chunks)
    kept = content[: max(layout.HEADER.itemsize, len(content) - lost)]
    small = pytest.MonkeyPatch()
    try:
        small.setattr(on_disk, "PIECE_ROWS", piece)
        small.setattr(on_disk, "_COLUMN_BYTES", 8 * piece)
        found = read(tmp_path / "41-7.cupti", [kept])
    finally:
        small.undo()
    whole, ends = [0, 0], 0
    for number, chunk in enumerate(chunks):
        ends += len(chunk)
        if number and ends <= len(kept):
            whole[int.from_bytes(chunk[:1], "little") == layout.CALLS] += int.from_bytes(chunk[8:12], "little")
    assert [found.tables[name].height for name in ("dispatches", "api_calls")] == whole
    told = next(item for item in found.evidence if item.item == "end of the stream")
    assert told.status == "partial"
