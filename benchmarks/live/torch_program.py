"""The PyTorch program that `h200_injection.py` runs plain, traced by CUPTI, and under torch.profiler.

    torch_program.py KIND [PROFILE]

KIND: `mixed` (GEMMs, NVTX ranges, replays of a CUDA graph, copies), `small` (a launch-bound transformer at batch 1),
`large` (a device-bound GEMM loop), `leave` (ends by os._exit), `terminated` (waits for SIGTERM, Python's own handler).
PROFILE: `whole` puts torch.profiler around the work, `part` around its middle third only. Prints one JSON object.
"""

import collections
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable

import torch

COPIES = ("Memcpy", "Memset")


def mixed(device: torch.device) -> dict[str, object]:
    """GEMMs in named ranges, a replayed graph, copies of every way."""
    left = torch.randn(1024, 1024, device=device, dtype=torch.bfloat16)
    host = torch.randn(1 << 20)
    pinned = host.pin_memory()
    static = torch.zeros(256, 256, device=device)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            static.mul_(1.01).add_(1.0)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(5):
            static.mul_(1.01).add_(1.0)
    for step in range(20):
        torch.cuda.nvtx.range_push(f"step {step}")
        for _ in range(10):
            left = (left @ left).clamp_(-1, 1)
        graph.replay()
        host.to(device)
        pinned.to(device, non_blocking=True)
        left.float().sum().item()
        torch.cuda.nvtx.range_pop()
    torch.cuda.synchronize()
    return {"ranges": 20, "graph_kernels": 200}


def timed(step: Callable[[], object], count: int) -> dict[str, object]:
    """The step repeated, each time to its end on the device."""
    for _ in range(20):
        step()
    torch.cuda.synchronize()
    times = []
    for _ in range(count):
        begin = time.monotonic_ns()
        step()
        torch.cuda.synchronize()
        times.append(time.monotonic_ns() - begin)
    return {"iterations": count, "median_ns": statistics.median(times), "total_ns": sum(times)}


def small(device: torch.device) -> dict[str, object]:
    """A transformer of six layers at batch 1: bound by its launches."""
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, dropout=0.0)
    model = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).to(device).train()
    tokens = torch.randn(1, 32, 256, device=device)
    with torch.no_grad():
        return timed(lambda: model(tokens), 300)


def large(device: torch.device) -> dict[str, object]:
    """Products of large matrices: bound by the device."""
    left = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)
    return timed(lambda: [left @ left for _ in range(20)], 100)


def leave(device: torch.device) -> dict[str, object]:
    """Two hundred kernels, then no atexit."""
    values = torch.zeros(16, device=device)
    for _ in range(200):
        values.add_(1.0)
    torch.cuda.synchronize()
    print(json.dumps({"adds": 200, "left_ns": time.monotonic_ns()}), flush=True)
    os._exit(0)


def terminated(device: torch.device) -> dict[str, object]:
    """Kernels until SIGTERM, which Python's own handler turns into an exit with status 5."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
    values = torch.zeros(16, device=device)
    print("ready", flush=True)
    while True:
        values.add_(1.0)
        time.sleep(0.001)


def main() -> None:
    """Run the kind that was asked for; see the module."""
    kind, profile = sys.argv[1], (sys.argv[2:] or [""])[0]
    work = {"mixed": mixed, "small": small, "large": large, "leave": leave, "terminated": terminated}[kind]
    device = torch.device("cuda")
    torch.zeros(1, device=device)
    torch.cuda.synchronize()
    begin = time.monotonic_ns()
    if not profile:
        answer = work(device)
    else:
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        if profile == "part":
            work(device)
        with torch.profiler.profile(activities=activities) as profiler:
            answer = work(device)
        if profile == "part":
            work(device)
        names: collections.Counter[str] = collections.Counter()
        busy = 0
        for event in profiler.profiler.kineto_results.events():
            if event.device_type() == torch.autograd.DeviceType.CUDA and event.name():
                is_range = getattr(event, "is_user_annotation", lambda: False)()
                names["range" if is_range else event.name()] += 1
                busy += 0 if is_range or event.name().startswith(COPIES) else event.duration_ns()
        answer |= {"profiler_names": dict(names), "profiler_kernel_ns": busy}
    print(json.dumps(answer | {"wall_ns": time.monotonic_ns() - begin}), flush=True)


if __name__ == "__main__":
    main()
