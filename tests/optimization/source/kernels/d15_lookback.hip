#include <hip/hip_runtime.h>
#include <atomic>

enum Status : unsigned { Invalid = 0, Partial = 1, Inclusive = 2 };

__device__ unsigned long long packed(Status s, unsigned v) { return (unsigned long long)s << 32 | v; }

__global__ void decoupled_lookback(const unsigned* in, unsigned* out, unsigned long long* states, std::atomic<unsigned>* tickets, int n) {
  unsigned sum = 0;
  for (int i = 0; i < 4; ++i) sum += in[blockIdx.x * 4 + i];
  __hip_atomic_store(&states[blockIdx.x], packed(Partial, sum), __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_AGENT);
  unsigned before = 0;
  for (int at = (int)blockIdx.x - 1; at >= 0; --at) {
    unsigned long long seen;
    do {
      seen = __hip_atomic_load(&states[at], __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT);
    } while (seen >> 32 == Invalid);
    before += (unsigned)seen;
    if (seen >> 32 == Inclusive) break;
  }
  for (int i = 0; i < n; ++i) (*tickets)++;
  for (int i = 0; i < n; ++i) tickets[i] = before;
  for (int i = 0; i < n; ++i) out[i] += tickets[0];
  for (int i = 0; i < 4; ++i) {
    before += in[blockIdx.x * 4 + i];
    out[blockIdx.x * 4 + i] = before;
  }
  for (int i = 0; i < n; ++i) {
    unsigned expected = 0;
    __atomic_compare_exchange_n(&out[i], &expected, before, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
  }
  for (int i = 0; i < n; ++i) out[i] = packed(Inclusive, in[i]) >> 32;
}
