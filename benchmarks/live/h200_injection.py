"""The CUPTI injection library on a real NVIDIA GPU: is everything there, what does it cost, what do deaths lose.

    python3 benchmarks/live/h200_injection.py OUT [--seconds 540] [--only build,counts,…]

Needs the standard library, nvcc, a C++ compiler and a Python with torch. Leaves OUT/injection.json (rewritten after
each part) and OUT/streams.tar.gz with small streams. Programs: injected_program.cu (counts itself), torch_program.py.
"""

import argparse
import collections
import itertools
import json
import os
import random
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from aaco_pipeline.recording.profilers import cupti  # noqa: E402

HERE = Path(__file__).resolve().parent
KINDS = {
    **{1: "names", 2: "kernel", 3: "call", 4: "copy", 5: "set", 6: "wait", 7: "memory", 8: "marker", 9: "overhead"},
    **{10: "device", 11: "dropped", 12: "call_names", 13: "clocks", 14: "end", 15: "enabled", 16: "symbols"},
    **{17: "event", 18: "context"},
}
TEXTS = (1, 12, 16)
PACKED = 0x100


@dataclass
class Stream:
    """One stream, as far as this script needs it: rows by kind, texts by number."""

    path: Path
    header: tuple[int, ...] = ()
    rows: dict[str, list[bytes]] = field(default_factory=lambda: collections.defaultdict(list))
    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    texts: dict[int, str] = field(default_factory=dict)
    calls: dict[int, str] = field(default_factory=dict)
    notes: str = ""
    torn_bytes: int = 0
    last_kind: str = ""

    def records(self, kind: str, form: str) -> Iterator[tuple[Any, ...]]:
        """The rows of a kind, unpacked."""
        for chunk in self.rows[kind]:
            yield from struct.iter_unpack(form, chunk)

    def kernels(self) -> Iterator[tuple[Any, ...]]:
        """Of each: start, end, 2 times, device, context, stream, correlation, name, grid, block, …, node, graph."""
        return self.records("kernel", "<4q4I I3I3I3I Q2I")


def unpacked(payload: bytes, record_bytes: int, count: int) -> bytes:
    """The records of a packed chunk: see `pack` in injection.cpp."""
    words = record_bytes // 4
    at = (words + 3) // 4 * 4
    first = struct.unpack_from(f"<{words}I", payload, at)
    at += record_bytes
    columns: list[Iterator[int]] = []
    for word, width in enumerate(payload[:words]):
        form = {1: "B", 2: "H", 4: "I"}.get(width)
        coded = struct.unpack_from(f"<{count - 1}{form}", payload, at) if form else itertools.repeat(0, count - 1)
        at += width * (count - 1)
        steps = ((one >> 1) ^ -(one & 1) for one in coded)
        columns.append(itertools.accumulate(steps, lambda sum_, one: (sum_ + one) & 0xFFFFFFFF, initial=first[word]))
    row = struct.Struct(f"<{words}I")
    return b"".join(row.pack(*one) for one in zip(*columns, strict=True))


def stream(path: Path) -> Stream:
    """A stream read whole, up to a torn chunk."""
    data = path.read_bytes()
    found = Stream(path)
    if len(data) < 64:
        found.torn_bytes = len(data)
        return found
    found.header = struct.unpack_from("<4I3q", data, 8)
    at = 64
    while at + 16 <= len(data):
        kind, record_bytes, count, payload = struct.unpack_from("<4I", data, at)
        if at + 16 + payload > len(data):
            break
        body = data[at + 16 : at + 16 + payload]
        if kind & PACKED:
            kind &= ~PACKED
            body = unpacked(body, record_bytes, count)
        name = KINDS.get(kind, str(kind))
        found.counts[name] += count if kind != 15 else 1
        found.last_kind = name
        if kind in TEXTS:
            into = found.calls if kind == 12 else found.texts
            where = 0
            for _ in range(count if kind != 16 else 0):
                number, length = struct.unpack_from("<2I", body, where)
                into[number] = body[where + 8 : where + 8 + length].decode(errors="replace")
                where += 8 + (length + 3) // 4 * 4
        elif kind == 15:
            found.notes += body.decode(errors="replace")
        else:
            found.rows[name].append(body)
        at += 16 + payload
    found.torn_bytes = len(data) - at
    return found


