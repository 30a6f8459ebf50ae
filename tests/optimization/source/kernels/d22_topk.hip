#include <hip/hip_runtime.h>
#include <hip/hip_bf16.h>

template <int K>
struct TopK {
  float values[K];
  int indices[K];
  __device__ __forceinline__ void clear() {
    for (int i = 0; i < K; ++i) { values[i] = -INFINITY; indices[i] = -1; }
  }
  __device__ __forceinline__ void insert(float v, int at) {
    if (v <= values[K - 1]) return;
    values[K - 1] = v;
    indices[K - 1] = at;
    for (int k = K - 2; k >= 0; --k) {
      if (values[k + 1] > values[k]) {
        float t = values[k]; values[k] = values[k + 1]; values[k + 1] = t;
        int u = indices[k]; indices[k] = indices[k + 1]; indices[k + 1] = u;
      }
    }
  }
};

__device__ bool pop(int& left) { return left-- > 0; }

__global__ void topk(const float* __restrict__ x, int* __restrict__ y, int n, int* stack) {
  TopK<4> best;
  best.clear();
  for (int i = threadIdx.x; i < n; i += blockDim.x) best.insert(x[i], i);
  for (int i = 0; i < 4; ++i) y[threadIdx.x * 4 + i] = best.indices[i];
  int left = n;
  while (pop(left)) y[left] = -1;
  auto keep = [&best](float v, int at) mutable { best.insert(v, at); };
  for (int i = 0; i < n; ++i) keep(x[i], i);
  auto vote = [](bool v) { return __ballot(v) != 0; };
  for (int i = 0; i < n; ++i) y[i] = vote(x[i] > 0.f) ? 1 : 0;
  auto search = [&](float v) {
    int lo = 0, hi = n;
    while (lo < hi) {
      const int mid = (lo + hi) / 2;
      if (x[mid] == v) return mid;
      if (x[mid] < v) lo = mid + 1; else hi = mid;
    }
    return -1;
  };
  for (int i = 0; i < n; ++i) y[i] = search(i);
  int lo = 0, hi = n;
  while (lo < hi) {
    const int mid = lo + ((hi - lo) >> 1);
    (x[mid] < 0.5f ? lo : hi) = x[mid] < 0.5f ? mid + 1 : mid;
  }
  int top = 0;
  do {
    y[lo] = stack[top];
  } while (++top < n);
}
