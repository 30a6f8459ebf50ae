#include <hip/hip_runtime.h>
namespace outer { namespace {
namespace inner {
__global__ void hidden(float* x, int n) {
  for (int i = 0; i < n; ++i) x[i] += 1.0f;
}
}  // namespace inner
} }
extern "C" {
__global__ void grouped(float* x, int n) {
  for (int i = 0; i < n; ++i) { x[i] += 1.0f; __threadfence(); }
}
}
