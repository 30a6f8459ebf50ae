"""Programs with a known cause in PyTorch; `catalogue.py` says what each is slow by.

    python3 torch_programs.py NAME [--steps N] [--fixed] [--profiled]
    python3 torch_programs.py --serve

A program prints one JSON object: the time of its steps and, with --profiled, what torch.profiler saw of them. Every
step is an NVTX range "step N", all of them together are the range "loop". Steps do not wait for the device unless
waiting is the cause. `--serve` imports PyTorch once and forks for each line on standard input, a JSON object with
`arguments`, `environment`, `output` (a file) and `timeout_s`; it answers each with a line. CUDA begins in the forked
process alone, so every run has its own context and whatever is injected into it.
"""

import argparse
import collections
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional

Step = Callable[[], object]
WARM_STEPS = 5


# ---- the programs: each makes its data and gives its step ------------------------------------------------------------


def products(size: int, dtype: torch.dtype) -> Step:
    """Two products of square matrices."""
    left, right = (torch.randn(size, size, device="cuda", dtype=dtype) for _ in range(2))
    out = torch.empty_like(left)

    def step() -> None:
        for _ in range(2):
            torch.mm(left, right, out=out)

    return step


def gemm_fp32(fixed: bool) -> Step:
    torch.set_float32_matmul_precision("high" if fixed else "highest")
    return products(4096, torch.float32)


def gemm_tf32(fixed: bool) -> Step:
    torch.set_float32_matmul_precision("high")
    return products(8192, torch.bfloat16 if fixed else torch.float32)


def gemm_bf16(fixed: bool) -> Step:
    if not fixed:
        return products(8192, torch.bfloat16)
    left, right = (torch.randn(8192, 8192, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device="cuda")

    def step() -> None:
        for _ in range(2):
            torch._scaled_mm(left, right.t(), one, one, out_dtype=torch.bfloat16)

    return step


def host_sleeps(fixed: bool) -> Step:
    work = products(4096, torch.bfloat16)

    def step() -> None:
        for _ in range(5):
            work()
        if not fixed:
            torch.cuda.synchronize()
            time.sleep(0.004)

    return step


def item_each_step(fixed: bool) -> Step:
    values = torch.randn(8 << 20, device="cuda")
    total = torch.zeros((), device="cuda")

    def step() -> None:
        for _ in range(4):
            torch.sum(values, 0, out=total)
            if not fixed:
                total.item()

    return step


def pageable_copies(fixed: bool) -> Step:
    host = torch.randn(16 << 20)  # 64 MiB
    weights = torch.randn(4096, 4096, device="cuda")
    if not fixed:

        def step() -> None:
            rows = host.to("cuda").view(4096, 4096)
            torch.mm(rows, weights)

        return step
    pinned = host.pin_memory()
    side = torch.cuda.Stream()
    places = [torch.empty_like(weights) for _ in range(2)]
    copied = [torch.cuda.Event() for _ in places]
    used = [torch.cuda.Event() for _ in places]
    turn = 0

    def copy(into: int) -> None:
        with torch.cuda.stream(side):
            side.wait_event(used[into])
            places[into].view(-1).copy_(pinned, non_blocking=True)
            copied[into].record(side)

    copy(0)

    def overlapped() -> None:
        nonlocal turn
        copy(1 - turn)
        main = torch.cuda.current_stream()
        main.wait_event(copied[turn])
        torch.mm(places[turn], weights)
        used[turn].record(main)
        turn = 1 - turn

    return overlapped


def transformer_batch_1(fixed: bool) -> Step:
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, dropout=0.0)
    model = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).cuda().train()  # the fast path fuses
    tokens = torch.randn(1, 32, 256, device="cuda")

    def eager() -> None:
        with torch.no_grad():
            model(tokens)

    if not fixed:
        return eager
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            eager()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        eager()

    def replay() -> None:
        graph.replay()

    return replay