@dataclass
class Ran:
    """One run of a program."""

    status: int
    wall_ns: int
    rss_mib: float
    said: dict[str, Any]
    output: str
    streams: list[Stream]
    ended_ns: int = 0


class Bench:
    """Everything built, and the running of programs with and without the library."""

    def __init__(self, work: Path, out: Path) -> None:
        self.work, self.out = work, out.resolve()
        self.python = shutil.which("python3") or sys.executable
        self.program = work / "injected_program"
        self.injection: cupti.Injection | None = None
        self.kept: list[tuple[str, Path]] = []
        self.headers: list[Path] = []

    def run(
        self,
        command: list[str],
        *,
        traced: bool = False,
        act: Callable[[subprocess.Popen[str]], None] | None = None,
        injection: cupti.Injection | None = None,
        keep: str | None = None,
        read: bool = True,
    ) -> Ran:
        """The command to its end; `act` may kill it meanwhile."""
        folder = Path(tempfile.mkdtemp(dir=self.work, prefix="streams-"))
        environment = dict(os.environ)
        chosen = injection or self.injection
        if traced and chosen:
            environment |= chosen.environment(folder)
        begin = time.monotonic_ns()
        with (folder / "output").open("w+") as output:
            process = subprocess.Popen(
                command, env=environment, stdout=output, stderr=subprocess.STDOUT, text=True, cwd=self.work
            )
            if act:
                act(process)
            _, status, usage = os.wait4(process.pid, 0)
            end = time.monotonic_ns()
            process.returncode = os.waitstatus_to_exitcode(status)
            output.seek(0)
            text = output.read()
        lines = [line for line in text.splitlines() if line.startswith("{")]
        said = json.loads(lines[-1]) if lines else {}
        time.sleep(0.3)  # children that outlive the program
        paths = sorted(folder.glob("*.cupti"))
        if keep:
            self.kept += [(f"{keep}-{number}.cupti", path) for number, path in enumerate(paths)]
        streams = [stream(path) for path in paths] if read else [Stream(path) for path in paths]
        if not keep:
            for path in paths:
                path.unlink()
        return Ran(process.returncode, end - begin, usage.ru_maxrss / 1024, said, text[-2000:], streams, end)


def summary(ran: Ran) -> dict[str, Any]:
    """What is kept of a run in the answer."""
    said = {key: value for key, value in ran.said.items() if key != "profiler_names"}
    return {
        "status": ran.status,
        "wall_ms": ran.wall_ns / 1e6,
        "rss_mib": round(ran.rss_mib, 1),
        "said": said,
        "output": "" if said else ran.output[-600:],
        "streams": [
            {
                "counts": dict(one.counts),
                "torn_bytes": one.torn_bytes,
                "last": one.last_kind,
                "dropped": sum(count for _, count in one.records("dropped", "<qQ")),
                "ends": list(one.records("end", "<qII")),
                "refused": [line for line in one.notes.splitlines() if line.startswith(("refused", "other"))][:20],
            }
            for one in ran.streams
        ],
    }


def build(bench: Bench) -> dict[str, Any]:
    """The library and the program; what is on the machine."""
    answer: dict[str, Any] = {}
    for name, command in {
        "gpu": ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
        "nvcc": ["nvcc", "--version"],
        "compiler": ["g++", "--version"],
        "python": [bench.python, "-c", "import torch, sys; print(sys.version, torch.__version__, torch.version.cuda)"],
    }.items():
        try:
            answer[name] = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()[-300:]
        except OSError as error:
            answer[name] = str(error)
    folders = cupti.python_folders([bench.python], os.environ)
    found = list(cupti.candidates(os.environ, folders))
    bench.headers = [folder for one in found for folder in one.includes]
    answer["candidates"] = [[str(one.includes[0]), str(one.library), one.api_version] for one in found]
    headers = [path.name for folder in folders for path in folder.glob("triton/backends/nvidia/include/*")]
    answer["triton_headers"] = headers[:40]
    os.environ["AACO_CACHE"] = str(bench.work / "cache")
    begin = time.monotonic()
    bench.injection = cupti.prepared([bench.python])
    answer["compile_s"] = time.monotonic() - begin
    begin = time.monotonic()
    cupti.prepared([bench.python])
    answer["cached_s"] = time.monotonic() - begin
    answer["chosen"] = [str(bench.injection.cupti.library), bench.injection.cupti.api_version]
    built = subprocess.run(
        ["nvcc", "-O2", "-arch=native", str(HERE / "injected_program.cu"), "-o", str(bench.program)],
        capture_output=True,
        text=True,
        check=False,
    )
    answer["nvcc_said"] = built.stderr[-500:]
    return answer


