"""Programs with a known cause on a real NVIDIA GPU: as they are, with the cause removed, traced, under torch.profiler.

    python3 benchmarks/live/h200_programs.py OUT [--seconds 390] [--rounds 5] [--only NAME,…]

Needs the standard library, nvcc, a C++ compiler and a Python with torch. In each round every program runs in a fresh
process as it is and with `--fixed`, in turn; in the first round also under the CUPTI injection library (both ways) and
PyTorch's under torch.profiler; further such runs, for what tracing costs, fill the time that is left. OUT gets
runs.jsonl (a line a run, as it ends), captures_N.tar (gzipped streams of the first traced runs), gpu.csv (what
nvidia-smi says every half second). Nothing is judged here: `judge.py` does that, where the project is installed.
"""

import argparse
import contextlib
import gzip
import json
import os
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

HERE: Final = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))
from aaco_pipeline.errors import UnavailableError  # noqa: E402
from aaco_pipeline.recording.profilers import cupti  # noqa: E402
from benchmarks.live.programs.catalogue import PROGRAMS, TORCH, Program  # noqa: E402

#: The first run of a library's kernels loads them from a cold disk.
_RUN_SECONDS: Final = 60.0
#: Captures larger than this are counted and not kept.
_KEPT_BYTES: Final = 2 << 20
_ARCHIVE_BYTES: Final = 12 << 20
_WAYS: Final = ("plain", "fixed", "traced", "traced_fixed", "profiled")
_SAMPLED: Final = (
    "timestamp,clocks.sm,clocks.mem,power.draw,temperature.gpu,utilization.gpu,clocks_event_reasons.active"
)


