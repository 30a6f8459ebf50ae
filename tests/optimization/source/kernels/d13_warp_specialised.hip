#include <hip/hip_runtime.h>

#define ARRIVE(id, threads) asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory")
#define PRODUCER(wave) ((wave) == 0)

struct Mailbox {
  volatile int full;
  float payload[64];
};

__device__ __forceinline__ void wait_for(Mailbox& box, int value) {
  while (box.full != value) __builtin_amdgcn_s_sleep(1);
}

__global__ void pipelined(const float* __restrict__ in, float* __restrict__ out, int n) {
  __shared__ Mailbox boxes[2];
  const int wave = threadIdx.x / 64, lane = threadIdx.x % 64;
  if (PRODUCER(wave)) {
    for (int t = 0; t < n; ++t) {
      Mailbox& box = boxes[t & 1];
      wait_for(box, 0);
      box.payload[lane] = in[t * 64 + lane];
      if (lane == 0) box.full = 1;
    }
  } else {
    float sum = 0.0f;
    for (int t = 0; t < n; ++t) {
      auto* box = &boxes[t & 1];
      sum += box->payload[lane];
      if (lane == 0) box->full = 0;
    }
    for (int i = 0; i < 64; ++i) sum += boxes[0].payload[i];
    out[blockIdx.x * 64 + lane] = sum;
  }
  for (int i = 0; i < n; ++i) {
    out[i] += 1.0f;
    ARRIVE(1, 128);
  }
  for (int i = 0; i < n; ++i) out[i] += PRODUCER(i) ? 1.0f : 2.0f;
}
