"""Count kernels of known work with ncu on a real NVIDIA GPU, by every filter of L2's sectors.

    python3 benchmarks/live/h200_counters.py OUT [--seconds 500]

Needs ncu, nvcc and a Python with torch. Writes OUT/counters.json after each part, and ncu's output as counters.tar.gz.
"""

import argparse
import contextlib
import csv
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from aaco_pipeline.recording.profilers import ncu  # noqa: E402

HERE = Path(__file__).resolve().parent
SETS = tuple(ncu.METRIC_SETS)
#: Which of L2's counters of sectors are tried: all by unit, node, operation and place, but none by hit, miss or policy.
FILTERS = re.compile(r"lts__(t_sectors|t_requests|d_sectors|t_bytes)")
LEFT_OUT = re.compile(r"lookup|evict|realtime|l2_access|throughput|fabric_(mgb|xbar)|sparsity")
WANTED = re.compile(
    r"l1tex__(t_bytes|t_sectors|m_xbar2l1tex_read_(bytes|sectors)|m_l1tex2xbar_write_(bytes|sectors))"
    r"(_pipe_lsu(_mem_global_op_(ld|st|red|atom))?)?$"
    r"|l1tex__data_(pipe_lsu_wavefronts|bank_conflicts_pipe_lsu|bank_reads|bank_writes)(_mem_shared(_op_(ld|st))?)?$"
    r"|smsp__sass_(data_bytes|inst_executed|l1tex_data_pipe_lsu_wavefronts)(_mem|_op)_shared(_op_(ld|st)|_(ld|st))?$"
    r"|sm__sass_(data_bytes|l1tex_data_pipe_lsu_wavefronts)_mem_shared(_op_(ld|st))?$"
    r"|dram__(bytes|sectors)(_read|_write)?$"
)


def main() -> int:
    """Every part within the given seconds; what was not reached is listed in the document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=500)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="aaco-counters-") as name:
        Trial(Path(name), options.out, options.seconds).run()
    return 0


class Trial:
    """The parts in order, the most wanted first."""

    def __init__(self, folder: Path, out: Path, seconds: float) -> None:
        self.folder, self.out = folder, out
        self.until = time.monotonic() + seconds
        self.found: dict[str, Any] = {"parts": {}, "left_out": []}
        self.raw = folder / "raw"
        self.raw.mkdir()

    def run(self) -> None:
        """Each part; one that fails is recorded, and the next one tried."""
        self.ncu = ncu.find()
        self.found |= {"ncu": self.ncu.version, "program": str(self.ncu.program), "metrics": len(self.ncu.metrics)}
        (self.raw / "metrics.txt").write_text("\n".join(sorted(self.ncu.metrics)) + "\n")
        self.counted = self.folder / "counted_kernels"
        build = ["nvcc", "-O3", "-std=c++17", "-arch=native", str(HERE / "counted_kernels.cu"), "-o", str(self.counted)]
        subprocess.run(build, check=True)
        self.found["expected"] = json.loads(subprocess.run([str(self.counted)], capture_output=True, check=True).stdout)
        products = [sys.executable, str(HERE / "matrix_products.py")]
        for name in SETS:
            self.part(f"set_{name}", [str(self.counted)], self.ncu.of_sets([name]))
        self.part("products_compute", products, self.ncu.of_sets(["compute"]))
        self.part("products_memory", products, self.ncu.of_sets(["memory"]))
        sectors = sorted(one for one in self.ncu.metrics if FILTERS.match(one) and not LEFT_OUT.search(one))
        self.found["filters"] = sectors
        self.part("filters", [str(self.counted)], [f"{one}.sum" for one in sectors])
        first_level = sorted(one for one in self.ncu.metrics if WANTED.match(one))
        self.part("first_level", [str(self.counted)], [f"{one}.sum" for one in first_level])
        self.part("all_sets", [str(self.counted)], self.ncu.of_sets(SETS))
        self.part("tensor", products, [f"{one}.sum" for one in sorted(self.ncu.metrics) if "ops_path_tensor" in one])
        self.part("products_occupancy", products, self.ncu.of_sets(["basic", "occupancy"]))

    def guarded(self, name: str, part: Callable[[], Any]) -> None:
        """Do a part if there is time, and write the document."""
        if time.monotonic() > self.until - 15:
            self.found["left_out"].append(name)
        else:
            begun = time.monotonic()
            try:
                done = part()
            except (OSError, subprocess.SubprocessError, ValueError) as error:
                done = {"failed": repr(error)[:2000]}
            self.found["parts"][name] = {"seconds": round(time.monotonic() - begun, 2), **done}
            print(name, self.found["parts"][name]["seconds"], "s", flush=True)
        (self.out / "counters.json").write_text(json.dumps(self.found, indent=1))
        with tarfile.open(self.out / "counters.tar.gz", "w:gz") as archive:
            archive.add(self.raw, "raw")

    def part(self, name: str, program: Sequence[str], metrics: Sequence[str]) -> None:
        """A pass over a program."""
        folder = self.raw / name
        folder.mkdir()
        self.guarded(name, lambda: self.counts(list(self.ncu.command(metrics, folder, program)), folder, metrics))

    def counts(self, command: Sequence[str], folder: Path, metrics: Sequence[str]) -> dict[str, Any]:
        """End of the pass, what each kernel of the program had counted, and in how many passes."""
        ended = self.ended(command, folder.name)
        written = folder / ncu.OUTPUT
        text = written.read_text(errors="replace") if written.exists() else ""
        passes = re.findall(r'"([^"]+)".*?- (\d+) pass', text)
        lines = [line for line in text.splitlines() if line.startswith('"')]
        rows = list(csv.DictReader(lines))
        kernels = []
        for row in rows[1:]:
            counted = {}
            for metric in metrics:
                with contextlib.suppress(KeyError, ValueError):
                    counted[metric] = float(row[metric].replace(",", ""))
            kernels.append({"kernel": row.get("Kernel Name"), **counted})
        return {**ended, "asked": len(metrics), "passes": passes[:30], "kernels": kernels[:60]}

    def ended(self, command: Sequence[str], name: str) -> dict[str, Any]:
        """A command's end."""
        left = max(self.until - time.monotonic(), 1)
        ended = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=left, check=False)
        (self.raw / f"{name}.said").write_text(ended.stdout + ended.stderr)
        return {"status": ended.returncode, "said": (ended.stdout + ended.stderr)[-1500:]}


if __name__ == "__main__":
    sys.exit(main())