def counts(bench: Bench) -> dict[str, Any]:
    """A C++ program that counts itself: kernels, copies, fills, ranges, allocations."""
    ran = bench.run([str(bench.program), "mixed"], traced=True, keep="mixed")
    answer = summary(ran)
    for one in ran.streams:
        copies = list(one.records("copy", "<2qQ4I4BIQ2I"))
        answer["copies_by_kind"] = dict(collections.Counter(row[7] for row in copies))
        answer["copies_by_source"] = dict(collections.Counter(row[8] for row in copies))
        answer["copied_bytes"] = sum(row[2] for row in copies)
        answer["kernels_in_graphs"] = sum(1 for row in one.kernels() if row[18])
        answer["names"] = one.texts
        answer["markers"] = dict(collections.Counter(row[2] for row in one.records("marker", "<qQ4I2I")))
        answer["waits"] = dict(collections.Counter(row[2] for row in one.records("wait", "<2q6IQ")))
        answer["wait_rows"] = list(one.records("wait", "<2q6IQ"))[:12]
        answer["event_rows"] = list(one.records("event", "<4IQ"))[:12]
        answer["contexts"] = list(one.records("context", "<2I"))
        answer["memory"] = [list(row[:10]) for row in one.records("memory", "<q2Q7I3I")]
        answer["calls"] = dict(
            collections.Counter(one.calls.get(row[5] << 16 | row[4], "?") for row in one.records("call", "<2q4I"))
        )
        answer["overheads"] = dict(collections.Counter(row[2] for row in one.records("overhead", "<2q4I")))
        answer["clocks"] = list(one.records("clocks", "<4q"))
        answer["header"] = one.header
        starts = [row[0] for row in one.kernels()]
        answer["kernels_within_run"] = all(one.header[4] <= start <= ran.ended_ns for start in starts)
        answer["device"] = [row.hex() for row in one.rows["device"]]
        answer["enabled_lines"] = len(one.notes.splitlines())
        answer["notes_head"] = one.notes.splitlines()[:20]
    return answer


def ratio(bench: Bench) -> dict[str, Any]:
    """201,000 launches, plain and traced in turn."""
    plain, traced = [], []
    for _ in range(7):
        plain.append(bench.run([str(bench.program), "launches", "201000"]))
        traced.append(bench.run([str(bench.program), "launches", "201000"], traced=True))
    loops = [[one.said["loop_ns"] for one in runs] for runs in (plain, traced)]
    walls = [[one.wall_ns for one in runs] for runs in (plain, traced)]
    return {
        "plain_loop_ms": [ns / 1e6 for ns in loops[0]],
        "traced_loop_ms": [ns / 1e6 for ns in loops[1]],
        "loop_ratio": statistics.median(loops[1]) / statistics.median(loops[0]),
        "added_us_per_launch": (statistics.median(loops[1]) - statistics.median(loops[0])) / 201e3 / 1e3,
        "wall_ratio": statistics.median(walls[1]) / statistics.median(walls[0]),
        "plain_wall_ms": [ns / 1e6 for ns in walls[0]],
        "traced_wall_ms": [ns / 1e6 for ns in walls[1]],
        "kernels": [one.streams[0].counts["kernel"] if one.streams else None for one in traced],
        "rss_mib": [[round(one.rss_mib, 1) for one in runs] for runs in (plain, traced)],
        "last": summary(traced[-1]),
    }


