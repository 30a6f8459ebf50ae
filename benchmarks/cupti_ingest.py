"""What a CUPTI stream of ten million launches takes to become trace tables, beside one of a million.

`python -m benchmarks.cupti_ingest` makes both streams, a copy of the larger one cut at a random byte as a kill leaves
it, and works on each in fresh processes: a plain pass (every chunk unpacked with numpy, its times summed), reading
alone, and all of taking in up to the stage `kernel_trace`: confined copy and reading, publishing to a new lake, the
stage's checks. It exits with 1 when any process needs more than 4 GB, when ten times the launches need more than 2.5
times the memory, when reading takes more than ten times the CPU of the plain pass, or when a launch is lost. The stages
after `kernel_trace` are not among it. Some 2 GB of disk are needed.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np

from aaco_pipeline.formats.cupti import stream
from aaco_pipeline.formats.cupti.stream import unpacked
from benchmarks.generate_cupti import generate

PEAK_BYTES: Final = 4_000_000_000
REQUIRED_GROWTH: Final = 2.5
REQUIRED_RATIO: Final = 10.0
WORKS: Final = ("pass", "read", "take in")
_STAGES: Final = ("capture", "inference_run", "session_environment", "telemetry", "kernel_trace")


def passed(path: Path) -> dict[str, int]:
    """A plain pass: how many records of kernels there are, and the sum of all first fields, so that all are read."""
    counts, total = 0, 0
    with path.open("rb") as file:
        file.seek(stream.HEADER.itemsize)
        while len(head := file.read(stream.CHUNK.itemsize)) == stream.CHUNK.itemsize:
            kind, size, count, payload_bytes = np.frombuffer(head, "<u4").tolist()
            payload = file.read(payload_bytes)
            if len(payload) < payload_bytes:
                break
            if kind & stream.PACKED:
                records = unpacked(payload, size, count)
                assert records is not None
                total += int(np.frombuffer(records, stream.RECORDS[kind & ~stream.PACKED])["start"].sum() % (1 << 32))
                counts += count * (kind & ~stream.PACKED == stream.KERNELS)
    return {"kernels": counts, "sum": total}


def read(path: Path) -> dict[str, Any]:
    """Reading alone, in this process."""
    from aaco_pipeline.formats import cupti

    reading = cupti.read(path)
    end = next(item for item in reading.evidence if item.item == "end of the stream")
    return {"kernels": reading.tables["dispatches"].height, "end": end.status}


def taken_in(path: Path) -> dict[str, Any]:
    """Taking in as `aaco ingest` does, with the stages up to `kernel_trace` and its checks."""
    from aaco_pipeline.assets.stage import Session, publish, stages
    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.pipeline.ingestion import discovered, ingest

    kept: dict[str, Any] = {}

    def finish(name: str) -> None:
        session = Session(lake, name, Path("configs"))
        for one in (stages()[stage] for stage in _STAGES):
            entries = publish(session, one, one(session))
            holds = all(check.finding(session).holds for check in one.checks)
            kept.update({entry.table: entry.rows for entry in entries}, holds=kept.get("holds", True) and holds)

    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        lake = TraceLake(Path(folder) / "lake")
        (one,) = ingest(lake, discovered(lake, path), finish=finish)
        if one.error is not None:
            raise one.error
    return {"kernels": kept["dispatches"], "holds": kept["holds"]}


def in_a_process(work: str, path: Path) -> dict[str, Any]:
    """What the work says, with the CPU seconds and the largest peak of its process and all that it started."""
    command = [sys.executable, "-m", "benchmarks.cupti_ingest", "--work", work, "--stream", str(path)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(path.parent)}
    )
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{work} of {path} ended with {os.waitstatus_to_exitcode(status)}")
    return {**json.loads(said), "cpu": used.ru_utime + used.ru_stime, "peak": used.ru_maxrss << 10}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--launches", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--folder", type=Path, help="where to work; default: the system's temporary folder")
    parser.add_argument("--work", choices=WORKS, help=argparse.SUPPRESS)
    parser.add_argument("--stream", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.work:
        print(json.dumps({"pass": passed, "read": read, "take in": taken_in}[asked.work](asked.stream)))
        return 0
    kept: dict[tuple[str, str], dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        large, small, cut = (Path(folder) / f"{number}-7.cupti" for number in (41, 42, 43))
        generate(large, asked.launches, asked.seed)
        generate(small, asked.launches // 10, asked.seed)
        size = large.stat().st_size
        lost = random.Random(asked.seed).randrange(1, size // 2)
        generate(cut, asked.launches, asked.seed, cut=lost)
        print(f"seed {asked.seed}: {asked.launches} launches, {size / 1e6:.0f} MB; cut {lost} bytes before its end")
        for title, path in (("a tenth", small), ("whole", large), ("cut", cut)):
            for work in WORKS:
                kept[title, work] = one = in_a_process(work, path)
                peak = f"peak {one['peak'] / 1e6:5.0f} MB"
                print(f"{title:8} {work:8} {one['cpu']:6.2f} s of CPU, {peak}, {one['kernels']} kernels", flush=True)
    ratio = kept["whole", "read"]["cpu"] / kept["whole", "pass"]["cpu"]
    growth = max(kept["whole", work]["peak"] / kept["a tenth", work]["peak"] for work in WORKS)
    peak = max(one["peak"] for one in kept.values())
    print(f"peak {peak / 1e6:.0f} MB (at most {PEAK_BYTES / 1e6:.0f})")
    print(f"ten times the launches: {growth:.2f} times the memory (at most {REQUIRED_GROWTH})")
    print(f"reading / plain pass: {ratio:.2f} times the CPU (at most {REQUIRED_RATIO})")
    counts = {"a tenth": asked.launches // 10, "whole": asked.launches, "cut": kept["cut", "pass"]["kernels"]}
    whole = all(one["kernels"] == counts[title] for (title, _), one in kept.items())
    told = [kept[title, "read"]["end"] for title in counts] == ["present", "present", "partial"]
    holds = all(kept[title, "take in"]["holds"] for title in counts)
    print(f"every launch is there: {whole}; the cut is told: {told}; the stage's checks hold: {holds}")
    bounded = peak <= PEAK_BYTES and growth <= REQUIRED_GROWTH and ratio <= REQUIRED_RATIO
    return 0 if bounded and whole and told and holds else 1


if __name__ == "__main__":
    sys.exit(main())