class Block(torch.nn.Module):  # type: ignore[misc]  # torch is not installed where types are checked
    """Two convolutions with a way around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (torch.nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.first_norm, self.second_norm = (torch.nn.BatchNorm2d(channels) for _ in range(2))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        inner = functional.relu(self.first_norm(self.first(images)))
        return functional.relu(images + self.second_norm(self.second(inner)))


def training(fixed: bool) -> Step:
    torch.set_float32_matmul_precision("high")
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 128, 7, stride=2, padding=3), *(Block(128) for _ in range(4)), torch.nn.AdaptiveAvgPool2d(1)
    )
    model.append(torch.nn.Flatten()).append(torch.nn.Linear(128, 100))
    model = model.cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=True)
    images = torch.randn(64, 3, 128, 128, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(0, 100, (64,), device="cuda")

    def step() -> None:
        if not fixed:
            torch.cuda.synchronize()
            until = time.monotonic_ns() + 15_000_000
            while time.monotonic_ns() < until:  # stands for decoding and augmenting
                pass
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    return step


PROGRAMS: dict[str, Callable[[bool], Step]] = {
    "gemm_fp32": gemm_fp32,
    "gemm_tf32": gemm_tf32,
    "gemm_bf16": gemm_bf16,
    "host_sleeps": host_sleeps,
    "item_each_step": item_each_step,
    "pageable_copies": pageable_copies,
    "transformer_batch_1": transformer_batch_1,
    "training": training,
}


# ---- one run ---------------------------------------------------------------------------------------------------------


def timed(step: Step, steps: int) -> int:
    """The steps' time in ns, to their end on the device."""
    torch.cuda.nvtx.range_push("loop")
    begin = time.monotonic_ns()
    for number in range(steps):
        torch.cuda.nvtx.range_push(f"step {number}")
        step()
        torch.cuda.nvtx.range_pop()
    torch.cuda.synchronize()
    end = time.monotonic_ns()
    torch.cuda.nvtx.range_pop()
    return end - begin


def activities(profiler: Any) -> Iterator[tuple[str, int, int]]:
    """What the profiler saw on the device: name, start and duration in ns."""
    for event in profiler.profiler.kineto_results.events():
        is_range = getattr(event, "is_user_annotation", lambda: False)()
        if event.device_type() == torch.autograd.DeviceType.CUDA and event.name() and not is_range:
            yield event.name(), event.start_ns(), event.duration_ns()


def busy_ns(spans: list[tuple[int, int]]) -> int:
    """Time covered by at least one span (start, end)."""
    busy, until = 0, 0
    for start, end in sorted(spans):
        busy += max(0, end - max(start, until))
        until = max(until, end)
    return busy


def run(name: str, steps: int, fixed: bool, profiled: bool) -> dict[str, Any]:
    """The program's answer."""
    torch.manual_seed(0)
    torch.zeros(1, device="cuda")
    step = PROGRAMS[name](fixed)
    torch.cuda._sleep(250_000_000)  # cycles of a spinning kernel: the clock goes up
    for _ in range(WARM_STEPS):
        step()
    torch.cuda.synchronize()
    answer: dict[str, Any] = {"steps": steps}
    if not profiled:
        return answer | {"loop_ns": timed(step, steps)}
    both = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=both) as profiler:
        answer["loop_ns"] = timed(step, steps)
    names: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
    spans = []
    for kind, start, duration in activities(profiler):
        names[kind][0] += 1
        names[kind][1] += duration
        spans.append((start, start + duration))
    first_to_last = max(end for _, end in spans) - min(start for start, _ in spans) if spans else 0
    return answer | {"names": names, "busy_ns": busy_ns(spans), "first_to_last_ns": first_to_last}


def main(words: list[str]) -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=PROGRAMS)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--profiled", action="store_true")
    asked = parser.parse_args(words)
    print(json.dumps(run(asked.name, asked.steps, asked.fixed, asked.profiled)), flush=True)


# ---- the server ------------------------------------------------------------------------------------------------------


def waited(child: int, timeout_s: float) -> int:
    """The child's exit code once it has ended; a child that takes longer is killed."""
    until = time.monotonic() + timeout_s
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            until = float("inf")
        time.sleep(0.005)


def serve() -> list[str] | None:
    """Fork for each request; in the forked process the arguments of the program, None once there are no more."""
    for line in iter(sys.stdin.readline, ""):
        request = json.loads(line)
        begin = time.monotonic_ns()
        child = os.fork()
        if child == 0:
            os.environ.update(request["environment"])
            output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the requests are the server's
            return list(request["arguments"])
        status = waited(child, request["timeout_s"])
        print(json.dumps({"status": status, "wall_ns": time.monotonic_ns() - begin}), flush=True)
    return None


if __name__ == "__main__":
    arguments: list[str] | None = sys.argv[1:]
    if arguments == ["--serve"]:
        print(json.dumps({"torch": torch.__version__}), flush=True)
        arguments = serve()
    if arguments is not None:
        main(arguments)
