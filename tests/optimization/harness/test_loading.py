"""A harness is read from beside its source; a missing one is answered with a start of one."""

import ast
import sys
from pathlib import Path

import pytest

from aaco_pipeline.errors import UsageError
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.harness import DISTRIBUTIONS, NoHarness, load_harness
from tests.places import ROOT

SOURCE = """
#include <hip/hip_runtime.h>
__global__ void scale(const float* __restrict__ x, const int* at, double* y, int n, float factor) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = factor * x[at[i]];
}
"""
COMPLETED = """    values = call.arguments[4].value * x[call.contents["at"]]
    magnitude, operations = np.abs(values), 2
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "scale.hip"
    path.write_text(SOURCE)
    return path


def start_of(source: Path) -> str:
    with pytest.raises(NoHarness) as caught:
        load_harness(source, None, None)
    assert f"no harness {source.with_name('scale_harness.py')}" in str(caught.value)
    assert caught.value.skeleton is not None
    return caught.value.skeleton


def test_the_start_of_a_harness_becomes_one_with_the_reference_alone(source: Path) -> None:
    start = start_of(source)
    ast.parse(start)
    beside = source.with_name("scale_harness.py")
    beside.write_text(start)
    with pytest.raises(UsageError, match=r"scale_harness.py: reference\(\) failed: NotImplementedError"):
        load_harness(source, None, None)
    raising = next(line for line in start.splitlines(keepends=True) if "NotImplementedError" in line)
    beside.write_text(start.replace(raising, COMPLETED))
    harness = load_harness(source, None, "scale")
    assert (harness.kernel, harness.path) == ("scale", beside)


def test_of_several_kernels_one_has_to_be_named(source: Path) -> None:
    source.write_text(SOURCE + "__global__ void other(float* y) { y[0] = 1.0f; }\n")
    with pytest.raises(NoHarness, match="not one kernel but scale, other: name it with --kernel") as caught:
        load_harness(source, None, None)
    assert caught.value.skeleton is None
    with pytest.raises(NoHarness) as named:
        load_harness(source, None, "other")
    assert 'output("y", size)' in (named.value.skeleton or "")
    with pytest.raises(Refused, match="there is no kernel third"):
        load_harness(source, None, "third")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def f(:", "does not run: SyntaxError"),
        ("import nothing_of_that_name", "does not run: ModuleNotFoundError"),
        ("import sys\nsys.exit(3)", "does not run: SystemExit: 3"),
        ("KERNEL = 'scale'", "sets no HARNESS"),
        ("HARNESS = {'kernel': 'scale'}", "sets no HARNESS"),
    ],
)
def test_a_file_that_is_no_harness_is_named(source: Path, tmp_path: Path, text: str, said: str) -> None:
    elsewhere = tmp_path / "mine.py"
    elsewhere.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_harness(source, elsewhere, None)
    assert str(caught.value).startswith(f"{elsewhere} {said}")


def test_the_harness_of_the_documents_is_one(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "optimize_harness.md").read_text()
    written = tmp_path / "row_dot_harness.py"
    written.write_text(text.partition("```python\n")[2].partition("```")[0])
    sample = ROOT / "aaco_pipeline" / "optimization" / "samples" / "row_dot.hip"
    assert load_harness(sample, written, "row_dot").timing_size == (1024, 1000)
    assert [name for name in DISTRIBUTIONS if f"`{name}`" not in text] == []


def test_a_harness_is_run_from_what_was_read_and_its_file_is_not_opened_again(tmp_path: Path) -> None:
    harness = tmp_path / "mine.py"
    harness.write_text("raise AssertionError('the file itself was run')")
    sample = ROOT / "aaco_pipeline" / "optimization" / "samples" / "row_dot.hip"
    content = sample.with_name("row_dot_harness.py").read_bytes()
    before = set(sys.modules)
    read = {sample: sample.read_bytes(), harness: content + b"\nassert __file__.endswith('mine.py')\n"}
    assert load_harness(sample, harness, None, read.__getitem__).path == harness
    assert not any("mine" in name for name in set(sys.modules) - before)


def test_a_harness_may_declare_dataclasses_of_its_own(source: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "mine.py"
    head = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    elsewhere.write_text(f"{head}@dataclass\nclass A:\n    b: int\n")
    with pytest.raises(UsageError, match="sets no HARNESS"):
        load_harness(source, elsewhere, None)


def test_a_source_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none.hip cannot be read: No such file"):
        load_harness(tmp_path / "none.hip", None, None)
