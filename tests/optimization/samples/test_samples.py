"""Each sample has a whole harness and is right when built for this machine; a copy with a mistake is not."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aaco_pipeline.optimization import samples
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.correctness.checking import check
from aaco_pipeline.optimization.harness import DISTRIBUTIONS, load_harness
from aaco_pipeline.optimization.harness.validation import checked_call, checked_reference
from aaco_pipeline.optimization.source import parse
from aaco_pipeline.optimization.targets import Layout, Worker
from aaco_pipeline.resources.targets.cpu.target import CpuTarget

FOLDER = Path(samples.__file__).parent
SOURCES = sorted(FOLDER.glob("*.hip"))


def test_the_samples_are_those_that_the_documents_name() -> None:
    names = [path.stem for path in SOURCES]
    assert names == ["histogram", "reduction", "row_dot", "softmax", "stencil", "tiled_gemm"]
    assert {path.name for path in FOLDER.glob("*.py")} == {"__init__.py", *(f"{name}_harness.py" for name in names)}


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_sample_has_a_whole_harness(source: Path) -> None:
    harness = load_harness(source, None, source.stem)
    assert harness.distributions == DISTRIBUTIONS
    sizes = [size if isinstance(size, tuple) else (size,) for size in harness.sizes]
    assert any(set(size) == {1} for size in sizes)
    assert any(part % 2 for size in sizes for part in size if part > 1)
    for size in harness.sizes:
        for distribution in harness.distributions:
            call = checked_call(harness, size, distribution, np.random.default_rng(3))
            checked_reference(harness, call)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_sample_includes_hip_alone(source: Path) -> None:
    included = [line for line in source.read_text().splitlines() if line.startswith("#include")]
    assert included == ["#include <hip/hip_runtime.h>"]


def test_what_may_vary_in_use_varies_with_the_size() -> None:
    """A stencil's padding and a reduction's share: a kernel that takes them for constants is wrong at some size."""
    stencil = load_harness(FOLDER / "stencil.hip", None, "stencil")
    reduction = load_harness(FOLDER / "reduction.hip", None, "reduction")
    rng = np.random.default_rng(1)
    arguments = [stencil.drawn((nx, 9, 9), "zeros", rng).arguments for nx in range(9, 30)]
    paddings = {last.value - nx.value for _, _, nx, _, _, last in arguments}  # type: ignore[union-attr]
    assert len(paddings) > 15 and min(paddings) < 7 and max(paddings) > 15
    shares = [reduction.drawn(size, "zeros", rng).arguments[3].value for size in range(20000, 20050)]  # type: ignore[union-attr]
    assert len(set(shares)) > 40 and max(shares) <= 16384


def test_counts_pass_the_end_of_their_type() -> None:
    histogram = load_harness(FOLDER / "histogram.hip", None, "histogram")
    call = histogram.drawn(40961, "constant", np.random.default_rng(2))
    (expected, _) = checked_reference(histogram, call)["counts"]
    assert (expected < 1 << 32).all() and call.contents["counts"].min() > 0.9 * (1 << 32)
    wraps = [
        (checked_reference(histogram, one)["counts"][0] < one.contents["counts"].astype(np.float64)).any()
        for one in (histogram.drawn(8192, "uniform", np.random.default_rng(seed)) for seed in range(20))
    ]
    assert any(wraps)


#: A mistake in each sample of the kind that an optimization makes, and the guard that finds it.
MISTAKES = {
    "histogram": ("i < n; i += stride", "i < n - 1; i += stride", "outputs"),
    "reduction": ("step > 0", "step > 1", "outputs"),
    "row_dot": ("i < n; ++i", "i < n / 4 * 4; ++i", "outputs"),
    # Right but for an overflow: the least instead of the largest.
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


@pytest.mark.parametrize("name", [path.stem for path in SOURCES])
def test_a_sample_is_right_and_a_mistake_in_it_is_found(name: str, tmp_path: Path) -> None:
    right, wrong, guard = MISTAKES[name]
    path = FOLDER / f"{name}.hip"
    source = path.read_bytes()
    assert source.count(right.encode()) >= 1
    # Two distributions and the small sizes: the others change nothing here, and take their time.
    harness = replace(load_harness(path, None, name), distributions=("normal", "huge"))
    changed = source.replace(right.encode(), wrong.encode())
    with ExitStack() as stack:
        baseline, again, mistaken = (
            stack.enter_context(started(one, name, tmp_path)) for one in (source, source, changed)
        )
        size = harness.sizes[-1]
        assert check(harness, baseline, again, seed=7, bit_exact=True, timed_size=size).elements > 0
        with pytest.raises(Refused, match=f"^{guard}: "):
            check(harness, baseline, mistaken, seed=7, bit_exact=False, timed_size=size)
