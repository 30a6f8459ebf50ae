"""Recordings of a job's ranks as the CUPTI recorder leaves them, a stream each, written down with every time known."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from aaco_pipeline.formats.cupti import stream
from tests.formats.cupti import streams
from tests.formats.program.recorded import MS, recorded, run_document

US: Final = 1_000
STEPS: Final = 20
#: Nanoseconds of a product, and of an exchange for which nobody waits.
PRODUCT: Final = 250 * US
EXCHANGE: Final = 100 * US
#: Delay from the host's launch to the kernel's begin.
LATENCY: Final = 8 * US
_LAUNCH, _WAIT = 1 << 16 | 3, 1 << 16 | 165


def job(folder: Path, work: Sequence[int], pauses_ns: Mapping[int, int] | None = None, *, see_all: bool = True) -> Path:
    """A recorded program of so many ranks: each step rank r makes `work[r]` products, then all reduce and wait.

    `pauses_ns`: how long a rank's host does something else before it launches a step. `see_all`: each process sees all
    devices, and uses that of its rank; else it sees its own alone, as device 0.
    """
    names = ["run", "run", "trace"]
    request = {"runs": 2, "warmup_runs": 0, "iterations_from": "step*"}
    # The ranks are children of the program: no process of the capture has the recorded program's number.
    recorded(folder, (100.0, 100.0, 400.0), kinds=names, request=request)
    kept = folder / "trace" / "cupti"
    kept.mkdir()
    begun = int(run_document(2)["start_monotonic_ns"])
    rows = _steps(begun + MS, work, pauses_ns or {})
    for rank in range(len(work)):
        (kept / f"{5000 + rank}-77.cupti").write_bytes(b"".join(_stream(rank, len(work), begun, rows[rank], see_all)))
    return folder


def _steps(begin: int, work: Sequence[int], pauses_ns: Mapping[int, int]) -> list[dict[str, list[streams.Row]]]:
    """The records of each rank, by kind."""
    found: list[dict[str, list[streams.Row]]] = [{"kernels": [], "calls": [], "ranges": []} for _ in work]
    correlation = 0
    for step in range(STEPS):
        launched = [begin + pauses_ns.get(rank, 0) for rank in range(len(work))]
        arrived = [at + LATENCY + count * (PRODUCT + US) for at, count in zip(launched, work, strict=True)]
        over = max(arrived) + EXCHANGE
        for rank, count in enumerate(work):
            rows, thread = found[rank], {"thread": 77 + rank}
            rows["ranges"].append({"time": begin, "range": step + 1, "kind": 1, "name": 100 + step, **thread})
            at = launched[rank]
            for number in range(count + 1):
                correlation += 1
                start = launched[rank] + LATENCY + number * (PRODUCT + US)
                last = number == count
                ran = {"end": over if last else start + PRODUCT, "name": 2 if last else 1, "correlation": correlation}
                # The exchange has a stream of its own, as with a group of ranks.
                rows["kernels"].append(streams.kernel(start, **ran, stream=20 if last else 7))
                call = {"start": at, "end": at + 3 * US, "correlation": correlation, "call": 3, "domain": 1}
                rows["calls"].append({**call, **thread})
                at += 5 * US
            wait = {"start": at, "end": over + 4 * US, "correlation": 900_000 + step, "call": 165, "domain": 1}
            rows["calls"].append({**wait, **thread})
            rows["ranges"].append({"time": over + 5 * US, "range": step + 1, "kind": 2, **thread})
        begin = over + 10 * US
    return found


def _stream(rank: int, ranks: int, begun: int, rows: Mapping[str, Sequence[streams.Row]], see_all: bool) -> list[bytes]:
    own = rank if see_all else 0
    seen = range(ranks) if see_all else [rank]
    devices = [
        streams.device(number, uuid=np.void(bytes([0xAB, *range(14), uuid]))) for number, uuid in enumerate(seen)
    ]
    kernels = [{**row, "device": own} for row in rows["kernels"]]
    texts = {1: "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT", 2: "ncclDevKernel_AllReduce_Sum_f32_RING_LL(Args)"}
    texts |= {100 + step: f"step {step}" for step in range(STEPS)}
    clock = {"monotonic": begun, "realtime": begun + 7, "cupti": begun, "uncertainty": 20}
    end = max(int(str(row["time"])) for row in rows["ranges"])
    return [
        streams.header(pid=5000 + rank, monotonic=begun + rank, realtime=begun + rank + 7, cupti=begun + rank),
        streams.notes("host node7", "clock monotonic", f"rank {rank}"),
        streams.texts(stream.CALL_NAMES, {_LAUNCH: "cudaLaunchKernel_v7000", _WAIT: "cudaDeviceSynchronize_v3020"}),
        streams.records(stream.CLOCKS, [clock]),
        streams.texts(stream.NAMES, texts),
        streams.records(stream.DEVICES, devices),
        streams.records(stream.CONTEXTS, [{"context": 1, "device": own}]),
        streams.records(stream.KERNELS, kernels),
        streams.records(stream.CALLS, rows["calls"]),
        streams.records(stream.RANGES, rows["ranges"]),
        streams.records(stream.ENDS, [{"time": end, "reason": 1}]),
    ]
