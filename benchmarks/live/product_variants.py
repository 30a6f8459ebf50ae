"""What decides how quickly matrices are multiplied: bf16 and fp16 through cuBLASLt and PyTorch, changed one by one.

    python3 benchmarks/live/product_variants.py OUT [--seconds 45] [--library PATH]

Each variant is launched without pause for 150 ms after a rest. OUT/variants.json has, of each, the rate of
the first 50 ms, of the quickest 3 ms and 50 ms, and of the last 50 ms, with the clock and power that NVML told
meanwhile. Needs a Python with torch; `--library` names another cuBLASLt than the one that torch brings.
"""

import argparse
import ctypes
import functools
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

MIB = 1 << 20
RUN_SECONDS = 0.15
#: Numbers of cublasLt.h and library_types.h.
COMPUTE_32F, R_32F = 68, 0
TRANSPOSE_LEFT, TRANSPOSE_RIGHT, LARGEST_WORKSPACE, RESULT_BYTES = 3, 4, 1, 96
TYPES = {"bf16": (torch.bfloat16, 14), "fp16": (torch.half, 2)}

Launch = Callable[[], object]


@dataclass(frozen=True)
class Variant:
    """A product, and what it is made with."""

    name: str
    contents: str = "uniform"
    sides: tuple[int, int, int] = (8192, 8192, 8192)
    layout: str = "NN"
    workspace: int = 64 * MIB
    asked: int = 8
    rest: float = 0.2
    hot: bool = False


BASE = Variant("as it is")
VARIANTS = (
    BASE,
    replace(BASE, name="no rest, after half a second of products", hot=True, rest=0.0),
    replace(BASE, name="rest of 20 ms", hot=True, rest=0.02),
    replace(BASE, name="rest of 100 ms", hot=True, rest=0.1),
    replace(BASE, name="rest of 1 s", hot=True, rest=1.0),
    replace(BASE, name="the same matrix twice", contents="twice"),
    replace(BASE, name="normally distributed", contents="normal"),
    replace(BASE, name="from -1/64 to 1/64", contents="small"),
    replace(BASE, name="zeros", contents="zeros"),
    replace(BASE, name="left transposed", layout="TN"),
    replace(BASE, name="4096", sides=(4096, 4096, 4096)),
    replace(BASE, name="8448 x 8192 x 8192", sides=(8448, 8192, 8192)),
    replace(BASE, name="16384", sides=(16384, 16384, 16384)),
    replace(BASE, name="workspace of 32 MiB", workspace=32 * MIB),
    replace(BASE, name="one algorithm", asked=1),
    replace(BASE, name="32 algorithms", asked=32),
)


