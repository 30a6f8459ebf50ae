#include <hip/hip_runtime.h>
#include <atomic>

__device__ float atomic_weight(float v) { return v * 1.008f; }

__global__ void atomics(int* x, float* y, std::atomic<int>* shared, int n) {
  for (int i = 0; i < n; ++i) unsafeAtomicAdd(&y[0], y[i]);
  for (int i = 0; i < n; ++i) shared->fetch_add(x[i]);
  for (int i = 0; i < n; ++i) atomicCAS(&x[0], i, i + 1);
  for (int i = 0; i < n; ++i) y[i] = atomic_weight(y[i]);
  for (int i = 0; i < n; ++i) __atomic_fetch_add(&x[0], 1, __ATOMIC_RELAXED);
  int atomicNumber = x[0];
  for (int i = 0; i < n; ++i) y[i] = atomicNumber * y[i];
}
