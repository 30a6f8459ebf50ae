"""Each sample, built for this machine, gives what its harness says; a copy that is wrong in one place does not.

Two distributions and the small sizes: the others change nothing here, and take their time.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.correctness.checking import check
from aaco_pipeline.optimization.harness import load_harness
from aaco_pipeline.optimization.source import parse
from aaco_pipeline.optimization.targets import Layout, Worker
from aaco_pipeline.resources.targets.cpu.target import CpuTarget
from tests.optimization.samples.test_samples import FOLDER, SOURCES

#: In each sample a mistake of the kind that an optimization makes, and what it leads to.
MISTAKES = {
    "histogram": ("i < n; i += stride", "i < n - 1; i += stride", "outputs"),
    "reduction": ("step > 0", "step > 1", "outputs"),
    "row_dot": ("i < n; ++i", "i < n / 4 * 4; ++i", "outputs"),
    # Right but for an overflow: the least in place of the largest.
    "softmax": ("(in[i] > largest)", "(in[i] < largest)", "outputs"),
    "stencil": ("x >= nx", "x >= pitch", "outputs"),
    "tiled_gemm": ("c[(size_t)row * n + column] = sum", "c[(size_t)row * n + column + (n == 5)] = sum", "memory"),
}


@contextmanager
def started(source: bytes, kernel: str, folder: Path) -> Iterator[Worker]:
    target = CpuTarget()
    parameters = parse(source).kernel(kernel).parameters
    with target.start(target.build(source, kernel, parameters, Layout(1), folder)) as worker:
        yield worker


@pytest.mark.parametrize("name", sorted(MISTAKES))
def test_a_sample_is_right_and_a_mistake_in_it_is_found(name: str, tmp_path: Path) -> None:
    right, wrong, guard = MISTAKES[name]
    path = FOLDER / f"{name}.hip"
    source = path.read_bytes()
    assert source.count(right.encode()) >= 1
    harness = replace(load_harness(path, None, name), distributions=("normal", "huge"))
    changed = source.replace(right.encode(), wrong.encode())
    with ExitStack() as stack:
        baseline, again, mistaken = (
            stack.enter_context(started(one, name, tmp_path)) for one in (source, source, changed)
        )
        size = harness.sizes[-1]
        assert check(harness, baseline, again, seed=7, bit_exact=True, timed_size=size).elements > 0
        with pytest.raises(Refused) as caught:
            check(harness, baseline, mistaken, seed=7, bit_exact=False, timed_size=size)
    assert caught.value.guard == guard


def test_each_sample_has_its_mistake() -> None:
    assert sorted(MISTAKES) == [path.stem for path in SOURCES]
