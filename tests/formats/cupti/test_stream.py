"""Large CUPTI streams give the same tables wherever chunks and pieces end, and enter the lake without secrets."""

import gzip
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aaco_pipeline.capture.discovery import discover_runs
from aaco_pipeline.capture.merging import NamedReading, merge_parts
from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats import cupti
from aaco_pipeline.formats.capture_tables import CaptureTables, Limits
from aaco_pipeline.formats.cupti import stream
from aaco_pipeline.formats.cupti.stream import without_secrets
from aaco_pipeline.lake import on_disk
from aaco_pipeline.resources.ingestion import copy_capture
from tests.formats.cupti import streams
from tests.formats.cupti.streams import Row, kernel, packed_records, records

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
        streams.texts(stream.CALL_NAMES, {1 << 16 | 3: "cudaLaunchKernel_v7000"}),
        streams.texts(stream.NAMES, {1: "a(int)", 2: "b(int)", 3: "a(int)"}),
        *([records(stream.CLOCKS, read_clocks)] if read_clocks else []),
        streams.records(stream.DEVICES, [streams.device()]),
    ]
    names = [{"time": 40_000, "range": 1, "kind": 1, "thread": 70, "name": 9}, {"time": 60_000, "range": 1, "kind": 2}]
    end = [streams.texts(stream.NAMES, {9: "step 0"}), records(stream.RANGES, names)]
    end += [records(stream.ENDS, [{"time": 99_999, "reason": 1}])]
    path = tmp_path / "41-7.cupti"
    whole = read(path, [*head, records(stream.KERNELS, ran), records(stream.CALLS, called), *end])
    together = merge_parts([NamedReading(path.name, whole)])
    small = pytest.MonkeyPatch()
    try:
        small.setattr(on_disk, "PIECE_ROWS", piece)
        small.setattr(on_disk, "_COLUMN_BYTES", 8 * piece)
        small.setattr(stream, "_BLOCK_BYTES", 100 * piece)
        chunks = alternating(
            chunked(stream.KERNELS, ran, kernels, packed), chunked(stream.CALLS, called, calls, packed)
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
                for make, kind, rows in ((packed_records, stream.KERNELS, ran), (records, stream.CALLS, called))
            )
        ),
    ]
    content = b"".join(chunks)
    kept = content[: max(stream.HEADER.itemsize, len(content) - lost)]
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
            whole[int.from_bytes(chunk[:1], "little") == stream.CALLS] += int.from_bytes(chunk[8:12], "little")
    assert [found.tables[name].height for name in ("dispatches", "api_calls")] == whole
    told = next(item for item in found.evidence if item.item == "end of the stream")
    assert told.status == "partial"


WHOLE = b"".join(streams.whole())
TOKEN = "hf_" + "aB3dE6gH9jK2mN5pQ8sT1"


def clean(content: bytes, piece: int = 1 << 20) -> tuple[bytes, int]:
    pieces = (content[at : at + piece] for at in range(0, len(content), piece))
    found = list(without_secrets(pieces, Limits(), "a.cupti"))
    return b"".join(one for one, _ in found), sum(hits for _, hits in found)


@given(piece=st.integers(1, 300), cut=st.integers(0, 3))
def test_a_stream_without_secrets_is_copied_as_it_is_whatever_its_pieces(piece: int, cut: int) -> None:
    content = WHOLE[: len(WHOLE) - cut]
    copied, hits = clean(content, piece)
    assert copied == content
    assert hits == 0


def test_records_that_read_like_a_secret_are_numbers_and_stay() -> None:
    disguised = np.frombuffer(f" token={TOKEN} ".encode().ljust(64), "<i8")
    rows = [{"start": one, "end": one} for one in disguised.tolist()]
    content = WHOLE + streams.records(stream.OVERHEADS, rows) + streams.packed_records(stream.OVERHEADS, rows)
    assert clean(content) == (content, 0)


def test_texts_lose_their_secrets_and_the_stream_is_read_as_before(tmp_path: Path) -> None:
    again = streams.texts(stream.NAMES, {2: f"step with token={TOKEN}", 3: "later"})
    told = streams.notes("host node01", f"call {TOKEN}")
    path = tmp_path / "41-7.cupti.gz"
    path.write_bytes(gzip.compress(WHOLE + again + told))
    (run,) = discover_runs(path).runs
    (tmp_path / "copy").mkdir()
    copy_capture(run, tmp_path / "copy", "test")
    (copied,) = (tmp_path / "copy" / "files").iterdir()
    assert TOKEN.encode() not in gzip.decompress(copied.read_bytes())
    names = cupti.read(copied).tables["markers"].get_column("name").to_list()
    assert names == ["step with token=redacted", "later"]
    before, after = (cupti.read(one).tables["dispatches"] for one in (path, copied))
    assert after.equals(before)


def test_what_no_reader_knows_and_what_was_not_written_whole_is_zeros() -> None:
    unknown = streams.chunk(99, f"token={TOKEN}".encode(), record_bytes=1)
    torn = streams.notes(f"token={TOKEN} and more")[:-4]
    copied, _ = clean(WHOLE + unknown + torn)
    assert copied[: len(WHOLE)] == WHOLE
    assert TOKEN.encode() not in copied
    assert len(copied) == len(WHOLE + unknown + torn)


def test_texts_that_contradict_themselves_are_refused() -> None:
    piece = streams.chunk(stream.NAMES, np.array([1, 500], "<u4").tobytes())
    with pytest.raises(CaptureError, match=r"a\.cupti: damaged: .*; copy the file again"):
        clean(WHOLE + piece)
