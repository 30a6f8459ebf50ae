"""Compare the measured roofs of a real NVIDIA GPU with what libraries reach, and locate its caches' reads.

    python3 benchmarks/live/h200_roofs.py OUT [--seconds 20] [--within 130]

Needs nvcc, ncu and a Python with torch. Runs cache_levels.cu under ncu, the program of `aaco calibrate --device`,
and library_rates.py; leaves JSON and CSV in OUT and prints a table.
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from aaco_pipeline.errors import UnavailableError  # noqa: E402
from aaco_pipeline.recording.profilers import ncu  # noqa: E402
from aaco_pipeline.resources.calibrate import gpu  # noqa: E402

HERE = Path(__file__).resolve().parent
CLOCKS = "--query-gpu=clocks.sm,clocks.max.sm,clocks.mem,power.draw,power.limit,temperature.gpu"
READ, WRITTEN = "lts__t_sectors_srcunit_tex_op_read", "lts__t_sectors_srcunit_tex_op_write"
HITS, MISSES = "lts__t_sectors_srcunit_tex_lookup_hit", "lts__t_sectors_srcunit_tex_lookup_miss"
L1_READ, L1_HITS = (f"l1tex__t_sectors_pipe_lsu_mem_global_op_ld{end}" for end in ("", "_lookup_hit"))
ARRIVED, DRAM_READ, DRAM_WRITTEN = "l1tex__m_xbar2l1tex_read_bytes", "dram__bytes_read", "dram__bytes_write"
COUNTED = (READ, WRITTEN, HITS, MISSES, L1_READ, L1_HITS, ARRIVED, DRAM_READ, DRAM_WRITTEN)
SECTOR_BYTES = 32


def main() -> int:
    """Every part there is time for; one that fails is recorded, and the next one tried."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=20, help="of measuring by the program")
    parser.add_argument("--within", type=float, default=130, help="seconds for everything")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="aaco-roofs-") as name:
        Trial(Path(name), options.out, options.seconds, options.within).run()
    return 0


class Trial:
    """The parts, and the document that each of them adds to."""

    def __init__(self, folder: Path, out: Path, seconds: float, within: float) -> None:
        self.folder, self.out, self.seconds = folder, out, seconds
        self.until = time.monotonic() + within
        self.compiler = gpu.find_compiler()
        self.found: dict[str, Any] = {
            "compiler": self.compiler.name,
            "libraries": self.compiler.libraries(),
            "parts": {},
        }

    def left(self) -> float:
        """Seconds until everything is to be done."""
        return self.until - time.monotonic()

    def run(self) -> None:
        """The parts, the most wanted first, and what they say together."""
        programs = {name: self.folder / name for name in ("gpu_roofs", "cache_levels")}
        if not self.build(programs):
            return
        self.levels(programs["cache_levels"])
        self.part("roofs", self.measuring(programs["gpu_roofs"], self.seconds, "roofs"))
        self.part("libraries", [sys.executable, str(HERE / "library_rates.py")])
        print_roofs(self.out, self.found)
        print_levels(self.out)

    def build(self, programs: dict[str, Path]) -> bool:
        """All programs at once; whether each was built."""
        commands = [list(self.compiler.compiling(program)) for program in programs.values()]
        for command, source in zip(commands, (gpu.SOURCE, HERE / "cache_levels.cu"), strict=True):
            command[command.index(str(gpu.SOURCE))] = str(source)
        begun = time.monotonic()
        running = [
            subprocess.Popen(one, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for one in commands
        ]
        said = {name: one.communicate()[0][-2000:] for name, one in zip(programs, running, strict=True)}
        failed = [name for name, one in zip(programs, running, strict=True) if one.returncode]
        self.told("build", begun, {"said": said, "failed": failed})
        return not failed

    def measuring(self, program: Path, seconds: float, part: str) -> list[str]:
        """The program's command, with its results beside the document."""
        return list(self.compiler.measuring(program, 0, seconds, self.out / f"{part}.jsonl"))

    def levels(self, program: Path) -> None:
        """Bytes and times of the kernels, then their counters."""
        alone = self.part("levels", [str(program)])
        (self.out / "levels.jsonl").write_text(alone["out"])
        try:
            profiler = ncu.find()
        except UnavailableError as error:
            self.found["parts"]["counters"] = {"failed": str(error)}
            return
        metrics = [f"{one}.sum" for one in COUNTED if one in profiler.metrics]
        self.found["not_counted"] = [one for one in COUNTED if one not in profiler.metrics]
        self.part("counters", list(profiler.command(metrics, self.folder, [str(program), "once"])))
        written = self.folder / ncu.OUTPUT
        (self.out / "levels.csv").write_text(written.read_text(errors="replace") if written.exists() else "")

    def part(self, name: str, command: list[str]) -> dict[str, Any]:
        """A command's end and words, with the clocks before it."""
        clocks = subprocess.run(
            ["nvidia-smi", CLOCKS, "--format=csv"], capture_output=True, text=True, check=False
        ).stdout
        begun = time.monotonic()
        limit = max(self.left() + 10, 5)
        try:
            ended = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=limit, check=False
            )
            done = {"status": ended.returncode, "out": ended.stdout, "error": ended.stderr[-2000:]}
        except subprocess.TimeoutExpired:
            done = {"status": None, "out": "", "error": f"not done after {limit:.0f} s"}
        return self.told(name, begun, {"clocks": clocks, **done})

    def told(self, name: str, begun: float, done: dict[str, Any]) -> dict[str, Any]:
        """Keep and say what a part did."""
        done["seconds"] = round(time.monotonic() - begun, 1)
        self.found["parts"][name] = done
        print(name, done["seconds"], "s", done.get("status", ""), done.get("error", "")[-300:], flush=True)
        (self.out / "roofs.json").write_text(json.dumps(self.found, indent=1))
        return done


