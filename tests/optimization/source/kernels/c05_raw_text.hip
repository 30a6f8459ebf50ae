#include <hip/hip_runtime.h>
static const char* help = R"(
__global__ void fake(int n) { for (;;) __syncthreads(); }
)";
__global__ void real_one(float* x, int n) {
  for (int i = 0; i < n; ++i) x[i] = '{' + '\'' + "}"[0];
  for (int i = 0; i < 1'000; i += 0x10) x[i] = .5e-3f;
}
