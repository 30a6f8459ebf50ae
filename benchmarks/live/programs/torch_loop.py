"""The marked loop that the PyTorch programs share, with torch.profiler around it.

    python3 SCRIPT NAME [--steps N] [--fixed] [--profiled]
    python3 SCRIPT --serve

A program prints one JSON object: the time of its steps and, with --profiled, what torch.profiler saw. `--serve` forks
for each JSON line on standard input, so that every run has its own CUDA context but PyTorch is imported once.
"""

import argparse
import collections
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from aaco_pipeline.mark import iteration, phase

Step = Callable[[], object]
#: The programs of a script by their names: each makes its data and gives its step.
Programs = Mapping[str, Callable[[bool], Step]]
WARM_STEPS = 5


def graphed(step: Step) -> Step:
    """The step as a CUDA graph of what it launches."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay() -> None:
        graph.replay()

    return replay


# ---- one run ---------------------------------------------------------------------------------------------------------


def timed(step: Step, steps: int) -> int:
    """The steps' time in ns, to their end on the device."""
    with phase("loop"):
        torch.cuda.nvtx.range_push("loop")
        begin = time.monotonic_ns()
        for number in range(steps):
            torch.cuda.nvtx.range_push(f"step {number}")
            iteration.begin()
            step()
            iteration.end()
            torch.cuda.nvtx.range_pop()
        torch.cuda.synchronize()
        end = time.monotonic_ns()
        torch.cuda.nvtx.range_pop()
    return end - begin


def warmed(step: Step) -> None:
    """Everything loaded, the clock up, nothing left to do on the device."""
    with phase("warm-up"):
        torch.cuda._sleep(250_000_000)  # cycles of a spinning kernel
        for _ in range(WARM_STEPS):
            iteration.begin()
            step()
            iteration.end()
        torch.cuda.synchronize()


def activities(profiler: Any) -> Iterator[tuple[str, int, int]]:
    """Device activity that the profiler saw: name, start and duration in ns."""
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


def run(program: Callable[[bool], Step], steps: int, fixed: bool, profiled: bool) -> dict[str, Any]:
    """The program's answer."""
    torch.manual_seed(0)
    torch.zeros(1, device="cuda")
    step = program(fixed)
    warmed(step)
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


def one(programs: Programs, words: list[str]) -> None:
    """Run what was requested."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=programs)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--profiled", action="store_true")
    asked = parser.parse_args(words)
    print(json.dumps(run(programs[asked.name], asked.steps, asked.fixed, asked.profiled)), flush=True)


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


def main(programs: Programs) -> None:
    """One program, or as many as the server is requested, each in a process of its own."""
    arguments: list[str] | None = sys.argv[1:]
    if arguments == ["--serve"]:
        print(json.dumps({"torch": torch.__version__}), flush=True)
        arguments = serve()
    if arguments is not None:
        one(programs, arguments)
