"""NVML's readings on a real NVIDIA GPU: what one costs, and each value beside what nvidia-smi says in the same second.

Needs the driver, nvidia-smi and a Python with torch for the load; of this project `aaco_pipeline/resources/telemetry`
alone. Run as `python benchmarks/live/h200_nvml.py "$OUT"`; it writes nvml.json there. A device is read while it idles
and while a matrix product runs on it; exits with 1 when a reading costs more than a tenth of a per cent of a CPU at ten
a second, or a value differs from nvidia-smi's by more than the tolerance told beside it.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).parents[2]))

from aaco_pipeline.resources.telemetry.nvml import NvmlSource, open_devices
from aaco_pipeline.resources.telemetry.sampler import SystemSampler

READINGS: Final = 2_000
#: Ten readings a second for a tenth of a per cent of one CPU.
MOST_US: Final = 100.0
LOAD: Final = """
import sys, time, torch
a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
end = time.monotonic() + float(sys.argv[1])
torch.cuda.synchronize()
print("running", flush=True)
while time.monotonic() < end:
    for _ in range(20):
        torch.mm(a, b)
    torch.cuda.synchronize()
"""
#: nvidia-smi's value, what one of ours is multiplied by to compare, and how far they may differ: both move meanwhile.
COMPARED: Final = {
    "gpu_temperature_c": (("temperature/gpu_temp",), 1.0, 2.0),
    "memory_temperature_c": (("temperature/memory_temp",), 1.0, 2.0),
    "power_mw": (("gpu_power_readings/average_power_draw", "gpu_power_readings/power_draw"), 1e-3, 30.0),
    "sm_clock_mhz": (("clocks/sm_clock",), 1.0, 60.0),
    "memory_clock_mhz": (("clocks/mem_clock",), 1.0, 1.0),
    "gpu_busy_percent": (("utilization/gpu_util",), 1.0, 5.0),
    "memory_busy_percent": (("utilization/memory_util",), 1.0, 10.0),
    "memory_used_bytes": (("fb_memory_usage/used",), 1 / (1 << 20), 2.0),
    "pcie_generation": (("pci/pci_gpu_link_info/pcie_gen/current_link_gen",), 1.0, 0.0),
    "pcie_lanes": (("pci/pci_gpu_link_info/link_widths/current_link_width",), 1.0, 0.0),
    "ecc_corrected": (("ecc_errors/volatile/dram_correctable",), 1.0, 0.0),
    "ecc_uncorrected": (("ecc_errors/volatile/dram_uncorrectable",), 1.0, 0.0),
    "held_sw_power_cap_ns": (
        tuple(
            f"clocks_event_reasons_counters/clocks_event_reasons_counters_{name}"
            for name in ("sw_power_cap", "sw_power_capping")
        ),
        1e-3,
        2e6,
    ),
}


def asked(index: int) -> dict[str, str]:
    """All that nvidia-smi says of a device, by path."""
    done = subprocess.run(["nvidia-smi", "-q", "-x", "-i", str(index)], capture_output=True, text=True, check=True)
    gpu = ElementTree.fromstring(done.stdout).find("gpu")
    assert gpu is not None
    return dict(flat(gpu, ""))


def flat(element: ElementTree.Element, path: str) -> Iterator[tuple[str, str]]:
    """Every text within an element, by the names that lead to it; processes are left out."""
    for one in element:
        at = f"{path}{one.tag}"
        if len(one) and one.tag != "processes":
            yield from flat(one, f"{at}/")
        elif one.text and one.text.strip():
            yield at, one.text.strip()


def number(text: str | None) -> float | None:
    """The number that a value of nvidia-smi begins with: `71.93 W`, `16x`."""
    digits = (text or "").split(" ")[0].rstrip("x")
    try:
        return float(digits)
    except ValueError:
        return None


def beside(source: NvmlSource, index: int) -> dict[str, Any]:
    """A reading just before and one just after nvidia-smi's, and each value compared with the nearer of the two."""
    before = source._taken()
    smi = asked(index)
    after = source._taken()
    rows = {}
    for at, name in enumerate(source.names):
        row: dict[str, Any] = {"before": before[at], "after": after[at], "reason": source.reasons.get(name)}
        if name in COMPARED:
            paths, factor, tolerance = COMPARED[name]
            theirs = next((found for path in paths if (found := number(smi.get(path))) is not None), None)
            ours = [value * factor for value in (before[at], after[at]) if value is not None]
            least = min((abs(value - theirs) for value in ours), default=None) if theirs is not None else None
            row |= {"nvidia_smi": theirs, "difference": least, "tolerance": tolerance}
            row["agree"] = None if least is None else least <= tolerance
        rows[name] = row
    return {"values": rows, "nvidia_smi": smi}


def microseconds(call: Callable[[], Any], count: int = READINGS) -> dict[str, float]:
    """What one call costs."""
    taken = []
    for _ in range(count):
        begin = time.perf_counter_ns()
        call()
        taken.append((time.perf_counter_ns() - begin) / 1e3)
    taken.sort()
    return {"least": taken[0], "median": statistics.median(taken), "p99": taken[int(count * 0.99)], "most": taken[-1]}


def costs(source: NvmlSource) -> dict[str, Any]:
    """What a reading costs, and each of its calls."""
    calls = {"+".join(names): microseconds(call, 300) for names, call in source._calls}
    return {"reading": microseconds(source._taken), "calls": calls}


def sampled(seconds: float) -> dict[str, Any]:
    """The sampler's own document of GPUs, and how often it found it could read them."""
    with SystemSampler() as sampler:
        time.sleep(seconds)
    document = sampler.samples()
    return {"sampler_cpu_ns": document["sampler_cpu_ns"], "gpu": document["gpu"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=25.0, help="how long the load runs (default 25)")
    arguments = parser.parse_args()
    sources, reasons = open_devices()
    if not sources:
        raise SystemExit(f"no NVIDIA GPU can be read: {reasons or 'NVML lists none'}")
    result: dict[str, Any] = {"refused": dict(reasons), "devices": [source.facts for source in sources]}
    first = sources[0]
    time.sleep(2)
    result["idle"] = {**beside(first, 0), "cost_us": costs(first), "sampled": sampled(3)}
    load = subprocess.Popen([sys.executable, "-c", LOAD, str(arguments.seconds)], stdout=subprocess.PIPE, text=True)
    try:
        assert load.stdout is not None
        if load.stdout.readline().strip() != "running":
            raise SystemExit("the load did not start; torch is needed")
        time.sleep(5)
        result["load"] = {**beside(first, 0), "cost_us": costs(first), "sampled": sampled(5)}
    finally:
        load.wait()
    time.sleep(1)
    result["after"] = beside(first, 0)
    for source in sources:
        source.close()
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "nvml.json").write_text(json.dumps(result, indent=1))
    wrong = []
    for state in ("idle", "load", "after"):
        for name, row in result[state]["values"].items():
            if row.get("agree") is False:
                wrong.append(f"{state} {name}: ours {row['before']}..{row['after']}, nvidia-smi {row['nvidia_smi']}")
        if state != "after":
            cost = result[state]["cost_us"]["reading"]["median"]
            print(f"{state}: a reading costs {cost:.1f} us")
            wrong += [f"{state}: a reading costs {cost:.1f} us"] if cost > MOST_US else []
    print("\n".join(wrong) or "all values agree")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