class Bench:
    """What was built, and one run of a program in one way."""

    def __init__(self, out: Path, work: Path) -> None:
        self.out, self.work = out, work
        self.python = shutil.which("python3") or sys.executable
        self.binary = work / "device_programs"
        self.injection: cupti.Injection | None = None
        self.server: subprocess.Popen[str] | None = None
        self._captures = work / "captures"

    def build(self) -> dict[str, Any]:
        """The binary, the injection library and a started PyTorch; what the machine is."""
        said: dict[str, Any] = {"way": "machine", "python": sys.version}
        query = ["nvidia-smi", "--query-gpu=name,driver_version,clocks.max.sm,power.limit", "--format=csv,noheader"]
        source = str(HERE / "programs" / "device_programs.cu")
        build = ["nvcc", "-O2", "-arch=native", source, "-o", str(self.binary)]
        for name, command in (("gpu", query), ("nvcc", build)):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            said[name] = (done.stdout + done.stderr).strip()[-600:]
        try:
            self.injection = cupti.prepared(self.work / "cache", [self.python])
            found = self.injection.cupti
            said["cupti"] = [str(found.library), str(found.includes[0]), found.api_version]
        except UnavailableError as error:
            said["cupti"] = str(error)
        said["torch"] = self._serve()
        return said

    def _serve(self) -> str:
        """Start the server of the PyTorch programs; what it says first."""
        script = str(HERE / "programs" / "torch_programs.py")
        errors = (self.out / "torch_errors.txt").open("w")
        self.server = subprocess.Popen(
            [self.python, script, "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert self.server.stdout is not None
        return self.server.stdout.readline().strip()

    def run(self, program: Program, way: str) -> dict[str, Any]:
        """One run in a fresh process: what the program said, its wall time, how many records of what it left."""
        folder = Path(tempfile.mkdtemp(dir=self.work, prefix="run-"))
        arguments = [program.name, "--steps", str(program.steps)]
        arguments += ["--fixed"] if way.endswith("fixed") else []
        arguments += ["--profiled"] if way == "profiled" else []
        environment = self.injection.environment(folder) if way.startswith("traced") and self.injection else {}
        output = folder / "output"
        if program.language == TORCH:
            ran = self._in_server(arguments, environment, output)
        else:
            ran = self._in_process([str(self.binary), *arguments], environment, output)
        text = output.read_text(errors="replace") if output.exists() else ""
        lines = [line for line in text.splitlines() if line.startswith("{")]
        ran |= {"program": program.name, "way": way, "said": json.loads(lines[-1]) if lines else None}
        if not lines or ran["status"] != 0:
            ran["output"] = text[-800:]
        streams = sorted(folder.glob("*.cupti"))
        if streams:
            ran["streams"] = [self._kept(one, program, way, number) for number, one in enumerate(streams)]
        shutil.rmtree(folder)
        return ran

    def _in_process(self, command: list[str], environment: dict[str, str], output: Path) -> dict[str, Any]:
        begin = time.monotonic_ns()
        with output.open("w") as file:
            process = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = process.wait(_RUN_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                status = process.wait()
        return {"status": status, "wall_ns": time.monotonic_ns() - begin}

    def _in_server(self, arguments: list[str], environment: dict[str, str], output: Path) -> dict[str, Any]:
        if self.server is None or self.server.poll() is not None:
            return {"status": None, "wall_ns": None}
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        request = {"arguments": arguments, "environment": environment, "output": str(output)}
        self.server.stdin.write(json.dumps({**request, "timeout_s": _RUN_SECONDS}) + "\n")
        self.server.stdin.flush()
        answer = self.server.stdout.readline()
        return dict(json.loads(answer)) if answer else {"status": None, "wall_ns": None}

    def _kept(self, path: Path, program: Program, way: str, number: int) -> dict[str, Any]:
        """How many kernels a stream holds; the stream itself is kept if it is the first of its program and way."""
        data = path.read_bytes()
        folder = self._captures / f"{program.name}-{way}"
        kept = folder / f"{number}.cupti.gz"
        first = not kept.exists() and len(data) <= _KEPT_BYTES
        if first:
            folder.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(gzip.compress(data, 6))
        return {"bytes": len(data), "kept": first, "kernels": kernels_in(data)}

    def pack(self) -> None:
        """Every kept stream into archives that are each small enough to come back."""
        waiting = sorted(self._captures.rglob("*.cupti.gz")) if self._captures.exists() else []
        archives: list[list[Path]] = [[]]
        size = 0
        for path in waiting:
            size += path.stat().st_size
            if size > _ARCHIVE_BYTES:
                archives.append([])
                size = path.stat().st_size
            archives[-1].append(path)
        for number, paths in enumerate(archives, 1):
            with tarfile.open(self.out / f"captures_{number}.tar", "w") as archive:
                for path in paths:
                    archive.add(path, str(path.relative_to(self._captures)))

    def close(self) -> None:
        """End the server."""
        if self.server is not None and self.server.stdin is not None:
            self.server.stdin.close()
            self.server.wait(30)


def kernels_in(data: bytes) -> int:
    """Kernel records of a stream, up to a chunk that was not written whole."""
    at, kernels = 64, 0
    while at + 16 <= len(data):
        kind, _, count, payload = struct.unpack_from("<4I", data, at)
        at += 16 + payload
        kernels += count if kind == 2 and at <= len(data) else 0
    return kernels


def planned(programs: list[Program], rounds: int) -> Iterator[tuple[int, Program, str]]:
    """Round, program and way, in the order of their worth: everything once, then gains, then costs."""
    for program in programs:
        for way in _WAYS:
            if way != "profiled" or program.language == TORCH:
                yield 1, program, way
    for number in range(2, rounds + 1):
        for program in programs:
            for way in ("plain", "fixed") if number % 2 else ("fixed", "plain"):
                yield number, program, way
    for number in range(2, rounds + 1):
        for program in programs:
            for way in ("traced", "profiled") if program.language == TORCH else ("traced",):
                yield number, program, way


@contextlib.contextmanager
def sampled(path: Path) -> Iterator[None]:
    """What nvidia-smi says meanwhile, every half second."""
    with path.open("w") as file:
        command = ["nvidia-smi", f"--query-gpu={_SAMPLED}", "--format=csv,nounits", "--loop-ms=500"]
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.DEVNULL)
        try:
            yield
        finally:
            process.terminate()
            process.wait()


def measure(bench: Bench, programs: list[Program], rounds: int, until: float, file: IO[str]) -> None:
    """Run what is planned until the time is up; each run's line is written as it ends."""
    packed = False
    for number, program, way in planned(programs, rounds):
        if time.monotonic() > until:
            print("no time left in round", number, "for", program.name, way, flush=True)
            break
        if number > 1 and not packed:
            bench.pack()
            packed = True
        ran = bench.run(program, way)
        file.write(json.dumps({"round": number, **ran}) + "\n")
        file.flush()
        if number == 1 or ran["status"] != 0:
            loop = (ran["said"] or {}).get("loop_ns")
            told = f"{loop / 1e6:.2f} ms" if loop else ran.get("output", "nothing said")[-300:]
            print(
                f"{program.name} {way}: status {ran['status']}, {(ran['wall_ns'] or 0) / 1e9:.2f} s, {told}", flush=True
            )


def main() -> None:
    """Run the programs; see the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=390.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    until = time.monotonic() + asked.seconds
    asked.out.mkdir(parents=True, exist_ok=True)
    wanted = asked.only.split(",") if asked.only else [one.name for one in PROGRAMS]
    programs = [one for one in PROGRAMS if one.name in wanted]
    with tempfile.TemporaryDirectory(prefix="programs-") as work, (asked.out / "runs.jsonl").open("w") as file:
        bench = Bench(asked.out, Path(work))
        try:
            machine = bench.build()
            file.write(json.dumps(machine) + "\n")
            file.flush()
            print(json.dumps(machine), flush=True)
            with sampled(asked.out / "gpu.csv"):
                measure(bench, programs, asked.rounds, until, file)
        finally:
            bench.pack()
            bench.close()


if __name__ == "__main__":
    main()
