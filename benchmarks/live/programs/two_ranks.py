"""Two processes on two GPUs that exchange after each step, one of them late by construction.

    python3 two_ranks.py [--fixed | --slow-host] [--own-device] [--steps 50] [--profiled FOLDER]

Needs the standard library; the processes that it starts need PyTorch with NCCL. A step of a rank: products of
matrices on its own GPU, an all-reduce over both, a wait for it. Rank 1 multiplies three times as often as rank 0; with
--fixed both do the same, with --slow-host the same, and rank 1's host sleeps 4 ms before each step's launches.
With --own-device a rank sees its own GPU alone (CUDA_VISIBLE_DEVICES), as device 0.
Each step is an iteration by `aaco_pipeline/recording/mark.py` and an NVTX range "step N".

Prints one JSON object a rank: times of its steps by its own clock (CLOCK_MONOTONIC, ns) and by events on its GPU, the
products and then the exchange with whatever it waits for in it. With --profiled both ranks also leave a trace of
torch.profiler. The environment is passed on as it is; only what names the rank is added.
"""

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

RANKS: Final = 2
LATE: Final = 1
SIZE: Final = 4096
PRODUCTS: Final = 10
MORE_PRODUCTS: Final = 20
SLEEP_SECONDS: Final = 0.004
EXCHANGED_BYTES: Final = 32 << 20
WARM_STEPS: Final = 5
_SECONDS: Final = 60.0
_MS_NS: Final = 1e6


def start(arguments: list[str], *, own_device: bool) -> int:
    """Start the ranks, print what each says, and tell whether all came to their end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(RANKS)}
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, *arguments, "--rank", str(rank)],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank), **(visible(rank) if own_device else {})},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    until = time.monotonic() + _SECONDS
    try:
        for rank in ranks:
            print(rank.communicate(timeout=max(0.0, until - time.monotonic()))[0], end="", flush=True)
    except subprocess.TimeoutExpired:
        print(f"the ranks did not end within {_SECONDS:.0f} s", file=sys.stderr)
    for rank in ranks:
        rank.kill()  # one that has ended is left alone
        rank.wait()
    return 0 if all(rank.returncode == 0 for rank in ranks) else 1


def visible(rank: int) -> dict[str, str]:
    """What leaves a rank its own GPU of those that this process may see."""
    known = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return {"CUDA_VISIBLE_DEVICES": known.split(",")[rank] if known else str(rank)}


def work(asked: argparse.Namespace) -> dict[str, Any]:
    """One rank's steps."""
    import torch
    import torch.distributed as dist

    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
    from aaco_pipeline.recording.mark import iteration, phase

    rank = asked.rank
    device = torch.device("cuda", 0 if asked.own_device else rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    late = rank == LATE
    products = PRODUCTS + (MORE_PRODUCTS if late and not (asked.fixed or asked.slow_host) else 0)
    left, right = (torch.randn(SIZE, SIZE, device=device, dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(left)
    exchanged = torch.zeros(EXCHANGED_BYTES // 4, device=device)
    events: list[tuple[Any, Any, Any]] = []
    said: dict[str, list[int]] = {"begin_ns": [], "launched_ns": [], "end_ns": []}

    def step(number: int) -> None:
        begin, between, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        said["begin_ns"].append(time.monotonic_ns())
        torch.cuda.nvtx.range_push(f"step {number}")
        if asked.slow_host and late:
            time.sleep(SLEEP_SECONDS)
        begin.record()
        for _ in range(products):
            torch.mm(left, right, out=out)
        between.record()
        dist.all_reduce(exchanged)
        end.record()
        said["launched_ns"].append(time.monotonic_ns())
        torch.cuda.synchronize()
        torch.cuda.nvtx.range_pop()
        said["end_ns"].append(time.monotonic_ns())
        events.append((begin, between, end))

    with phase("warmup"):
        for number in range(WARM_STEPS):
            step(number)
    dist.barrier()
    events.clear()
    for times in said.values():
        times.clear()
    with profiled(asked.profiled, rank):
        for number in range(asked.steps):
            with iteration():
                step(number)
    dist.barrier()
    dist.destroy_process_group()
    return {
        "rank": rank,
        "pid": os.getpid(),
        "device": str(torch.cuda.get_device_properties(device).uuid),
        "device_name": torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "products": products,
        "exchanged_bytes": EXCHANGED_BYTES,
        **said,
        "products_ns": [round(begin.elapsed_time(between) * _MS_NS) for begin, between, _ in events],
        "exchange_ns": [round(between.elapsed_time(end) * _MS_NS) for _, between, end in events],
    }


@contextlib.contextmanager
def profiled(folder: Path | None, rank: int) -> Iterator[None]:
    """torch.profiler around the steps, where a folder for its trace is named."""
    if folder is None:
        yield
        return
    import torch

    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        yield
    profiler.export_chrome_trace(str(folder / f"rank{rank}.json.gz"))


def main() -> None:
    """Start the ranks, or be one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--profiled", type=Path)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--own-device", action="store_true")
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--fixed", action="store_true")
    ways.add_argument("--slow-host", action="store_true")
    asked = parser.parse_args()
    if asked.rank is None:
        sys.exit(start(sys.argv[1:], own_device=asked.own_device))
    print(json.dumps(work(asked)), flush=True)


if __name__ == "__main__":
    main()