def variants(bench: Bench) -> dict[str, Any]:
    """The same launches with other sizes and periods, and with less enabled: where the cost lies."""
    assert bench.injection is not None
    source = (ROOT / "aaco_pipeline/recording/profilers/injection.cpp").read_text()
    size = "kBufferBytes = 1 << 20"
    before = '  try_to("buffers",'
    give = "    free_.push_back(buffer);"

    def attribute(number: int, kind: str, value: int) -> tuple[str, str]:
        call = (
            'reinterpret_cast<CUptiResult (*)(int, size_t*, void*)>(dlsym(cupti.library, "cuptiActivitySetAttribute"))'
        )
        line = f'  {{ {kind} v = {value}; size_t s = sizeof v; try_to("attribute", {call}({number}, &s, &v)); }}\n'
        return before, line + before

    changes = {
        "as it is": [],
        "as it is, again": [],
        "buffers 8 MiB": [(size, "kBufferBytes = 8 << 20"), ("kPoolBuffers = 128", "kPoolBuffers = 16")],
        "flush 90 ms": [("kFlushMs = 50", "kFlushMs = 90")],
        "per thread buffers": [attribute(9, "uint8_t", 1)],
        "zeroed buffers": [attribute(5, "uint8_t", 1), (give, "    memset(buffer, 0, kBufferBytes);\n" + give)],
        "device buffers 16 MiB": [attribute(0, "size_t", 16 << 20)],
        "semaphores 65536": [attribute(3, "size_t", 65536)],
        "no calls": [
            ("size_t count = enable_calls(", "size_t count = 0; if (0) count = enable_calls("),
            ("count += enable_calls(", "if (0) count += enable_calls("),
        ],
    }
    answer: dict[str, Any] = {}
    built: dict[str, cupti.Injection] = {}
    compiler = shutil.which("g++") or "c++"
    for name, several in changes.items():
        text = source
        for old, new in several:
            if old not in text:
                answer[name] = f"not in the source: {old}"
            text = text.replace(old, new)
        target = bench.work / f"variant-{len(built)}.so"
        cupti._compile(compiler, bench.injection.cupti, text.encode(), target, bench.headers)
        built[name] = cupti.Injection(target, bench.injection.cupti)
    loops = collections.defaultdict(list)
    for _ in range(8):
        loops["plain"].append(bench.run([str(bench.program), "launches", "101000"]).said["loop_ns"])
        for name, injection in built.items():
            ran = bench.run([str(bench.program), "launches", "101000"], traced=True, injection=injection, read=False)
            loops[name].append(ran.said.get("loop_ns", 0))
    base = statistics.median(loops["plain"])
    added = {
        name: [(statistics.median(ns) - base) / 101e3 / 1e3, (min(ns) - min(loops["plain"])) / 101e3 / 1e3]
        for name, ns in loops.items()
    }
    every = {name: [one / 1e6 for one in ns] for name, ns in loops.items()}
    return answer | {"added_us_per_launch": added, "loop_ms": every}


