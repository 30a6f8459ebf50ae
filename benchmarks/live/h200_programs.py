"""Run the programs with a known cause on a real NVIDIA GPU: plain, fixed, traced, profiled and recorded.

    python3 benchmarks/live/h200_programs.py OUT [--only NAME,…] [--ways WAY,…] [--rounds 5] [--seconds 390]

Every run is a fresh process; ways alternate in random order within a round. `fixed` has the cause removed. OUT gets
runs.jsonl, captures_N.tar and recorded_N.tar.gz, which `judge.py` evaluates where the project is installed.
"""

import argparse
import gzip
import io
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
sys.path.insert(0, str(ROOT))
from aaco_pipeline.errors import UnavailableError  # noqa: E402
from aaco_pipeline.recording.profilers import cupti  # noqa: E402
from benchmarks.live.programs.catalogue import CUDA, SETS, TORCH, Program  # noqa: E402

#: The first run of a library's kernels loads them from a cold disk.
_RUN_SECONDS: Final = 150.0
#: Captures larger than this are counted and not kept.
_KEPT_BYTES: Final = 2 << 20
_ARCHIVE_BYTES: Final = 12 << 20
#: So many archives of each kind: eight files come back at most.
_MOST_ARCHIVES: Final = {"captures": 1, "recorded": 4}
_SINGLE: Final = ("plain", "fixed", "traced", "traced_fixed", "profiled")
_REPEATED: Final = ("plain", "fixed", "traced", "profiled")
_RECORDED: Final = ("recorded", "recorded_fixed")
#: Runs of a recorded way without a profiler. A process that imports PyTorch first is seconds old before its first step.
_RECORDED_RUNS: Final = {CUDA: 3, TORCH: 2}


