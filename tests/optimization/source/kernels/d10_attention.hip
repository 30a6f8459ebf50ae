#include <hip/hip_runtime.h>

namespace detail {
struct MaxOp {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct SumOp {
  __device__ float operator()(float a, float b) const { return a + b; }
};
template <int kThreads, typename Op>
__device__ float allreduce(float v, Op op) {
  static_assert(kThreads == 64 || kThreads == 32 || kThreads == 16, "a power of two");
  for (int offset = kThreads / 2; offset > 0; offset >>= 1) v = op(v, __shfl_xor(v, offset));
  return v;
}
template <typename Op>
__device__ float thread_reduce(const float* v, float start, Op op) {
  for (int i = 0; i < 16; i++) start = op(start, v[i]);
  return start;
}
}  // namespace detail

template <int kHead = 64>
__global__ void attention_row(const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v, float* __restrict__ o, int tokens, float scale) {
  using namespace detail;
  float most = -INFINITY, denominator = 0.f;
  float acc[kHead] = {0.f};
  const float* query = q + (size_t)blockIdx.x * kHead;
  for (int t = threadIdx.x; t < tokens; t += blockDim.x) {
    float score = 0.f;
    for (int d = 0; d < kHead; ++d) score += query[d] * k[(size_t)t * kHead + d];
    score *= scale;
    const float was = most;
    most = max(most, score);
    const float correction = exp2f((was - most) * 1.44269504f);
    const float p = exp2f((score - most) * 1.44269504f);
    denominator = denominator * correction + p;
    for (int d = 0; d < kHead; ++d) acc[d] = acc[d] * correction + p * v[(size_t)t * kHead + d];
  }
  const float whole = allreduce<64>(most, MaxOp{});
  denominator = allreduce<64>(denominator * expf(most - whole), SumOp());
  for (int d = 0; d < kHead; ++d) acc[d] = allreduce<64>(acc[d], SumOp{});
  for (int d = 0; d < tokens; d += 16) most = thread_reduce(k + d, most, MaxOp{});
  if (threadIdx.x == 0) {
    for (int d = 0; d < kHead; ++d) o[(size_t)blockIdx.x * kHead + d] = acc[d] / denominator;
  }
}