def deaths(bench: Bench) -> dict[str, Any]:
    """What kill -9, SIGTERM, _exit and forks lose, and that they end as they would have."""
    answer: dict[str, Any] = {}
    rng = random.Random(1)
    for name, how, number in (
        *((f"kill_{one}", "steady", signal.SIGKILL) for one in range(6)),
        *((f"terminate_{one}", "steady", signal.SIGTERM) for one in range(2)),
        ("own_handler", "handler", signal.SIGTERM),
        ("leave", "leave", None),
        ("fork", "fork", None),
    ):
        progress = bench.work / f"progress-{name}"
        at: list[int] = []

        def act(
            process: subprocess.Popen[str], number: int | None = number, progress: Path = progress, at: list[int] = at
        ) -> None:
            if number is None:
                return
            while not (progress.exists() and progress.stat().st_size and progress.read_bytes()[:8] != bytes(8)):
                time.sleep(0.01)
            time.sleep(0.5 + rng.random())
            at.append(time.monotonic_ns())
            process.send_signal(number)

        command = [str(bench.program), how, str(progress), "2500"]
        ran = bench.run(command, traced=True, act=act, keep=name if name == "kill_0" else None)
        _, counted, last = struct.unpack("<3q", progress.read_bytes())
        one = summary(ran)
        ends = [row[1] for found in ran.streams for row in found.kernels()]
        one |= {
            "counted": counted,
            "traced": len(ends),
            "lost_ms": (last - max(ends)) / 1e6 if ends else None,
            "signal_to_end_ms": (ran.ended_ns - at[0]) / 1e6 if at else None,
        }
        answer[name] = one
    leave = bench.run([bench.python, str(HERE / "torch_program.py"), "leave"], traced=True)
    answer["torch_leave"] = summary(leave) | {"adds_traced": adds(leave)}

    def terminate(process: subprocess.Popen[str]) -> None:
        time.sleep(12)
        process.terminate()

    command = [bench.python, str(HERE / "torch_program.py"), "terminated"]
    answer["torch_terminated"] = summary(bench.run(command, traced=True, act=terminate))
    return answer


def adds(ran: Ran) -> int:
    """Element-wise kernels in a run's streams."""
    return sum(1 for one in ran.streams for row in one.kernels() if "elementwise" in one.texts.get(row[8], ""))


def torch_counts(bench: Bench) -> dict[str, Any]:
    """A PyTorch program traced, against torch.profiler's counts of the same program in another process."""
    command = [bench.python, str(HERE / "torch_program.py"), "mixed"]
    traced = bench.run(command, traced=True, keep="torch")
    profiled = bench.run([*command, "whole"])
    answer: dict[str, Any] = {"traced": summary(traced), "profiled": summary(profiled)}
    names: collections.Counter[str] = collections.Counter()
    busy = 0
    for one in traced.streams:
        for row in one.kernels():
            names[one.texts.get(row[8], "?")] += 1
            busy += row[1] - row[0]
        answer["copies"] = dict(collections.Counter(row[7] for row in one.records("copy", "<2qQ4I4BIQ2I")))
        answer["sets"] = one.counts["set"]
        answer["calls"] = dict(
            collections.Counter(one.calls.get(row[5] << 16 | row[4], "?") for row in one.records("call", "<2q4I"))
        )
        answer["clocks"] = list(one.records("clocks", "<4q"))
        linked = {row[3] for row in one.records("call", "<2q4I")}
        answer["unlinked_kernels"] = sum(row[7] not in linked for row in one.kernels())
    answer["kernel_ns"] = busy
    answer["names"] = dict(names)
    answer["profiler_names"] = profiled.said.get("profiler_names", {})
    return answer


def inside(bench: Bench) -> dict[str, Any]:
    """A traced program that uses torch.profiler itself."""
    command = [bench.python, str(HERE / "torch_program.py"), "mixed"]
    answer = {}
    for how in ("whole", "part"):
        ran = bench.run([*command, how], traced=True, keep=f"inside-{how}")
        names = ran.said.get("profiler_names", {})
        answer[how] = summary(ran) | {
            "profiler_events": sum(names.values()),
            "output": ran.output[:1500],
            "clocks": [list(one.records("clocks", "<4q")) for one in ran.streams],
        }
    return answer


def bound(bench: Bench) -> dict[str, Any]:
    """Launch-bound and device-bound programs: plain, traced and under torch.profiler, in turn."""
    answer: dict[str, Any] = {}
    for kind, times in (("small", 4), ("large", 3)):
        command = [bench.python, str(HERE / "torch_program.py"), kind]
        medians = collections.defaultdict(list)
        launches = 0
        for _ in range(times):
            medians["plain"].append(bench.run(command).said.get("median_ns"))
            traced = bench.run(command, traced=True)
            medians["traced"].append(traced.said.get("median_ns"))
            medians["profiled"].append(bench.run([*command, "whole"]).said.get("median_ns"))
            launches = sum(one.counts["kernel"] for one in traced.streams)
        answer[kind] = {"median_ns": medians, "kernels_of_run": launches}
    return answer