def main() -> int:
    """All variants of bf16, then of fp16; what time did not allow is told."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=45)
    parser.add_argument("--library", help="another cuBLASLt, tried beside the one of torch")
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(0), "torch": torch.__version__, "rows": []}
    watch = Watch()
    own = Lt(None)
    found["cublasLt"] = own.version
    jobs: list[tuple[Lt | None, Variant, str]] = [(own, variant, dtype) for variant in VARIANTS[:2] for dtype in TYPES]
    jobs += [(None, BASE, dtype) for dtype in TYPES]
    jobs += [(own, variant, dtype) for variant in VARIANTS[2:] for dtype in TYPES]
    if options.library:
        other = Lt(options.library)
        found["other cublasLt"] = other.version
        named = replace(BASE, name=f"cuBLASLt {other.version} of the toolkit")
        jobs += [(other, named, dtype) for dtype in TYPES]
    for lt, variant, dtype in jobs:
        if time.monotonic() > until:
            found.setdefault("left_out", []).append(f"{dtype} {variant.name}")
            continue
        try:
            for name, figures in measured(lt, variant, dtype, watch):
                found["rows"].append({"dtype": dtype, "variant": name, **figures})
                print(line(found["rows"][-1]), flush=True)
        except RuntimeError as error:
            found["rows"].append({"dtype": dtype, "variant": variant.name, "failed": str(error)[:500]})
            print(dtype, variant.name, "failed:", str(error)[:200], flush=True)
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "variants.json").write_text(json.dumps(found, indent=1))
    return 0


def line(row: dict[str, Any]) -> str:
    """A row for a person, in TFLOP/s."""
    rates = " ".join(f"{name} {row[name] / 1e12:6.1f}" for name in ("first_50ms", "best_3ms", "best_50ms", "last_50ms"))
    return f"{row['dtype']} {row['variant'][:44]:44s} {rates}  {row.get('clock_mhz')} MHz {row.get('power_w')} W"


def measured(lt: "Lt | None", variant: Variant, dtype: str, watch: "Watch") -> Iterator[tuple[str, dict[str, Any]]]:
    """Figures of cuBLASLt's best algorithm, or of PyTorch's ways to multiply the same matrices."""
    m, n, k = variant.sides
    work = 2.0 * m * n * k
    # cuBLASLt's matrices lie in columns: what PyTorch calls right is on its left.
    right = matrix(variant.contents, m * k, dtype, 1)
    left = right.clone() if variant.contents == "twice" else matrix(variant.contents, n * k, dtype, 2)
    out = torch.empty(m * n, dtype=TYPES[dtype][0], device="cuda")
    if lt is None:
        a, b, d = left.view(n, k), right.view(k, m), out.view(n, m)
        for backend in ("cublas", "cublaslt"):
            torch.backends.cuda.preferred_blas_library(backend)
            for name, launch in (
                ("torch.mm", lambda: torch.mm(a, b, out=d)),
                ("torch.mm, transposed", lambda: torch.mm(a, b.view(m, k).t(), out=d)),
            ):
                yield f"{name}, {backend}", best_of(launch, work, variant, watch, repetitions=2)
        torch.backends.cuda.preferred_blas_library("cublas")
        yield "torch.mm by triton.testing.do_bench", by_do_bench(lambda: torch.mm(a, b, out=d), work)
        return
    launches = lt.products(right, left, out, variant, TYPES[dtype][1])
    if not launches:
        return
    quick = [quickest(launch) for launch in launches]
    chosen = quick.index(min(quick))
    figures = best_of(launches[chosen], work, variant, watch, repetitions=3 if variant is BASE else 1)
    rates = [round(work / seconds / 1e12, 1) for seconds in quick]
    yield variant.name, {**figures, "algorithm": chosen + 1, "by_algorithm_tflops": rates}


def matrix(contents: str, elements: int, dtype: str, seed: int) -> torch.Tensor:
    """Numbers of that kind."""
    made = torch.Generator(device="cuda").manual_seed(seed)
    if contents == "zeros":
        numbers = torch.zeros(elements, device="cuda")
    elif contents == "normal":
        numbers = torch.randn(elements, device="cuda", generator=made)
    else:
        numbers = torch.rand(elements, device="cuda", generator=made) * 2 - 1
    return (numbers / 64 if contents == "small" else numbers).to(TYPES[dtype][0])


def quickest(launch: Launch) -> float:
    """Seconds of the quickest of five launches, after one and a short rest."""
    launch()
    torch.cuda.synchronize()
    time.sleep(0.02)
    times = stamps(launch, 5, 1)
    return min(end - begin for begin, end in itertools.pairwise(times))


def best_of(launch: Launch, work: float, variant: Variant, watch: "Watch", repetitions: int) -> dict[str, Any]:
    """Rates of launches without pause, each repetition after the variant's rest; of several the best."""
    launch()
    torch.cuda.synchronize()
    seconds = quickest(launch)
    every = max(1, round(0.0015 / seconds))
    count = max(4, round(RUN_SECONDS / seconds))
    found: list[dict[str, Any]] = []
    for _ in range(repetitions):
        if variant.hot:
            stamps(launch, round(0.5 / seconds), 100)
        torch.cuda.synchronize()
        if variant.rest:
            time.sleep(variant.rest)
        begun = time.monotonic()
        times = stamps(launch, count, every)
        rates = {
            "first_50ms": over(times, every * work, 0.05, first=True),
            "best_3ms": over(times, every * work, 0.003),
            "best_50ms": over(times, every * work, 0.05),
            "last_50ms": over([times[-1] - at for at in reversed(times)], every * work, 0.05, first=True),
        }
        found.append({**rates, **watch.between(begun, time.monotonic())})
    best = max(found, key=lambda one: float(one["best_50ms"]))
    return {**best, "every_first_50ms": [one["first_50ms"] for one in found]}


def stamps(launch: Launch, launches: int, every: int) -> list[float]:
    """The GPU's time before the first launch and after each `every` of them, in seconds from the first."""
    events = [torch.cuda.Event(enable_timing=True)]
    events[0].record()
    for number in range(1, launches + 1):
        launch()
        if number % every == 0:
            events.append(torch.cuda.Event(enable_timing=True))
            events[-1].record()
    torch.cuda.synchronize()
    return [events[0].elapsed_time(event) / 1e3 for event in events]


def over(times: list[float], work: float, seconds: float, *, first: bool = False) -> float:
    """The most work a second over windows that last at least so long, or that of the first window."""
    best, end = 0.0, 0
    for begin, at in enumerate(times):
        while end < len(times) and times[end] - at < seconds:
            end += 1
        if end == len(times):
            break
        best = max(best, (end - begin) * work / (times[end] - at))
        if first:
            break
    return best or (len(times) - 1) * work / times[-1]


