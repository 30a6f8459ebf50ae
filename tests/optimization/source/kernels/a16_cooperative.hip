#include <hip/hip_runtime.h>
#include <hip/hip_cooperative_groups.h>
namespace cg = cooperative_groups;

__global__ void cooperative(float* x, int n) {
  cg::thread_block block = cg::this_thread_block();
  for (int i = 0; i < n; ++i) { x[i] += 1.0f; block.sync(); }
  for (int i = 0; i < n; ++i) { x[i] += 1.0f; cg::sync(block); }
  for (int i = 0; i < n; ++i) { x[i] += 1.0f; cg::this_grid().sync(); }
  for (int i = 0; i < n; ++i) x[i] *= 2.0f;
}
