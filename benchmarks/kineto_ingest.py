"""Time the Kineto reader against orjson, which only parses, on one invented trace, each run in its own process.

The trace has PyTorch's own layout: for each kernel its operator, its launch, the kernel and the two ends of the arrow
between them, five events. Run as `python benchmarks/kineto_ingest.py --kernels 1000000`; orjson must be installed. It
exits with 1 when the reader is not faster than `orjson.loads` in wall time and in processor time, needs more than
2 GB, or loses an event.
"""

import argparse
import gc
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Final

CONTESTANTS: Final = ("reader", "orjson", "orjson without garbage collection")
EVENTS_A_KERNEL: Final = 5
MEMORY_LIMIT: Final = 2 << 30
_FIRST_NS: Final = 3_743_411_222_894_405
_BETWEEN_NS: Final = 9_137
_HEAD: Final = """
{
  "schemaVersion": 1,
  "deviceProperties": [
    {
      "id": 0, "name": "AMD Instinct MI300X", "totalGlobalMem": 206141652992,
      "computeMajor": 9, "computeMinor": 4,
      "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048,
      "regsPerBlock": 65536, "warpSize": 64,
      "sharedMemPerBlock": 65536, "numSms": 304
    }
  ],
  "hip_runtime_version": 70253211,
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1767189312000000000,
  "traceEvents": [
"""
_KERNEL: Final = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<c10::BFloat16, c10::BFloat16, "
    "c10::BFloat16, at::native::binary_internal::MulFunctor<float> >, std::array<char*, 2ul> >(int, variant{})"
)
_EVENTS: Final = """  {{
    "ph": "X", "cat": "cpu_op", "name": "aten::mul", "pid": 542, "tid": 542,
    "ts": {operator}, "dur": 8.{thousandths:03d},
    "args": {{
      "External id": {number},"Record function id": 0, "Ev Idx": {number}
    }}
  }},
  {{
    "ph": "X", "cat": "cuda_runtime", "name": "hipLaunchKernel", "pid": 542, "tid": 542,
    "ts": {launch}, "dur": 6.{thousandths:03d},
    "args": {{
      "External id": {number},          "cid": 107, "correlation": {number},      "grid": [{blocks}, 40, 1],      \
"block": [256, 1, 1],      "shared memory": 0
    }}
  }},
  {{
    "ph": "s", "id": {number}, "pid": 542, "tid": 542, "ts": {launch},
    "cat": "ac2g", "name": "ac2g"
  }},
  {{
    "ph": "X", "cat": "kernel", "name": "{name}", "pid": 0, "tid": {stream},
    "ts": {kernel}, "dur": 4.{thousandths:03d},
    "args": {{
      "External id": {number},      "device": 0, "stream": {stream},      "correlation": {number}, \
"kind": "Dispatch Kernel",      "grid": [{blocks}, 40, 1],      "block": [256, 1, 1]
    }}
  }},
  {{
    "ph": "f", "id": {number}, "pid": 0, "tid": {stream}, "ts": {kernel},
    "cat": "ac2g", "name": "ac2g", "bp": "e"
  }}"""


def generate(path: Path, kernels: int) -> None:
    """Write the trace."""
    names = [_KERNEL.format(variant) for variant in range(40)]
    with path.open("w") as stream:
        stream.write(_HEAD)
        for number in range(kernels):
            start = _FIRST_NS + number * _BETWEEN_NS
            stream.write(
                _EVENTS.format(
                    operator=microseconds(start),
                    launch=microseconds(start + 1_000),
                    kernel=microseconds(start + 5_000),
                    thousandths=number * 13 % 1_000,
                    number=number + 1,
                    blocks=number % 900 + 1,
                    stream=number % 4,
                    name=names[number * 7 % len(names)],
                )
            )
            stream.write(",\n" if number + 1 < kernels else "\n")
        stream.write('  ],\n  "traceName": "invented.json"\n}')


def microseconds(time_ns: int) -> str:
    return f"{time_ns // 1_000}.{time_ns % 1_000:03d}"


def timed(contestant: str, path: Path, kernels: int) -> dict[str, float]:
    """Wall and processor seconds and peak memory of one run in this process, from the file to what it gives."""
    if contestant == "reader":
        from aaco_pipeline.formats import kineto

        wall, cpu = time.perf_counter(), time.process_time()
        reading = kineto.read(path)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        events = int(reading.details["source_rows"].get_column("rows_in").sum())
        first, last = reading.tables["dispatches"].get_column("start_ns").gather([0, kernels - 1]).to_list()
        exact = (first, last) == (_FIRST_NS + 5_000, _FIRST_NS + 5_000 + (kernels - 1) * _BETWEEN_NS)
    else:
        import orjson

        if contestant != "orjson":
            gc.disable()
        wall, cpu = time.perf_counter(), time.process_time()
        document = orjson.loads(path.read_bytes())
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        events, exact = len(document["traceEvents"]), True
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"wall": wall, "cpu": cpu, "peak": peak, "complete": float(exact and events == kernels * EVENTS_A_KERNEL)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--contestant", choices=CONTESTANTS, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contestant:
        print(json.dumps(timed(options.contestant, options.file, options.kernels)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        generate(path, options.kernels)
        print(f"{options.kernels * EVENTS_A_KERNEL} events, {path.stat().st_size / 1e6:.0f} MB")
        runs: dict[str, list[dict[str, float]]] = {contestant: [] for contestant in CONTESTANTS}
        for _ in range(options.repeats):
            for contestant, results in runs.items():
                command = [sys.executable, __file__, "--contestant", contestant, "--file", str(path)]
                command += ["--kernels", str(options.kernels)]
                output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                results.append(json.loads(output))
    figures = {who: {key: median(run[key] for run in results) for key in results[0]} for who, results in runs.items()}
    for who, figure in figures.items():
        print(f"{who:35} wall {figure['wall']:7.2f} s  cpu {figure['cpu']:7.2f} s  peak {figure['peak'] / 1e6:6.0f} MB")
    reader, parser_only = figures["reader"], figures["orjson"]
    faster = reader["wall"] < parser_only["wall"] and reader["cpu"] < parser_only["cpu"]
    complete = all(run["complete"] for results in runs.values() for run in results)
    return 0 if faster and complete and reader["peak"] <= MEMORY_LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
