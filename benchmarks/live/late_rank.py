"""Record a two-GPU job with one late rank (`programs/two_ranks.py`) under `aaco record` and torch.profiler.

    python3 benchmarks/live/late_rank.py OUT [--seconds 120] [--steps 50]

Needs two NVIDIA GPUs, a C++ compiler and a Python with torch. OUT gets ranks.tar.gz and runs.jsonl for judge_ranks.py.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
PROGRAM: Final = HERE / "programs" / "two_ranks.py"
#: What is recorded, in the order of its worth: runs without a profiler, and options of the program.
WAYS: Final[dict[str, tuple[int, tuple[str, ...]]]] = {
    "late": (2, ()),
    "fixed": (2, ("--fixed",)),
    "slow_host": (1, ("--slow-host",)),
    "own_device": (1, ("--own-device",)),
}
_RUN_SECONDS: Final = 45
#: Longer than the program gives its ranks, whom it ends itself.
_PROFILED_SECONDS: Final = 75
#: A capture larger than this is none of a program that was meant to be small.
_MOST_BYTES: Final = 2 << 20


def recorded(way: str, steps: int, work: Path) -> dict[str, Any]:
    """One recording; what its ranks said of each run, and how large the streams are."""
    runs, options = WAYS[way]
    folder = work / way
    begin = time.monotonic_ns()
    words = ["--runs", str(runs), "--trace", "cupti", "--iterations-from", "step*", "--timeout", str(_RUN_SECONDS)]
    command = [sys.executable, "-m", "aaco_pipeline.recording", *words, "--no-output", "--workload", f"two_ranks_{way}"]
    program = ["python3", str(PROGRAM), "--steps", str(steps), *options]
    done = subprocess.run(
        [*command, "--output", str(folder), "--", *program],
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "way": way,
        "status": done.returncode,
        "wall_ns": time.monotonic_ns() - begin,
        "told": done.stderr.splitlines()[-8:],
        "said": {
            one.parent.name: _said(one.read_text(errors="replace")) for one in sorted(folder.glob("*/stdout_tail"))
        },
        "failed": {one.parent.name: one.read_text(errors="replace")[-1_500:] for one in _told_errors(folder, done)},
        "streams": {str(one.relative_to(folder)): one.stat().st_size for one in sorted(folder.rglob("*.cupti"))},
        "too_large": sum(one.stat().st_size > _MOST_BYTES for one in folder.rglob("*.cupti")),
    }


def _said(output: str) -> list[Any]:
    """What each rank of a run said."""
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def _told_errors(folder: Path, done: "subprocess.CompletedProcess[str]") -> list[Path]:
    """The ends of what the runs wrote to standard error, where the recording failed."""
    return sorted(folder.glob("*/stderr_tail")) if done.returncode else []


def profiled(steps: int, work: Path) -> dict[str, Any]:
    """The late rank once more, under torch.profiler alone."""
    folder = work / "profiled"
    folder.mkdir()
    begin = time.monotonic_ns()
    command = ["python3", str(PROGRAM), "--steps", str(steps), "--profiled", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PROFILED_SECONDS, check=False)
    return {
        "way": "profiled",
        "status": done.returncode,
        "wall_ns": time.monotonic_ns() - begin,
        "said": {"profiled": _said(done.stdout)},
        "failed": {"profiled": done.stderr[-1_500:]} if done.returncode else {},
    }


def machine() -> dict[str, Any]:
    """The GPUs, how they are joined, and what the environment says to NCCL."""
    said: dict[str, Any] = {"way": "machine", "python": sys.version, "program_python": shutil.which("python3")}
    query = "--query-gpu=index,name,uuid,driver_version,clocks.max.sm,power.limit"
    for name, command in (
        ("gpus", ["nvidia-smi", query, "--format=csv,noheader"]),
        ("topology", ["nvidia-smi", "topo", "-m"]),
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said[name] = done.stdout.splitlines()
    named = ("NCCL_", "TORCH_NCCL", "CUDA_VISIBLE")
    said["environment"] = {key: value for key, value in os.environ.items() if key.startswith(named)}
    return said


def main() -> None:
    """Record them; see the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--steps", type=int, default=50)
    asked = parser.parse_args()
    until = time.monotonic() + asked.seconds
    asked.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder, (asked.out / "runs.jsonl").open("w") as file:
        work = Path(folder)

        def say(one: dict[str, Any]) -> None:
            file.write(json.dumps(one) + "\n")
            file.flush()
            ranks = {run: len(said) for run, said in one.get("said", {}).items()}
            print(
                json.dumps({key: value for key, value in one.items() if key != "said"} | {"ranks": ranks}), flush=True
            )

        try:
            say(machine())
            took = 0.0
            for way, (runs, _) in WAYS.items():
                begin = time.monotonic()
                if begin + took * (runs + 1) > until:
                    print("no time left for", way, flush=True)
                    continue
                say(recorded(way, asked.steps, work))
                took = (time.monotonic() - begin) / (runs + 1)
            if time.monotonic() + took <= until:
                say(profiled(asked.steps, work))
        finally:
            with tarfile.open(asked.out / "ranks.tar.gz", "w:gz") as archive:
                for one in sorted(work.iterdir()):
                    archive.add(one, one.name)


if __name__ == "__main__":
    main()