class Bench:
    """Built programs, and one run of a program in one way."""

    def __init__(self, out: Path, work: Path) -> None:
        self.out, self.work = out, work
        self.python = shutil.which("python3") or sys.executable
        self.injection: cupti.Injection | None = None
        self._servers: dict[str, subprocess.Popen[str]] = {}
        self._cache, self._captures, self._recorded = work / "cache", work / "captures", work / "recorded"

    def build(self, programs: Sequence[Program]) -> dict[str, Any]:
        """The binaries, the injection library and a started PyTorch; what the machine is."""
        os.environ["AACO_CACHE"] = str(self._cache)
        said: dict[str, Any] = {"way": "machine", "python": sys.version}
        query = ["nvidia-smi", "--query-gpu=name,driver_version,clocks.max.sm,power.limit", "--format=csv,noheader"]
        said["gpu"] = _said(query)
        for source in sorted({one.source for one in programs if one.language == CUDA}):
            build = ["nvcc", "-O2", "-arch=native", f"-I{ROOT / 'aaco_pipeline' / 'recording'}"]
            said[source] = _said([*build, str(HERE / "programs" / source), "-o", str(self._binary(source))])
        try:
            self.injection = cupti.prepared([self.python])
            found = self.injection.cupti
            said["cupti"] = [str(found.library), str(found.includes[0]), found.api_version]
        except UnavailableError as error:
            said["cupti"] = str(error)
        for source in sorted({one.source for one in programs if one.language == TORCH}):
            said[source] = self._serve(source)
        return said

    def _binary(self, source: str) -> Path:
        return self.work / Path(source).stem

    def _serve(self, source: str) -> str:
        """Start the server of some PyTorch programs; what it says first. It also has the disk's cache hold PyTorch."""
        with (self.out / "torch_errors.txt").open("a") as errors:
            server = subprocess.Popen(
                [self.python, str(HERE / "programs" / source), "--serve"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._servers[source] = server
        assert server.stdout is not None
        return server.stdout.readline().strip()

    def command(self, program: Program, way: str) -> list[str]:
        """The program as a command of its own."""
        if program.language == TORCH:
            words = [self.python, str(HERE / "programs" / program.source)]
        else:
            words = [str(self._binary(program.source))]
        return [*words, *self._arguments(program, way)]

    def _arguments(self, program: Program, way: str) -> list[str]:
        words = [program.name, "--steps", str(program.steps)]
        words += ["--fixed"] if way.endswith("fixed") else []
        return words + (["--profiled"] if way == "profiled" else [])

    def run(self, program: Program, way: str) -> dict[str, Any]:
        """One run in a fresh process: what the program said, its wall time, how many records of what it left."""
        if way.startswith("traced") and self.injection is None:
            not_run = {"status": None, "wall_ns": None, "said": None, "output": "there is no injection library"}
            return {"program": program.name, "way": way, **not_run}
        folder = Path(tempfile.mkdtemp(dir=self.work, prefix="run-"))
        environment = self.injection.environment(folder) if way.startswith("traced") and self.injection else {}
        output = folder / "output"
        if way in _RECORDED:
            ran = self._in_process(
                self._recording(program, way),
                {"AACO_CACHE": str(self._cache)},
                output,
                1 + _RECORDED_RUNS[program.language],
            )
        elif program.language == TORCH:
            ran = self._in_server(program, self._arguments(program, way), environment, output)
        else:
            ran = self._in_process(self.command(program, way), environment, output)
        text = output.read_text(errors="replace") if output.exists() else ""
        said = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        ran |= {"program": program.name, "way": way, "said": said[0] if said else None}
        if way in _RECORDED:
            ran |= {"said_by_pass": said, "folder_bytes": _size(self._folder(program, way))}
        if not said or ran["status"] != 0:
            ran["output"] = text[-800:]
        streams = sorted(folder.glob("*.cupti"))
        if streams:
            ran["streams"] = [self._kept(one, program, way, number) for number, one in enumerate(streams)]
        shutil.rmtree(folder)
        return ran

    def _folder(self, program: Program, way: str) -> Path:
        return self._recorded / f"{program.name}-{way}"

    def _recording(self, program: Program, way: str) -> list[str]:
        """The recorder's command line, around the program as a command of its own."""
        words = [self.python, "-m", "aaco_pipeline.recording", "--runs", str(_RECORDED_RUNS[program.language])]
        words += ["--trace", "cupti", "--iterations-from", "step*"] if way == "recorded" else ["--trace", "off"]
        words += ["--workload", program.name, "--timeout", str(_RUN_SECONDS)]
        return [*words, "--output", str(self._folder(program, way)), "--", *self.command(program, way)]

    def _in_process(
        self, command: list[str], environment: dict[str, str], output: Path, passes: int = 1
    ) -> dict[str, Any]:
        begin = time.monotonic_ns()
        with output.open("w") as file:
            process = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                start_new_session=True,
            )
            try:
                status = process.wait(passes * _RUN_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                status = process.wait()
        return {"status": status, "wall_ns": time.monotonic_ns() - begin}

    def _in_server(
        self, program: Program, arguments: list[str], environment: dict[str, str], output: Path
    ) -> dict[str, Any]:
        server = self._servers[program.source]
        if server.poll() is not None:
            return {"status": None, "wall_ns": None}
        assert server.stdin is not None
        assert server.stdout is not None
        request = {"arguments": arguments, "environment": environment, "output": str(output)}
        server.stdin.write(json.dumps({**request, "timeout_s": _RUN_SECONDS}) + "\n")
        server.stdin.flush()
        answer = server.stdout.readline()
        return dict(json.loads(answer)) if answer else {"status": None, "wall_ns": None}

    def _kept(self, path: Path, program: Program, way: str, number: int) -> dict[str, Any]:
        """Count the kernels of a stream; the stream itself is kept if it is the first of its program and way."""
        data = path.read_bytes()
        folder = self._captures / f"{program.name}-{way}"
        kept = folder / f"{number}.cupti.gz"
        first = not kept.exists() and len(data) <= _KEPT_BYTES
        if first:
            folder.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(gzip.compress(data, 6))
        return {"bytes": len(data), "kept": first, "kernels": kernels_in(data)}

    def pack(self) -> None:
        """Every kept stream and recorded folder into archives that are each small enough to come back."""
        streams = sorted(self._captures.rglob("*.cupti.gz")) if self._captures.exists() else []
        for number, paths in enumerate(packed("captures", {path: path.stat().st_size for path in streams}), 1):
            with tarfile.open(self.out / f"captures_{number}.tar", "w") as archive:
                for path in paths:
                    archive.add(path, str(path.relative_to(self._captures)))
        folders = sorted(self._recorded.glob("[!.]*")) if self._recorded.exists() else []
        for number, paths in enumerate(packed("recorded", {path: compressed(path) for path in folders}), 1):
            with tarfile.open(self.out / f"recorded_{number}.tar.gz", "w:gz", compresslevel=6) as archive:
                for path in paths:
                    archive.add(path, path.name)

    def close(self) -> None:
        for server in self._servers.values():
            assert server.stdin is not None
            server.stdin.close()
            server.wait(30)


def _said(command: list[str]) -> str:
    """The end of what a command says."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).strip()[-600:]


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def compressed(folder: Path) -> int:
    """The size of a folder in a compressed archive."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz", compresslevel=6) as archive:
        archive.add(folder, folder.name)
    return data.tell()


def packed(kind: str, sizes: dict[Path, int]) -> list[list[Path]]:
    """Contents of each archive of a kind; what finds no place is printed."""
    archives: list[list[Path]] = []
    room = 0
    for path, size in sizes.items():
        if size > room and len(archives) < _MOST_ARCHIVES[kind] and size <= _ARCHIVE_BYTES:
            archives.append([])
            room = _ARCHIVE_BYTES
        if size <= room:
            archives[-1].append(path)
            room -= size
        else:
            print(f"{path.name}: {size} bytes find no place in what comes back", flush=True)
    return archives


def kernels_in(data: bytes) -> int:
    """Kernel records of a stream, up to a chunk that was not written whole."""
    at, kernels = 64, 0
    while at + 16 <= len(data):
        kind, _, count, payload = struct.unpack_from("<4I", data, at)
        at += 16 + payload
        kernels += count if kind == 2 and at <= len(data) else 0
    return kernels


def has(program: Program, way: str) -> bool:
    """Return whether a program can be run in a way."""
    if way == "profiled":
        return program.language == TORCH
    return bool(program.removed) or not way.endswith("fixed")


def planned(programs: list[Program], ways: Sequence[str], rounds: int) -> Iterator[tuple[int, Program, str]]:
    """Round, program and way: every program's ways in random order, and behind the first round what is recorded.

    Recorded are all programs as they are before any with its cause removed, of these first those whose gain is judged.
    """
    draw = random.Random(1)
    for number in range(1, rounds + 1):
        for program in programs:
            own = [way for way in ways if way in (_SINGLE if number == 1 else _REPEATED) and has(program, way)]
            draw.shuffle(own)
            for way in own:
                yield number, program, way
        for way in _RECORDED:
            if number > 1 or way not in ways:
                continue
            for program in sorted(programs, key=lambda one: way == "recorded_fixed" and not one.bounded):
                if has(program, way):
                    yield number, program, way


def measure(bench: Bench, plan: Iterator[tuple[int, Program, str]], until: float, file: IO[str]) -> None:
    """Run what is planned until the time is up; each run's line is written as it ends."""
    for number, program, way in plan:
        if time.monotonic() > until:
            print("no time left in round", number, "for", program.name, way, flush=True)
            break
        ran = bench.run(program, way)
        file.write(json.dumps({"round": number, **ran}) + "\n")
        file.flush()
        if number == 1 or ran["status"] != 0:
            loop = (ran["said"] or {}).get("loop_ns")
            told = f"{loop / 1e6:.2f} ms" if loop else ran.get("output", "nothing said")[-300:]
            print(
                f"{program.name} {way}: status {ran['status']}, {(ran['wall_ns'] or 0) / 1e9:.2f} s, {told}", flush=True
            )


def chosen(only: str) -> list[Program]:
    """The programs of a list of their names and those of sets."""
    known = {program.name: (program,) for one in SETS.values() for program in one} | dict(SETS)
    unknown = [word for word in only.split(",") if word not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: expected of {', '.join(known)}")
    return [program for word in only.split(",") for program in known[word]]


def ways(text: str) -> tuple[str, ...]:
    """Ways of running a program, of a list of their names."""
    unknown = [word for word in text.split(",") if word not in _SINGLE + _RECORDED]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: expected of {', '.join(_SINGLE + _RECORDED)}")
    return tuple(text.split(","))


def main() -> None:
    """Run the programs; see the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=390.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", type=chosen, default="programs")
    parser.add_argument("--ways", type=ways, default=",".join(_SINGLE))
    asked = parser.parse_args()
    until = time.monotonic() + asked.seconds
    asked.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="programs-") as work, (asked.out / "runs.jsonl").open("w") as file:
        bench = Bench(asked.out, Path(work))
        try:
            machine = bench.build(asked.only)
            file.write(json.dumps(machine) + "\n")
            file.flush()
            print(json.dumps(machine), flush=True)
            measure(bench, planned(asked.only, asked.ways, asked.rounds), until, file)
        finally:
            bench.pack()
            bench.close()


if __name__ == "__main__":
    main()
