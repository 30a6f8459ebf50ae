#include <hip/hip_runtime.h>
#define JOIN(a, b) a##b
#define CALL(name) __##name()
#define IDX(i, j) ((i) * 8 + (j))

__global__ void pasted(float* x, int n) {
  for (int i = 0; i < n; ++i) { x[i] = 1.0f; JOIN(__sync, threads)(); }
  for (int i = 0; i < n; ++i) { x[i] = 1.0f; CALL(syncthreads); }
  for (int i = 0; i < n; ++i)
    for (int j = 0; j < 8; ++j) x[IDX(i, j)] = 1.0f;
}
