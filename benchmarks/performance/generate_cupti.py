"""Generate a CUPTI stream as `aaco record` writes it, of any number of launches; `--cut` drops the last bytes."""

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aaco_pipeline.formats.cupti import stream
from tests.formats.cupti import streams

BUFFER: Final = 4_000
STEP: Final = 1_000
KERNELS, STREAMS = 40, 4
#: As `kPackedFrom` of the library.
PACKED_FROM: Final = 64
#: Calls of a step beside its launches: two copies, a fill, a wait.
BESIDE: Final = 4
FIRST_NS: Final = 7_043_411_222_894
THREAD: Final = 2_525
LAUNCH, COPY, FILL, WAIT = 211, 41, 51, 131
_NAME: Final = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<c10::BFloat16, c10::BFloat16, "
    "c10::BFloat16, at::native::binary_internal::MulFunctor<float> >, std::array<char*, 2ul> >(int, variant{number})"
)
Numbers = NDArray[np.int64]


def pieces(launches: int, seed: int = 0) -> Iterator[bytes]:
    """The stream: its head, a piece for each buffer, and its end."""
    yield _head()
    random = np.random.default_rng(seed)
    now = FIRST_NS
    for first in range(0, launches, BUFFER):
        at = np.arange(first, min(first + BUFFER, launches), dtype=np.int64)
        begun = now + np.cumsum(random.integers(2_000, 6_000, len(at)))
        now = int(begun[-1])
        yield _buffer(at, begun, random)
    yield streams.records(stream.ENDS, [{"time": now + 50_000, "reason": 1}])


def _head() -> bytes:
    names = {COPY: "cudaMemcpyAsync_v3020", LAUNCH: "cudaLaunchKernel_v7000", FILL: "cudaMemsetAsync_v3020"}
    names |= {WAIT: "cudaStreamSynchronize_v3020"}
    clocks = {"monotonic": FIRST_NS, "realtime": FIRST_NS + 10**18, "cupti": FIRST_NS, "uncertainty": 30}
    parts = [
        streams.header(pid=2_525, monotonic=FIRST_NS, realtime=FIRST_NS + 10**18, cupti=FIRST_NS),
        streams.texts(stream.CALL_NAMES, {1 << 16 | number: name for number, name in names.items()}),
        streams.notes("host node01", "clock monotonic", *(f"call {name}" for name in names.values())),
        streams.records(stream.CLOCKS, [clocks]),
        streams.texts(stream.NAMES, {number: _NAME.format(number=number) for number in _numbers()}),
        streams.texts(stream.SYMBOLS, {number: f"_ZN2at6native{number}kernelEv" for number in _numbers()}),
        streams.records(stream.DEVICES, [streams.device()]),
        streams.records(stream.CONTEXTS, [{"context": 1, "device": 0}]),
    ]
    return b"".join(parts)


def _numbers() -> range:
    return range(1, KERNELS + 1)


def _buffer(at: Numbers, begun: Numbers, random: np.random.Generator) -> bytes:
    """Records of one of CUPTI's buffers: launches number `at`, whose calls begin at `begun`."""
    step, place = at // STEP, at % STEP
    correlation = at + BESIDE * step + 3
    size = random.integers(0, KERNELS, KERNELS)
    name = 1 + at * 7 % KERNELS
    started = begun + 4_000 + random.integers(0, 300, len(at))
    kernels: dict[str, int | Numbers] = {
        **{"start": started, "end": started + random.integers(1_200, 1_900, len(at)), "correlation": correlation},
        **{"context": 1, "stream": 7 + at % STREAMS, "name": name, "grid_x": 1 + name * 13, "grid_y": 40, "grid_z": 1},
        **{"block_x": 256, "block_y": 1, "block_z": 1, "registers": 32 + size[name - 1]},
        **{"static_shared": name % 3 * 1024, "dynamic_shared": 512},
    }
    opens, closes = place == 0, place == STEP - 1
    first, last = begun[opens], begun[closes] + 1_600
    number, before, after = step[opens], correlation[opens], correlation[closes]
    calls = [
        _calls(LAUNCH, begun, 900, correlation),
        _calls(COPY, first - 1_200, 500, before - 2),
        _calls(FILL, first - 600, 300, before - 1),
        _calls(COPY, last, 200, after + 1),
        _calls(WAIT, last + 300, 200, after + 2),
    ]
    together = {field: np.concatenate([np.asarray(one[field]) for one in calls]) for field in calls[0]}
    ordered = np.argsort(together["end"], kind="stable")
    way = {"context": 1, "stream": 7, "bytes": 4_096}
    there = {**way, "start": first - 700, "end": first - 650, "correlation": before - 2, "kind": 1, "source_kind": 2}
    back = {**way, "start": last + 210, "end": last + 260, "correlation": after + 1, "kind": 2, "destination_kind": 2}
    wait = {"start": last + 310, "end": last + 490, "type": 3, "context": 1, "stream": 7, "correlation": after + 2}
    begins = {"time": first - 1_300, "range": number + 1, "kind": 1, "thread": THREAD, "name": 1_000 + number}
    ends = {"time": last + 600, "range": step[closes] + 1, "kind": 2, "thread": THREAD}
    texts = {1_000 + int(one): f"step {one}" for one in number}
    return b"".join(
        [
            streams.texts(stream.NAMES, texts) if texts else b"",
            _chunk(stream.KERNELS, kernels),
            _chunk(stream.CALLS, {field: values[ordered] for field, values in together.items()}),
            _chunk(stream.COPIES, there),
            _chunk(stream.COPIES, back),
            _chunk(stream.FILLS, {**way, "start": first - 400, "end": first - 390, "correlation": before - 1}),
            _chunk(stream.WAITS, wait),
            _chunk(stream.RANGES, begins),
            _chunk(stream.RANGES, ends),
        ]
    )


def _calls(call: int, start: Numbers, lasted: int, correlation: Numbers) -> dict[str, Numbers]:
    fixed = {"thread": THREAD, "call": call, "domain": 1}
    of_each = {field: np.full(len(start), value) for field, value in fixed.items()}
    return {**of_each, "start": start, "end": start + lasted, "correlation": correlation}


def _chunk(kind: int, columns: Mapping[str, int | Numbers]) -> bytes:
    """A chunk of records from their columns, packed where the library packs it; none of no records."""
    count = max(len(values) for values in columns.values() if isinstance(values, np.ndarray))
    made = np.zeros(count, stream.RECORDS[kind])
    for field, values in columns.items():
        made[field] = values
    size = made.itemsize
    if count >= PACKED_FROM:
        payload = streams.packed(made.view("<u4").reshape(count, -1))
        return streams.chunk(kind | stream.PACKED, payload, record_bytes=size, count=count)
    return streams.chunk(kind, made.tobytes(), record_bytes=size, count=count) if count else b""


def generate(path: Path, launches: int, seed: int = 0, cut: int = 0) -> None:
    """The stream at `path`, without its last `cut` bytes."""
    with path.open("wb") as file:
        for piece in pieces(launches, seed):
            file.write(piece)
        file.truncate(file.tell() - cut)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("path", type=Path)
    parser.add_argument("--launches", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cut", type=int, default=0)
    asked = parser.parse_args()
    generate(asked.path, asked.launches, asked.seed, asked.cut)
    print(f"{asked.path}: {asked.launches} launches, {asked.path.stat().st_size / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