def print_roofs(out: Path, found: dict[str, Any]) -> None:
    """The program's best of every resource, beside the libraries'."""
    print(f"\n{'':22s} {'roofs':>10s} {'median':>10s}   TB/s or TFLOP/s")
    for name, (best, median, kernel) in best_of(out / "roofs.jsonl").items():
        print(f"{name:22s} {best / 1e12:10.3f} {median / 1e12:10.3f}   {kernel}")
    said = found["parts"].get("libraries", {}).get("out", "")
    for name, rates in (json.loads(said) if said.startswith("{") else {}).items():
        if isinstance(rates, dict):
            print(f"{name:34s} {rates['best'] / 1e12:10.3f} {rates['median'] / 1e12:10.3f}")


def best_of(path: Path) -> dict[str, tuple[float, float, str]]:
    """By resource and format the best window and its kernel's median."""
    found: dict[str, tuple[float, float, str]] = {}
    _, measurements = gpu.read_result(path.read_text()) if path.exists() else ({}, [])
    for one in measurements:
        if "failed" in one:
            continue
        rates = sorted(1e9 * one["work"] / ns for windows in one["rounds"] for ns in windows)
        name = f"{one['resource']} {one['dtype'] or ''}"
        if rates[-1] > found.get(name, (0.0, 0.0, ""))[0]:
            found[name] = rates[-1], rates[len(rates) // 2], one["kernel"]
    return found


def print_levels(out: Path) -> None:
    """By kernel and working set: its rate, and which share of its bytes each level's counters saw."""
    cases = [json.loads(line) for line in (out / "levels.jsonl").read_text().splitlines() if line.startswith("{")]
    text = (out / "levels.csv").read_text() if (out / "levels.csv").exists() else ""
    rows = list(csv.DictReader(line for line in text.splitlines() if line.startswith('"')))[1:]
    # The kernels that fill the arrays come before all of them.
    rows = rows[len(rows) - len(cases) :] if len(rows) >= len(cases) else []
    print(f"\n{'kernel':22s} {'set KiB':>9s} {'TB/s':>7s}  counted, as shares of its bytes")
    for number, case in enumerate(cases):
        moved = case["bytes_read"] + case["bytes_written"]
        rate = (moved or case["operations"]) / case["ns"] / 1e3
        shares = []
        if rows and moved:
            for metric, size in (
                *((L1_READ, SECTOR_BYTES), (L1_HITS, SECTOR_BYTES)),
                *((READ, SECTOR_BYTES), (WRITTEN, SECTOR_BYTES), (HITS, SECTOR_BYTES), (MISSES, SECTOR_BYTES)),
                *((ARRIVED, 1), (DRAM_READ, 1), (DRAM_WRITTEN, 1)),
            ):
                value = rows[number].get(f"{metric}.sum") or ""
                counted = float(value.replace(",", "")) * size / moved if value else float("nan")
                shares.append(f"{metric.split('__')[1].replace('srcunit_tex_', '')[-22:]} {counted:.4f}")
        print(f"{case['level']:14s} {case['kind']:7s} {case['set_bytes'] / 1024:9.0f} {rate:7.2f}  {'  '.join(shares)}")


if __name__ == "__main__":
    sys.exit(main())
