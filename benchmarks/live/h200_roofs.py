"""The measured roofs of a real NVIDIA GPU beside what libraries reach on it.

    python3 benchmarks/live/h200_roofs.py OUT [--seconds 40]

Runs the program of `aaco calibrate --device` twice, before and after the libraries (library_rates.py). Needs the
standard library, nvcc and a Python with torch. Leaves OUT/roofs.json and OUT/roofs_N.jsonl.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from aaco_pipeline.resources.calibrate import gpu_program  # noqa: E402

HERE = Path(__file__).resolve().parent
CLOCKS = "--query-gpu=clocks.sm,clocks.max.sm,clocks.mem,power.draw,power.limit,temperature.gpu"


def main() -> int:
    """Roofs, libraries, roofs again; each with the clocks before it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=40, help="of measuring in each run of the program")
    parser.add_argument("--without-libraries", action="store_true", help="run the program once, and nothing beside it")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"parts": {}}
    compiler = gpu_program.find_compiler()
    found["compiler"] = {"name": compiler.name, "libraries": compiler.libraries()}
    with tempfile.TemporaryDirectory(prefix="aaco-roofs-") as name:
        program = Path(name) / "gpu_roofs"

        def measuring(seconds: float, part: str) -> tuple[str, ...]:
            return compiler.measuring(program, 0, seconds, options.out / f"{part}.jsonl")

        commands = {
            "build": compiler.compiling(program),
            "roofs_1": measuring(options.seconds, "roofs_1"),
            "libraries": (sys.executable, str(HERE / "library_rates.py")),
            "quick": measuring(8, "quick"),
            "roofs_2": measuring(options.seconds, "roofs_2"),
            "no_device": (str(program), "7", "1", "1", str(options.out / "no_device.jsonl")),
        }
        if options.without_libraries:
            commands = {part: commands[part] for part in ("build", "roofs_1")}
        for part, command in commands.items():
            clocks = said(["nvidia-smi", CLOCKS, "--format=csv"])["out"]
            begun = time.monotonic()
            ended = said(command)
            found["parts"][part] = {"seconds": time.monotonic() - begun, "clocks": clocks, **ended}
            print(part, f"{time.monotonic() - begun:.1f} s", ended["status"], ended["error"][-300:], flush=True)
            (options.out / "roofs.json").write_text(json.dumps(found, indent=1))
    return 0


def said(command: "list[str] | tuple[str, ...]") -> dict[str, Any]:
    """A command's end and words."""
    ended = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    return {"status": ended.returncode, "out": ended.stdout, "error": ended.stderr[-2000:]}


if __name__ == "__main__":
    sys.exit(main())
