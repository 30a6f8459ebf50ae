"""Of a source only the device part is compiled, every line where it was."""

import pytest

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.resources.targets.cpu.device_part import device_part, kernel_names

SOURCE = b"""#include <hip/hip_runtime.h>
#include <vector>
#define FACTOR 4 // a number
#define DEV __device__ inline
DEV float of_macro(float x) { return x; }
namespace inner {
std::vector<int> host() {
  return {};
}
constexpr int both(int x) { return x; }
}
extern "C" __global__ void __launch_bounds__(256) k(float* a) {
#pragma unroll FACTOR
  for (int i = 0; i < 4; ++i) a[i] = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = 0;
#pragma unroll(2)
  for (int i = 0; i < 4; ++i) a[i] = 0;
#pragma nounroll
  for (int i = 0; i < 4; ++i) a[i] = 0;
}
template <class T> __global__ void of_template(T* a) {}
template <class T> T of_host(T x) { return x; }
#ifdef SOMETHING
void conditional() {}
#endif
void declared(int);
int main() {
  k<<<1, 1>>>(nullptr);
}
"""


def test_the_host_is_left_out_and_no_line_moves() -> None:
    lines = device_part(SOURCE, for_gcc=True).split(b"\n")
    before = SOURCE.split(b"\n")
    assert len(lines) == len(before)
    gone = [b"vector", b"host()", b"of_host", b"conditional", b"declared", b"main", b"<<<"]
    assert not [word for word in gone if any(word in line for line in lines)]
    changed = [at for at, line in enumerate(lines) if line != before[at]]
    kept = [b"hip_runtime", b"of_macro", b"both", b"__launch_bounds__", b"of_template"]
    assert not [word for word in kept for at in changed if word in before[at]]


@pytest.mark.parametrize(
    ("line", "written"),
    [
        (b"#pragma unroll FACTOR", b"#pragma GCC unroll 4"),
        (b"#pragma unroll", b"#pragma GCC unroll 16"),
        (b"#pragma unroll(2)", b"#pragma GCC unroll 2"),
        (b"#pragma nounroll", b"#pragma GCC unroll 1"),
    ],
)
def test_unrolling_is_asked_for_in_the_compilers_own_words(line: bytes, written: bytes) -> None:
    at = SOURCE.split(b"\n").index(line)
    assert device_part(SOURCE, for_gcc=True).split(b"\n")[at] == written
    assert device_part(SOURCE, for_gcc=False).split(b"\n")[at] == line


def test_kernels_are_known_by_name() -> None:
    assert kernel_names(SOURCE) == ("k", "of_template")


def test_a_zero_byte_is_refused() -> None:
    with pytest.raises(Refused, match="zero byte"):
        device_part(b"int a;\0int b;", for_gcc=True)
