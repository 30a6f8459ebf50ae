#include <hip/hip_runtime.h>

struct Lanes {
  float v;
  __device__ operator float() const { return __shfl_xor(v, 1); }
};
struct Plain {
  unsigned short bits;
  __device__ Plain& operator=(float v) { bits = __float_as_uint(v) >> 16; return *this; }
  __device__ operator float() const { return __uint_as_float((unsigned)bits << 16); }
};
struct Watched {
  float v = 0.0f;
  __device__ Watched() = default;
  __device__ Watched(const Watched& other) : v(other.v) { __threadfence(); }
};
struct Cursor {
  const float* at;
  __device__ bool operator!=(const Cursor& o) const { return __any(at != o.at); }
  __device__ Cursor& operator++() { ++at; return *this; }
  __device__ float operator*() const { return *at; }
};
struct Span {
  const float* first;
  int count;
  __device__ Cursor begin() const { return {first}; }
  __device__ Cursor end() const { return {first + count}; }
};
struct Ticket {
  unsigned number = atomicInc(&counter, 1u << 20);
  static __device__ unsigned counter;
};

__global__ void converted(const Lanes* lanes, Plain* plain, const Watched* watched, Span span, float* y, int n) {
  float sum = 0.0f;
  for (int i = 0; i < n; ++i) sum += lanes[i];
  for (int i = 0; i < n; ++i) sum += plain[i];
  for (int i = 0; i < n; ++i) plain[i] = plain[i] * 2.0f;
  for (int i = 0; i < n; ++i) { Watched w = watched[i]; sum += w.v; }
  for (float v : span) sum += v;
  for (Cursor c = span.begin(); c != span.end(); ++c) sum += *c;
  for (int i = 0; i < n; ++i) { Ticket t; sum += t.number; }
  for (int i = 0; i < n; ++i) y[i] = sum;
}
