"""CUPTI streams as the recorder writes them, made from rows; layouts are the reader's own numpy types."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from aaco_pipeline.formats.cupti import MAGIC, stream

Row = Mapping[str, object]


def header(
    *, pid: int = 41, version: int = 2, monotonic: int = 1_000, realtime: int = 5_000, cupti: int = 1_000
) -> bytes:
    """The first 64 bytes."""
    values = np.zeros(1, stream.HEADER)
    values["magic"], values["version"], values["pid"] = MAGIC, version, pid
    values["cupti_version"], values["driver_version"] = 130001, 13000
    values["monotonic"], values["realtime"], values["cupti"] = monotonic, realtime, cupti
    return values.tobytes()


def chunk(kind: int, payload: bytes, *, record_bytes: int = 0, count: int = 1) -> bytes:
    """A chunk of any content."""
    return np.array([kind, record_bytes, count, len(payload)], "<u4").tobytes() + payload


def records(kind: int, rows: Sequence[Row], *, more: int = 0, less: int = 0) -> bytes:
    """A chunk of records; `more` bytes are appended to each, as a later recorder may, or the last `less` left out."""
    made = np.zeros(len(rows), stream.RECORDS[kind])
    for at, row in enumerate(rows):
        for name, value in row.items():
            made[name][at] = value
    size = made.itemsize - less + more
    raw = made.view(np.uint8).reshape(len(rows), made.itemsize)[:, : made.itemsize - less]
    return chunk(kind, np.pad(raw, ((0, 0), (0, more))).tobytes(), record_bytes=size, count=len(rows))


def packed(values: NDArray[np.uint32]) -> bytes:
    """Rows of 32-bit words as the recorder packs them."""
    steps = values[1:] - values[:-1]
    coded = (steps << np.uint32(1)) ^ (np.uint32(0) - (steps >> np.uint32(31)))
    largest = [int(column.max(initial=0)) for column in coded.T]
    widths = [next(width for width in (0, 1, 2, 4) if most < 1 << 8 * width) for most in largest]
    columns = [coded[:, at].astype(f"<u{width}").tobytes() for at, width in enumerate(widths) if width]
    return b"".join([bytes(widths), bytes(-len(widths) % 4), values[0].tobytes(), *columns])


def packed_records(kind: int, rows: Sequence[Row]) -> bytes:
    """A packed chunk of records."""
    plain = np.frombuffer(records(kind, rows)[stream.CHUNK.itemsize :], "<u4").reshape(len(rows), -1)
    return chunk(kind | stream.PACKED, packed(plain), record_bytes=plain.shape[1] * 4, count=len(rows))


def texts(kind: int, named: Mapping[int, str]) -> bytes:
    """A chunk of texts by number."""
    payload = b""
    for number, text in named.items():
        raw = text.encode()
        payload += np.array([number, len(raw)], "<u4").tobytes() + raw + bytes(-len(raw) % 4)
    return chunk(kind, payload, count=len(named))


def notes(*lines: str) -> bytes:
    """A chunk of notes."""
    payload = "".join(f"{line}\n" for line in lines).encode()
    return chunk(stream.NOTES, payload, record_bytes=1, count=len(payload))


def kernel(start: int, **values: object) -> Row:
    """A kernel of 12 by 2 blocks of 128 threads, 1000 ns long."""
    fixed = {"context": 1, "stream": 7, "name": 1, "grid_x": 12, "grid_y": 2, "grid_z": 1, "block_x": 128, "block_y": 1}
    more = {"block_z": 1, "registers": 40, "static_shared": 1024, "dynamic_shared": 512, "local_memory": 16}
    return {"start": start, "end": start + 1000, "correlation": start // 1000, **fixed, **more, **values}


def device(number: int = 0, **values: object) -> Row:
    """An H200, as CUPTI describes it."""
    one = {"device": number, "major": 9, "minor": 0, "multiprocessors": 132, "memory_bytes": 150_000_000_000}
    size = {"clock_khz": 1_980_000, "l2_bytes": 62_914_560, "threads_per_warp": 32, "name": b"NVIDIA H200"}
    more = {"shared_per_multiprocessor": 233_472, "uuid": np.void(bytes([0xAB, *range(14), number]))}
    return {**one, **size, **more, **values}


def whole() -> list[bytes]:
    """The pieces of a small stream with something of every kind, from its header to its end."""
    return [
        header(),
        texts(stream.CALL_NAMES, {1 << 16 | 3: "cudaLaunchKernel_v7000", 2 << 16 | 2: "cuCtxSynchronize"}),
        notes("host node01", "clock monotonic", "kind CONCURRENT_KERNEL", "call cudaLaunchKernel_v7000"),
        records(stream.CLOCKS, [{"monotonic": 1_100, "realtime": 5_100, "cupti": 1_100, "uncertainty": 20}]),
        texts(stream.NAMES, {1: "tiny(int*)", 2: "step 1", 3: "now"}),
        texts(stream.SYMBOLS, {1: "_Z4tinyPi"}),
        records(stream.DEVICES, [device()]),
        records(stream.CONTEXTS, [{"context": 1, "device": 0}]),
        records(stream.KERNELS, [kernel(2_000), kernel(4_000, graph_node=9), kernel(0, end=0)]),
        records(
            stream.CALLS,
            [
                {"start": 1_500, "end": 1_900, "thread": 77, "correlation": 2, "call": 3, "domain": 1},
                {"start": 3_500, "end": 3_900, "thread": 78, "correlation": 4, "call": 3, "domain": 1},
                {"start": 7_500, "end": 9_900, "thread": 77, "correlation": 8, "call": 2, "domain": 2},
            ],
        ),
        records(
            stream.COPIES,
            [
                {"start": 100, "end": 200, "bytes": 4096, "context": 1, "stream": 7, "correlation": 501, "kind": 1}
                | {"source_kind": 1, "destination_kind": 3},
                {"start": 300, "end": 400, "bytes": 8192, "context": 1, "stream": 7, "kind": 10, "destination": 1},
                {"start": 450, "end": 460, "bytes": 8, "context": 1, "stream": 7, "kind": 2, "destination_kind": 2},
            ],
        ),
        records(stream.FILLS, [{"start": 500, "end": 600, "bytes": 64, "context": 1, "stream": 7}]),
        records(stream.EVENTS, [{"event": 6, "context": 1, "stream": 7, "correlation": 504, "recording": 44}]),
        records(
            stream.WAITS,
            [
                {"start": 700, "end": 800, "type": 2, "context": 1, "stream": 8, "correlation": 505, "recording": 44},
                {"start": 810, "end": 900, "type": 4, "context": 1, "stream": 0xFFFFFFFF, "recording": 0xFFFFFFFF},
            ],
        ),
        records(
            stream.ALLOCATIONS,
            [
                {"time": 910, "address": 0x7000, "bytes": 1 << 20, "operation": 1, "memory_kind": 3, "correlation": 2},
                {"time": 920, "address": 0x9000, "bytes": 64, "operation": 2, "memory_kind": 2},
            ],
        ),
        records(
            stream.RANGES,
            [
                {"time": 1_000, "range": 1, "kind": 1, "thread": 77, "name": 2},
                {"time": 1_200, "range": 2, "kind": 3, "thread": 77, "name": 3},
                {"time": 1_900, "range": 1, "kind": 2, "thread": 77},
            ],
        ),
        packed_records(stream.OVERHEADS, [{"start": at, "end": at + 10} for at in range(1_200, 1_280, 10)]),
        records(stream.OVERHEADS, [{"start": 1_300, "end": 1_400, "kind": 1 << 16}]),
        records(stream.ENDS, [{"time": 9_999, "reason": 1}]),
    ]
