"""Measure what libraries reach on this GPU, memory and matrix products, in windows of 50 ms; prints JSON."""

import ctypes
import json
import math
import statistics
import sys
import time
from collections.abc import Callable

import torch

WINDOW_SECONDS = 0.05
REST_SECONDS = 0.1
WINDOWS = 4
DEVICE_TO_DEVICE = 3


def rate(work: float, launch: Callable[[], object]) -> dict[str, float]:
    """Work per second over windows of launches."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def once(launches: int) -> float:
        begin.record()
        for _ in range(launches):
            launch()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / launches

    once(2)
    launches = max(1, math.ceil(WINDOW_SECONDS / once(2)))
    windows = []
    for _ in range(WINDOWS):
        time.sleep(REST_SECONDS)
        windows.append(work / once(launches))
    return {"best": max(windows), "median": statistics.median(windows), "windows": len(windows)}


def memory() -> dict[str, dict[str, float]]:
    """Copies, sums and products of arrays of 2 GiB."""
    a, b, c = (torch.rand(1 << 29, device="cuda") for _ in range(3))
    size = a.nbytes
    runtime = ctypes.CDLL(f"libcudart.so.{str(torch.version.cuda).partition('.')[0]}")
    places = ctypes.c_void_p(b.data_ptr()), ctypes.c_void_p(a.data_ptr())

    def copy() -> None:
        if runtime.cudaMemcpyAsync(*places, ctypes.c_size_t(size), DEVICE_TO_DEVICE, ctypes.c_void_p(0)):
            raise RuntimeError("cudaMemcpyAsync failed")

    return {
        "memory cudaMemcpyAsync": rate(2 * size, copy),
        "memory copy_": rate(2 * size, lambda: b.copy_(a)),
        "memory add(a, b, alpha)": rate(3 * size, lambda: torch.add(a, b, alpha=0.5, out=c)),
        "memory mul in place": rate(2 * size, lambda: a.mul_(1.0001)),
        "memory sum": rate(size, a.sum),
        "memory fill_": rate(size, lambda: c.fill_(1.0)),
    }


def product(left: torch.Tensor, right: torch.Tensor) -> dict[str, float]:
    """One format's product through cuBLAS."""
    out = torch.empty_like(left)
    return rate(2 * len(left) ** 3, lambda: torch.mm(left, right, out=out))


def product_of_bytes(left: torch.Tensor, right: torch.Tensor) -> dict[str, float]:
    """The product of 8-bit floating-point numbers, accumulated as quickly as the GPU can."""
    one = torch.ones((), device="cuda")
    given = {"out_dtype": torch.bfloat16, "use_fast_accum": True}
    return rate(2 * len(left) ** 3, lambda: torch._scaled_mm(left, right, one, one, **given))


def main() -> int:
    """Memory, and products of two sizes in five formats."""
    found = {"torch": torch.__version__, "device": torch.cuda.get_device_name(0), **memory()}
    torch.backends.cuda.matmul.allow_tf32 = True
    for side in (4096, 8192):
        left, right = (torch.rand(side, side, device="cuda") * 2 - 1 for _ in range(2))
        formats = {"fp64": torch.float64, "xf32": torch.float32, "fp16": torch.half, "bf16": torch.bfloat16}
        for name, dtype in formats.items():
            found[f"matrix {name} {side}"] = product(left.to(dtype), right.to(dtype))
            found[f"matrix {name} {side} transposed"] = product(left.to(dtype), right.to(dtype).t())
        found[f"matrix fp8 {side}"] = product_of_bytes(left.to(torch.float8_e4m3fn), right.to(torch.float8_e4m3fn).t())
    torch.backends.cuda.matmul.allow_tf32 = False
    found["vector fp32 product 8192"] = product(left, right)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
