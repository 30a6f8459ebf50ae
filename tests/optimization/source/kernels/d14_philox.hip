#include <hip/hip_runtime.h>
#include <cstdint>

class Philox {
 public:
  __device__ inline Philox(uint64_t seed, uint64_t subsequence, uint64_t offset) : key_{(uint32_t)seed, (uint32_t)(seed >> 32)} {
    counter_ = make_uint4((uint32_t)offset, (uint32_t)(offset >> 32), (uint32_t)subsequence, (uint32_t)(subsequence >> 32));
  }
  __device__ inline uint4 operator()() {
    uint4 c = counter_;
    uint2 k = key_;
    for (int round = 0; round < 9; ++round) {
      c = single(c, k);
      k.x += kA;
      k.y += kB;
    }
    bump();
    return single(c, k);
  }

 private:
  static constexpr uint32_t kA = 0x9E3779B9, kB = 0xBB67AE85, kSA = 0xD2511F53, kSB = 0xCD9E8D57;
  uint4 counter_;
  uint2 key_;
  __device__ inline void bump() {
    if (++counter_.x) return;
    if (++counter_.y) return;
    ++counter_.z;
  }
  __device__ static inline uint4 single(uint4 c, uint2 k) {
    return make_uint4(__umulhi(kSB, c.z) ^ c.y ^ k.x, kSB * c.z, __umulhi(kSA, c.x) ^ c.w ^ k.y, kSA * c.x);
  }
};

__global__ void dropout(const float* __restrict__ x, float* __restrict__ y, uint64_t seed, float keep, int64_t n) {
  const int64_t start = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  Philox draw(seed, start, 0);
  for (int64_t i = start; i < n / 4; i += (int64_t)gridDim.x * blockDim.x) {
    const uint4 bits = draw();
    const float4 v = reinterpret_cast<const float4*>(x)[i];
    reinterpret_cast<float4*>(y)[i] = make_float4(bits.x * 2.3283064e-10f < keep ? v.x / keep : 0.f, bits.y * 2.3283064e-10f < keep ? v.y / keep : 0.f,
                                                  bits.z * 2.3283064e-10f < keep ? v.z / keep : 0.f, bits.w * 2.3283064e-10f < keep ? v.w / keep : 0.f);
  }
}

__global__ void rejection(float* y, uint64_t seed, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    Philox draw{seed, (uint64_t)i, 0};
    float u, v, s;
    do {
      const uint4 bits = draw();
      u = __uint2float_rn(bits.x) * 0x1p-31f - 1.0f;
      v = __uint2float_rn(bits.y) * 0x1p-31f - 1.0f;
      s = u * u + v * v;
    } while (s >= 1.0f || s == 0.0f);
    y[i] = u * sqrtf(-2.0f * __logf(s) / s);
  }
  uint32_t state[4] = {1, 2, 3, 4};
  for (int i = 0; i < n; ++i) {
    uint32_t t = state[3];
    for (size_t k = sizeof(state) / sizeof(state[0]) - 1; k > 0; --k) state[k] = state[k - 1];
    t ^= t << 11, t ^= t >> 8;
    y[i] += (state[0] = t ^ state[1] ^ (state[1] >> 19)) * 2.3283064e-10f;
  }
}
