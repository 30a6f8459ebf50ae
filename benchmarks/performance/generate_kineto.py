"""Generate a PyTorch trace of a transformer block on an MI300X, as Kineto writes it; nothing in it was measured."""

import argparse
import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

STEPS: Final = 3
LAYERS: Final = 8
TOKENS: Final = 4096
WIDTH: Final = 2048
INNER: Final = 8192
HEADS: Final = 16
HEAD: Final = 128
BF16: Final = "c10::BFloat16"
MATRIX_FLOPS: Final = 450e12
ATTENTION_FLOPS: Final = 120e12
STREAM_BYTES: Final = 2.0e12
#: Host time that a launch takes, and by how much it precedes its kernel at least, in microseconds.
LAUNCH_US: Final = 6.0
PRODUCT: Final = "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64_MI16x16x1_ISA942"
ELEMENTWISE: Final = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::{}, std::array<char*, 3ul> >"
    "(int, at::native::{}, std::array<char*, 3ul>)"
)


def operators() -> Iterator[tuple[str, list[list[int]], str, float]]:
    """Rows of one layer: operator, shapes of its inputs, kernel, and how many microseconds that takes."""
    rows = [TOKENS, WIDTH]
    for wide, deep in ((3 * WIDTH, WIDTH), (WIDTH, WIDTH), (INNER, WIDTH), (WIDTH, INNER)):
        time = 2 * TOKENS * wide * deep / MATRIX_FLOPS * 1e6
        yield "aten::mm", [[TOKENS, deep], [deep, wide]], PRODUCT, time
    heads = [1, HEADS, TOKENS, HEAD]
    flops = 4 * HEADS * TOKENS * TOKENS * HEAD
    tensors = [heads, heads, heads, [], [], [], []]
    yield "aten::_scaled_dot_product_flash_attention", tensors, "attn_fwd", flops / ATTENTION_FLOPS * 1e6
    time = 3 * 2 * TOKENS * WIDTH / STREAM_BYTES * 1e6
    for name, functor, count in (("add", "CUDAFunctor_add<c10::BFloat16>", 6), ("mul", "BinaryFunctor", 8)):
        for _ in range(count):
            yield f"aten::{name}", [rows, rows], ELEMENTWISE.format(functor, functor), time


def events() -> Iterator[dict[str, Any]]:
    """The trace's events in order; times in microseconds."""
    host, device, number = 1_000.0, 1_050.0, 1
    for step in range(STEPS):
        begun = host
        for _ in range(LAYERS):
            for operator, shapes, kernel, time in operators():
                of_thread = {"ph": "X", "pid": 1, "tid": 1}
                inputs = {"Input Dims": shapes, "Input type": [BF16 if shape else "Scalar" for shape in shapes]}
                inputs["Concrete Inputs"] = ["" if shape else "False" for shape in shapes]
                yield {**of_thread, "cat": "cpu_op", "name": operator, "ts": host, "dur": LAUNCH_US, "args": inputs}
                call = {**of_thread, "cat": "cuda_runtime", "name": "hipLaunchKernel", "ts": host + 1, "dur": 4.0}
                yield {**call, "args": {"correlation": number}}
                device = max(device, host + LAUNCH_US)
                where = {"device": 0, "stream": 0, "correlation": number, "grid": [1, 1, 1], "block": [256, 1, 1]}
                run = {"ph": "X", "cat": "kernel", "name": kernel, "pid": 0, "tid": 0}
                yield {**run, "ts": device, "dur": time, "args": where}
                device, host, number = device + time + 1.0, host + LAUNCH_US + 1.0, number + 1
        waits = {"ph": "X", "cat": "cuda_runtime", "name": "hipDeviceSynchronize", "pid": 1, "tid": 1}
        yield {**waits, "ts": host, "dur": device - host + 2.0, "args": {"correlation": number}}
        host, number = device + 12.0, number + 1
        marked = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1}
        yield {**marked, "ts": begun, "dur": host - begun}


def document() -> dict[str, Any]:
    """The trace with the device that it names."""
    sizes = {"computeMajor": 9, "computeMinor": 4, "numSms": 304, "warpSize": 64}
    device = {"id": 0, "name": "AMD Instinct MI300X", **sizes}
    facts = {"schemaVersion": 1, "deviceProperties": [device], "record_shapes": 1, "traceName": "generated"}
    return {**facts, "displayTimeUnit": "ms", "traceEvents": list(events())}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    text = json.dumps(document(), separators=(",", ":")).encode()
    with parser.parse_args().file.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
        packed.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