def tally(path: Path) -> dict[str, int]:
    """Bytes, kernels and dropped records of a stream that is too long to keep in memory; the file is removed."""
    kernels = dropped = 0
    with path.open("rb") as file:
        file.seek(64)
        while len(head := file.read(16)) == 16:
            kind, _, count, payload = struct.unpack("<4I", head)
            kernels += count if kind & ~PACKED == 2 else 0
            if kind == 11:
                dropped += sum(lost for _, lost in struct.iter_unpack("<qQ", file.read(payload)))
            else:
                file.seek(payload, 1)
    size = path.stat().st_size
    path.unlink()
    return {"bytes": size, "kernels": kernels, "dropped": dropped}


def launched(bench: Bench, count: int, *, traced: bool) -> dict[str, Any]:
    """So many launches: time, memory, and what the stream holds."""
    ran = bench.run([str(bench.program), "launches", str(count)], traced=traced, keep="launched", read=False)
    bench.kept = [one for one in bench.kept if not one[0].startswith("launched-")]
    told = {"launches": count, "loop_ms": ran.said["loop_ns"] / 1e6, "rss_mib": round(ran.rss_mib, 1)}
    return told | {"us_per_launch": ran.said["loop_ns"] / 1e3 / count} | (tally(ran.streams[0].path) if traced else {})


def many(bench: Bench) -> dict[str, Any]:
    """Ten million launches, plain and traced: time, memory of the program, losses, bytes."""
    return {name: launched(bench, 10_000_000, traced=name == "traced") for name in ("plain", "traced")}


def places(bench: Bench) -> dict[str, Any]:
    """As many launches plain and traced in turn, with the stream on the disk of OUT and in memory: is it the disk?"""
    before = bench.work
    answer: dict[str, Any] = {}
    for count, times in ((201_000, 4), (3_000_000, 1)):
        rows = collections.defaultdict(list)
        for _ in range(times):
            rows["plain"].append(launched(bench, count, traced=False))
            for name, folder in (("disk", bench.out), ("memory", Path("/dev/shm"))):
                with tempfile.TemporaryDirectory(prefix="streams-", dir=folder) as work:
                    bench.work = Path(work)
                    rows[name].append(launched(bench, count, traced=True))
                bench.work = before
        rows["plain"].append(launched(bench, count, traced=False))
        plain = statistics.median(one["us_per_launch"] for one in rows["plain"])
        added = {
            name: statistics.median(one["us_per_launch"] for one in rows[name]) - plain for name in ("disk", "memory")
        }
        answer[str(count)] = {"plain_us": plain, "added_us": added, "runs": rows}
    return answer


PARTS: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "build": build,
    "counts": counts,
    "ratio": ratio,
    "torch_counts": torch_counts,
    "deaths": deaths,
    "inside": inside,
    "variants": variants,
    "bound": bound,
    "many": many,
    "places": places,
}


def main() -> None:
    """Run the parts in their order, as long as there is time."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--only", default=",".join(PARTS))
    asked = parser.parse_args()
    begin = time.monotonic()
    asked.out.mkdir(parents=True, exist_ok=True)
    answers: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="injection-") as work:
        bench = Bench(Path(work), asked.out)
        for name in dict.fromkeys(["build", *asked.only.split(",")]):
            since = time.monotonic()
            if since - begin > asked.seconds:
                answers[name] = {"left_out": "no time left"}
                continue
            try:
                answers[name] = PARTS[name](bench)
            except Exception as error:  # noqa: BLE001 - the other parts go on
                answers[name] = {"failed": f"{type(error).__name__}: {error}"}
            answers[name]["seconds"] = time.monotonic() - since
            print(name, f"{answers[name]['seconds']:.1f} s", answers[name].get("failed", ""), flush=True)
            (asked.out / "injection.json").write_text(json.dumps(answers, indent=1, default=str))
        with tarfile.open(asked.out / "streams.tar.gz", "w:gz") as archive:
            for name, path in bench.kept:
                if path.exists() and path.stat().st_size < 12 << 20:
                    archive.add(path, name)


if __name__ == "__main__":
    main()
