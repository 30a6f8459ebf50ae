"""A target that computes in this process, at a cost that stands in the source: the whole way without a compiler."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from aaco_pipeline.optimization.candidates import Candidate, NotApplicable, Refused, Task
from aaco_pipeline.optimization.targets import Build, Call, Execution, Layout, Parameter, TargetName

SOURCE: Final = b"""#include <hip/hip_runtime.h>

__global__ void twice(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int cost = 10000;
    if (i < n) y[i] = 2.0f * x[i];
}
"""
HARNESS: Final = """
import numpy as np

from aaco_pipeline.optimization.harness import (
    Harness, Launch, buffer, draw, grid_for, make_call, output, rounding_bound, scalar,
)

def launch(size, block):
    return Launch(grid_for(size, block), block)

def call(size, distribution, rng):
    given = buffer("x", draw(distribution, rng, size))
    return make_call(launch(size, (64, 1, 1)), given, output("y", size), scalar("n", size))

def reference(call):
    twice = 2 * call.contents["x"].astype(np.float64)
    return {"y": (twice, rounding_bound(np.abs(twice), 1))}

def floor(size):
    return float(size), 8.0 * size

HARNESS = Harness(kernel="twice", sizes=(1, 7), timing_size=33, call=call, reference=reference, floor=floor,
                  launch=launch, distributions=("normal", "zeros"))
"""


#: What does not compile, and what computes something else.
BROKEN: Final = SOURCE.replace(b"10000", b"5001")
WRONG: Final = SOURCE.replace(b"10000", b"5000").replace(b"2.0f", b"3.0f")


def costing(nanoseconds: int) -> bytes:
    """The source with a kernel that takes so long."""
    return SOURCE.replace(b"10000;", f"{nanoseconds};".encode())


def written(folder: Path) -> Path:
    """The source with its harness in a folder."""
    (folder / "twice_harness.py").write_text(HARNESS)
    path = folder / "twice.hip"
    path.write_bytes(SOURCE)
    return path


class InProcess:
    """Runs what `twice` does, and triples where the source does. A call takes what the source says, to the nanosecond.

    Without noise: of code against itself that differs by chance, one search in a hundred is refused, and rightly so.
    """

    name: TargetName = "cpu"
    executed_on = "cpu-emulation"
    clock = "made up"
    wavefront_size = 64

    def build(self, source: bytes, kernel: str, parameters: Sequence[Parameter], layout: Layout, folder: Path) -> Build:
        if b"cost = 5001" in source:
            raise Refused("compile", "error: expected ';'")
        digest = hashlib.sha256(source).hexdigest()
        artefact = folder / "twice"
        artefact.write_bytes(source)
        return Build(self.name, kernel, artefact, digest, digest, "none 1.0", ("-O3",), layout, {"lds_bytes": 0})

    @contextmanager
    def start(self, build: Build) -> Iterator["_Worker"]:
        source = build.artefact.read_bytes()
        found = re.search(rb"cost = ([0-9]+)", source)
        assert found is not None
        yield _Worker(int(found[1]), b"3.0f" in source)


@dataclass
class _Worker:
    cost_ns: int
    is_wrong: bool

    def run(self, call: Call) -> Execution:
        factor = np.float32(3 if self.is_wrong else 2)
        with np.errstate(all="ignore"):
            outputs = {"y": np.multiply(call.contents["x"], factor, dtype=np.float32)}
        return Execution(outputs, self.cost_ns)


class Offers:
    """A proposer of these sources, one after the other."""

    name = "offers"

    def __init__(self, *offers: bytes) -> None:
        self.offers = offers

    def propose(self, task: Task) -> Iterator[Candidate | NotApplicable]:
        yield NotApplicable(self.name, "nothing to unroll")
        for number, offer in enumerate(self.offers):
            yield Candidate(task.kernel, offer, self.name, f"offer {number}", False, parameters={"number": number})