def by_do_bench(launch: Launch, work: float) -> dict[str, Any]:
    """Triton's way: single launches, L2 overwritten before each."""
    from triton.testing import do_bench

    times = sorted(do_bench(launch, warmup=100, rep=200, return_mode="all"))
    best, median = work / times[0] * 1e3, work / times[len(times) // 2] * 1e3
    return {"first_50ms": median, "best_3ms": best, "best_50ms": median, "last_50ms": median, "launches": len(times)}


class Lt:
    """cuBLASLt by ctypes: torch's own, or that of a path."""

    def __init__(self, path: str | None) -> None:
        torch.mm(*(torch.zeros(16, 16, device="cuda"),) * 2)
        name = path or next(
            (at.split()[-1] for at in Path("/proc/self/maps").read_text().splitlines() if "libcublasLt.so" in at),
            "libcublasLt.so.13",
        )
        self.library = ctypes.CDLL(name, mode=os.RTLD_LOCAL | os.RTLD_DEEPBIND)
        self.library.cublasLtGetVersion.restype = ctypes.c_size_t
        self.version = f"{self.library.cublasLtGetVersion()}"
        self.handle = ctypes.c_void_p()
        self._done("cublasLtCreate", ctypes.byref(self.handle))
        self.one, self.zero = ctypes.c_float(1), ctypes.c_float(0)
        self.workspace = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")

    def _done(self, call: str, *arguments: object) -> None:
        status = getattr(self.library, call)(*arguments)
        if status:
            raise RuntimeError(f"{call}: status {status}")

    def _made(self, call: str, *arguments: object) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self._done(call, ctypes.byref(made), *arguments)
        return made

    def _layout(self, kind: int, rows: int, columns: int) -> ctypes.c_void_p:
        sizes = ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows)
        return self._made("cublasLtMatrixLayoutCreate", kind, *sizes)

    def products(
        self, left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, variant: Variant, kind: int
    ) -> list[Launch]:
        """A launch for each algorithm that the library offers and that works."""
        m, n, k = variant.sides
        product = self._made("cublasLtMatmulDescCreate", COMPUTE_32F, R_32F)
        for attribute, letter in ((TRANSPOSE_LEFT, variant.layout[0]), (TRANSPOSE_RIGHT, variant.layout[1])):
            value = ctypes.c_int32(letter == "T")
            self._done("cublasLtMatmulDescSetAttribute", product, attribute, ctypes.byref(value), ctypes.c_size_t(4))
        a = self._layout(kind, *((k, m) if variant.layout[0] == "T" else (m, k)))
        b = self._layout(kind, *((n, k) if variant.layout[1] == "T" else (k, n)))
        d = self._layout(kind, m, n)
        preference = self._made("cublasLtMatmulPreferenceCreate")
        size = ctypes.c_size_t(variant.workspace)
        self._done(
            "cublasLtMatmulPreferenceSetAttribute",
            preference,
            LARGEST_WORKSPACE,
            ctypes.byref(size),
            ctypes.c_size_t(8),
        )
        results = ctypes.create_string_buffer(RESULT_BYTES * variant.asked)
        count = ctypes.c_int()
        self._done(
            "cublasLtMatmulAlgoGetHeuristic",
            *(self.handle, product, a, b, d, d, preference, variant.asked, results, ctypes.byref(count)),
        )
        places = [ctypes.c_void_p(one.data_ptr()) for one in (left, right, out)]
        workspace, stream = ctypes.c_void_p(self.workspace.data_ptr()), ctypes.c_void_p(0)
        launches: list[Launch] = []
        for number in range(count.value):
            algorithm = ctypes.create_string_buffer(results.raw[number * RESULT_BYTES : (number + 1) * RESULT_BYTES])
            arguments = (
                *(self.handle, product, ctypes.byref(self.one), places[0], a, places[1], b),
                *(ctypes.byref(self.zero), places[2], d, places[2], d, algorithm, workspace, size, stream),
            )
            if not self.library.cublasLtMatmul(*arguments):
                launches.append(functools.partial(self.library.cublasLtMatmul, *arguments))
        torch.cuda.synchronize()
        return launches


class Watch:
    """Clock and power every 5 ms, where NVML answers."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, int, float, int]] = []
        try:
            self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        self.gpu = ctypes.c_void_p()
        if not self.nvml.nvmlInit_v2() and not self.nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.gpu)):
            threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        clock, power, reasons = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_ulonglong()
        while True:
            self.nvml.nvmlDeviceGetClockInfo(self.gpu, 1, ctypes.byref(clock))
            self.nvml.nvmlDeviceGetPowerUsage(self.gpu, ctypes.byref(power))
            self.nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self.gpu, ctypes.byref(reasons))
            self.seen.append((time.monotonic(), clock.value, power.value / 1e3, reasons.value))
            time.sleep(0.005)

    def between(self, begin: float, end: float) -> dict[str, Any]:
        """Lowest and highest clock, highest power, and reasons to lower the clock, in that time."""
        seen = [one for one in self.seen if begin <= one[0] <= end]
        if not seen:
            return {}
        clocks = [one[1] for one in seen]
        reasons = 0
        for one in seen:
            reasons |= one[3]
        return {
            "clock_mhz": [min(clocks), max(clocks)],
            "power_w": round(max(one[2] for one in seen)),
            "clock_reasons": hex(reasons),
            "clocks_in_order": clocks[:: max(1, len(clocks) // 20)],
        }


if __name__ == "__main__":
    sys.exit(main())
