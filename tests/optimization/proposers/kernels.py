"""Small sources for the proposers' tests, and the tasks about them."""

from collections.abc import Iterable

from aaco_pipeline.optimization.candidates import Candidate, NotApplicable, Proposer, Task

#: A dot product by rows: what every proposer but padding has something to say of.
ROW_DOT = """\
#include <hip/hip_runtime.h>
// Rows of a matrix, each by one vector.
__global__ void row_dot(const float* a, const float *b, float* out, int rows, int n) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  float acc = 0.0f;
  for (int k = 0; k < n; ++k) {
    acc += a[row * n + k] * b[k];
  }
  out[row] = acc;
}
"""

#: A transposition through local data share, in tiles of 32 by 32.
TRANSPOSE = """\
#define TILE 32
__global__ void transpose(const float* in, float* out, int n) {
  __shared__ float tile[TILE][TILE];
  int x = blockIdx.x * TILE + threadIdx.x;
  int y = blockIdx.y * TILE + threadIdx.y;
  tile[threadIdx.y][threadIdx.x] = in[y * n + x];
  __syncthreads();
  out[x * n + y] = tile[threadIdx.x][threadIdx.y];
}
"""


def task(source: str, kernel: str = "row_dot", block: tuple[int, int, int] = (256, 1, 1), wavefront: int = 64) -> Task:
    return Task(source.encode(), kernel, block, wavefront)


def summing(body: str, parameters: str = "const float* a, const float* b, float* out, int n", more: str = "") -> str:
    """A source whose kernel `row_dot` has this body, and what is to stand in front of it."""
    return f"{more}\n__global__ void row_dot({parameters}) {{\n{body}\n}}\n"


def proposed(proposer: Proposer, about: Task) -> list[Candidate]:
    return [one for one in proposer.propose(about) if isinstance(one, Candidate)]


def reasons(proposer: Proposer, about: Task) -> list[str]:
    return [one.reason for one in proposer.propose(about) if isinstance(one, NotApplicable)]


def left_alone(proposer: Proposer, about: Task, reason: str) -> str:
    """Check that nothing is proposed, for the reason given; return the proposer's one line."""
    assert proposed(proposer, about) == []
    told = [one for one in reasons(proposer, about) if reason in one]
    assert len(told) == 1 and "\n" not in told[0], reasons(proposer, about)
    return told[0]


def inserted(before: bytes, after: bytes) -> tuple[int, bytes]:
    """Find the one place where `after` has bytes that `before` has not, and these bytes."""
    differing = (place for place, (one, two) in enumerate(zip(before, after, strict=False)) if one != two)
    start = next(differing, len(before))
    end = len(after) - (len(before) - start)
    while after[:start] + after[end:] != before:
        start, end = start - 1, end - 1
        assert start >= 0, "more than one place was changed"
    return start, after[start:end]


def transformations(candidates: Iterable[Candidate]) -> list[str]:
    return [one.transformation for one in candidates]
