"""Kineto traces of graphs made here: one in which they are captured, and one in which they are replayed."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

BF16: Final = "c10::BFloat16"
Event = dict[str, Any]


@dataclass(frozen=True)
class Launch:
    """One launch of a graph: by which operator with inputs of which shapes, and what it runs; no kernel is a copy."""

    operator: str
    shapes: tuple[tuple[int, ...], ...]
    kernel: str | None
    grid: int = 4


def layers(count: int, rows: int = 16, *, grid: int = 4) -> list[Launch]:
    """Layers of a product, an elementwise function and a fill."""
    layer = [
        Launch("aten::mm", ((rows, 32), (32, 64)), "gemm", grid),
        Launch("aten::relu", ((rows, 64),), "relu", grid),
        Launch("aten::zero_", ((rows, 64),), None),
    ]
    return layer * count


class Trace:
    """Events on one thread, one after another."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._now = 100

    def call(self, name: str, cat: str = "cuda_runtime", **args: Any) -> "Trace":
        """A call of the runtime."""
        self._add(cat, name, 2, args)
        return self

    def launch(self, one: Launch, *, named: bool, ran: bool) -> None:
        """An operator that launches; `named` as ROCm's calls state their kernel, `ran` with the record that it left."""
        self._add("cpu_op", one.operator, 8, _inputs(one), step=2)
        name = "hipMemsetAsync" if one.kernel is None else "hipLaunchKernel"
        size = {"grid": [one.grid, 1, 1], "block": [64, 1, 1]}
        stated = {"kernel": one.kernel, **size} if named and one.kernel is not None else {}
        correlation = len(self.events) + 1
        self._add("cuda_runtime", name, 2, {"correlation": correlation, **stated}, step=8)
        if ran:
            self.record(one, correlation)

    def record(self, one: Launch, correlation: int, stream: int = 7) -> None:
        """The activities of the device."""
        place = {"device": 0, "stream": stream, "correlation": correlation}
        size = {"grid": [one.grid, 1, 1], "block": [64, 1, 1]}
        if one.kernel is None:
            self._add("gpu_memset", "Memset (Device)", 3, {**place, "bytes": 64}, step=5)
        else:
            self._add("kernel", one.kernel, 5, {**place, **size}, step=5)

    def capture(self, graph: Sequence[Launch], *, named: bool = False) -> "Trace":
        """A graph is captured."""
        self.call("hipStreamBeginCapture", correlation=len(self.events) + 1)
        for one in graph:
            self.launch(one, named=named, ran=False)
        return self.call("hipStreamEndCapture", correlation=len(self.events) + 1)

    def warm_up(self, graph: Sequence[Launch]) -> "Trace":
        """The same is run before, and recorded."""
        for one in graph:
            self.launch(one, named=False, ran=True)
        return self

    def replay(self, graph: Sequence[Launch], times: int = 1, *, streams: int = 1) -> "Trace":
        """A graph is launched, and what it runs recorded."""
        for _ in range(times):
            correlation = len(self.events) + 1
            self.call("hipGraphLaunch", correlation=correlation)
            for number, one in enumerate(graph):
                self.record(one, correlation, stream=7 + number % streams)
        return self

    def write(self, path: Path) -> Path:
        """The trace as a file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [], "traceEvents": self.events}))
        return path

    def _add(self, cat: str, name: str, took: int, args: Event, step: int = 10) -> None:
        on_device = {"pid": 0, "tid": 7} if cat in ("kernel", "gpu_memset") else {"pid": 1, "tid": 1}
        times = {"ts": self._now, "dur": took}
        self.events.append({"ph": "X", "cat": cat, "name": name, **on_device, **times, "args": args})
        self._now += step


def _inputs(one: Launch) -> Event:
    shapes = [list(shape) for shape in one.shapes]
    return {"Input Dims": shapes, "Input type": [BF16] * len(shapes), "Concrete Inputs": [""] * len(shapes)}
