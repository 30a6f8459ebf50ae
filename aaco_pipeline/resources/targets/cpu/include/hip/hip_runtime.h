// HIP's device language on a CPU: what a kernel needs, and nothing of the host's side.
//
// A workgroup's work-items run one after another on one thread. Only a kernel that meets others (barriers, cross-lane
// operations) pays for a fiber per work-item; what then switches between them is the worker's (native/worker.c).
// A wavefront has 64 lanes, as on CDNA. Lanes in different branches would meet each other in cross-lane operations, which
// they do not on a GPU: a kernel that uses those on both sides of a divergent branch is refused.
#pragma once

#include <float.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include <type_traits>
#include <utility>

#define __HIP_PLATFORM_AMD__ 1
#define __HIP_DEVICE_COMPILE__ 1
#define __AACO_CPU__ 1

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __constant__
// Local data share is thread-local storage: a section of its own, so that any other writable data is seen in the object.
// In a function `thread_local` is static of itself, and goes with `extern`, as `__shared__` does.
#define __shared__ thread_local
#define HIP_DYNAMIC_SHARED(type, variable) extern __shared__ type variable[];

constexpr int warpSize = 64;

// ---- vector types

#define AACO_VECTOR_OPERATORS(V, T, EACH)                                                             \
  static inline V operator+(V a, V b) { return EACH(+); }                                             \
  static inline V operator-(V a, V b) { return EACH(-); }                                             \
  static inline V operator*(V a, V b) { return EACH(*); }                                             \
  static inline V operator/(V a, V b) { return EACH(/); }                                             \
  static inline V& operator+=(V& a, V b) { return a = a + b; }                                        \
  static inline V& operator-=(V& a, V b) { return a = a - b; }                                        \
  static inline V& operator*=(V& a, V b) { return a = a * b; }                                        \
  static inline V& operator/=(V& a, V b) { return a = a / b; }
#define AACO_EACH1(op) {a.x op b.x}
#define AACO_EACH2(op) {a.x op b.x, a.y op b.y}
#define AACO_EACH3(op) {a.x op b.x, a.y op b.y, a.z op b.z}
#define AACO_EACH4(op) {a.x op b.x, a.y op b.y, a.z op b.z, a.w op b.w}
#define AACO_COMPONENT(T, value) static_cast<T>(value)

#define AACO_VECTORS(name, T, bytes)                                                                  \
  struct name##1 { T x; };                                                                            \
  struct alignas(2 * bytes) name##2 { T x, y; };                                                      \
  struct name##3 { T x, y, z; };                                                                      \
  struct alignas(4 * bytes > 16 ? 16 : 4 * bytes) name##4 { T x, y, z, w; };                          \
  static inline name##1 make_##name##1(T x) { return {x}; }                                           \
  static inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                   \
  static inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                           \
  static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
#define AACO_WIDE_VECTORS(name, T, bytes)                                                             \
  AACO_VECTORS(name, T, bytes)                                                                        \
  AACO_VECTOR_OPERATORS(name##1, T, AACO_EACH1)                                                       \
  AACO_VECTOR_OPERATORS(name##2, T, AACO_EACH2)                                                       \
  AACO_VECTOR_OPERATORS(name##3, T, AACO_EACH3)                                                       \
  AACO_VECTOR_OPERATORS(name##4, T, AACO_EACH4)                                                       \
  static inline name##2 operator*(T s, name##2 v) { return {s * v.x, s * v.y}; }                      \
  static inline name##2 operator*(name##2 v, T s) { return {v.x * s, v.y * s}; }                      \
  static inline name##3 operator*(T s, name##3 v) { return {s * v.x, s * v.y, s * v.z}; }             \
  static inline name##3 operator*(name##3 v, T s) { return {v.x * s, v.y * s, v.z * s}; }             \
  static inline name##4 operator*(T s, name##4 v) { return {s * v.x, s * v.y, s * v.z, s * v.w}; }    \
  static inline name##4 operator*(name##4 v, T s) { return {v.x * s, v.y * s, v.z * s, v.w * s}; }

AACO_VECTORS(char, signed char, 1)
AACO_VECTORS(uchar, unsigned char, 1)
AACO_VECTORS(short, short, 2)
AACO_VECTORS(ushort, unsigned short, 2)
AACO_WIDE_VECTORS(int, int, 4)
AACO_WIDE_VECTORS(uint, unsigned int, 4)
AACO_WIDE_VECTORS(float, float, 4)
AACO_WIDE_VECTORS(longlong, long long, 8)
AACO_WIDE_VECTORS(ulonglong, unsigned long long, 8)
AACO_WIDE_VECTORS(double, double, 8)

struct dim3 {
  unsigned int x, y, z;
  constexpr dim3(unsigned int x = 1, unsigned int y = 1, unsigned int z = 1) : x(x), y(y), z(z) {}
};

// ---- where a work-item is

struct aaco_index { unsigned int x, y, z; };
// Static, and their addresses never leave this file: a store through a kernel's pointer cannot change them, so that
// they may stay in registers. They are restored after each meeting, when other work-items have run.
static aaco_index threadIdx, blockIdx, blockDim, gridDim;

extern "C" {
// The worker's: run all other work-items of the workgroup up to their barrier, or of the wavefront up to their
// exchange. `aaco_exchange` returns the 64 values that the lanes gave, zero of a lane that takes no part, and who does;
// `site` is the place in the source.
void aaco_barrier(void);
const unsigned long long* aaco_exchange(unsigned int site, unsigned long long value, unsigned long long* taking_part);
}

static inline unsigned int aaco_item_number() {
  return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
}
static inline unsigned int __lane_id() { return aaco_item_number() % warpSize; }

static inline void __syncthreads() {
  const aaco_index item = threadIdx;
  aaco_barrier();
  threadIdx = item;
}
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __threadfence_system() {}

// ---- cross-lane operations: each place where one is written has a number, and lanes that meet come from the same place

static inline const unsigned long long* aaco_meet(
    unsigned int site, unsigned long long value, unsigned long long* taking_part) {
  const aaco_index item = threadIdx;
  const unsigned long long* values = aaco_exchange(site, value, taking_part);
  threadIdx = item;
  return values;
}
static inline unsigned long long aaco_active(unsigned int site) {
  unsigned long long taking_part;
  aaco_meet(site, 0, &taking_part);
  return taking_part;
}
static inline unsigned long long aaco_ballot(unsigned int site, int predicate) {
  unsigned long long taking_part, found = 0;
  const unsigned long long* values = aaco_meet(site, predicate != 0, &taking_part);
  for (int lane = 0; lane < warpSize; ++lane) found |= values[lane] << lane;
  return found;
}
template <class T>
static inline T aaco_from_lane(unsigned int site, T value, int lane) {
  static_assert(std::is_arithmetic<T>::value && sizeof(T) <= 8, "a cross-lane value is a number of at most 64 bits");
  unsigned long long bits = 0, taking_part;
  __builtin_memcpy(&bits, &value, sizeof value);
  bits = aaco_meet(site, bits, &taking_part)[lane & (warpSize - 1)];
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}
template <class T>
static inline T aaco_shfl(unsigned int site, T value, int source, int width = warpSize) {
  const int own = static_cast<int>(__lane_id());
  return aaco_from_lane(site, value, (own & ~(width - 1)) | (source & (width - 1)));
}
template <class T>
static inline T aaco_shfl_xor(unsigned int site, T value, int mask, int width = warpSize) {
  const int own = static_cast<int>(__lane_id()), other = own ^ mask;
  return aaco_from_lane(site, value, (other & ~(width - 1)) > (own & ~(width - 1)) ? own : other);
}
template <class T>
static inline T aaco_shfl_down(unsigned int site, T value, unsigned int by, int width = warpSize) {
  const int own = static_cast<int>(__lane_id()), other = own + static_cast<int>(by);
  return aaco_from_lane(site, value, (own & (width - 1)) + static_cast<int>(by) >= width ? own : other);
}
template <class T>
static inline T aaco_shfl_up(unsigned int site, T value, unsigned int by, int width = warpSize) {
  const int own = static_cast<int>(__lane_id());
  return aaco_from_lane(site, value, (own & (width - 1)) < static_cast<int>(by) ? own : own - static_cast<int>(by));
}
#define __syncwarp(...) static_cast<void>(aaco_active(__COUNTER__))
#define __activemask() aaco_active(__COUNTER__)
#define __ballot(...) aaco_ballot(__COUNTER__, __VA_ARGS__)
#define __any(...) static_cast<int>(aaco_ballot(__COUNTER__, __VA_ARGS__) != 0)
#define __all(...) static_cast<int>(aaco_ballot(__COUNTER__, !(__VA_ARGS__)) == 0)
#define __ballot_sync(mask, ...) __ballot(__VA_ARGS__)
#define __any_sync(mask, ...) __any(__VA_ARGS__)
#define __all_sync(mask, ...) __all(__VA_ARGS__)
#define __shfl(...) aaco_shfl(__COUNTER__, __VA_ARGS__)
#define __shfl_xor(...) aaco_shfl_xor(__COUNTER__, __VA_ARGS__)
#define __shfl_down(...) aaco_shfl_down(__COUNTER__, __VA_ARGS__)
#define __shfl_up(...) aaco_shfl_up(__COUNTER__, __VA_ARGS__)
#define __shfl_sync(mask, ...) __shfl(__VA_ARGS__)
#define __shfl_xor_sync(mask, ...) __shfl_xor(__VA_ARGS__)
#define __shfl_down_sync(mask, ...) __shfl_down(__VA_ARGS__)
#define __shfl_up_sync(mask, ...) __shfl_up(__VA_ARGS__)

// ---- atomics: one thread runs every work-item, so a plain read and write is whole

#define AACO_ATOMIC(name, expression)                                        \
  template <class T>                                                         \
  static inline T name(T* place, typename std::common_type<T>::type value) { \
    const T old = *place;                                                    \
    *place = expression;                                                     \
    return old;                                                              \
  }
AACO_ATOMIC(atomicAdd, static_cast<T>(old + value))
AACO_ATOMIC(atomicSub, static_cast<T>(old - value))
AACO_ATOMIC(atomicMax, old < value ? value : old)
AACO_ATOMIC(atomicMin, value < old ? value : old)
AACO_ATOMIC(atomicAnd, static_cast<T>(old & value))
AACO_ATOMIC(atomicOr, static_cast<T>(old | value))
AACO_ATOMIC(atomicXor, static_cast<T>(old ^ value))
AACO_ATOMIC(atomicExch, value)
AACO_ATOMIC(atomicInc, old >= value ? static_cast<T>(0) : static_cast<T>(old + 1))
AACO_ATOMIC(atomicDec, (old == 0 || old > value) ? value : static_cast<T>(old - 1))
AACO_ATOMIC(unsafeAtomicAdd, static_cast<T>(old + value))
AACO_ATOMIC(atomicAdd_block, static_cast<T>(old + value))
template <class T>
static inline T atomicCAS(T* place, typename std::common_type<T>::type compare, typename std::common_type<T>::type value) {
  const T old = *place;
  if (old == compare) *place = value;
  return old;
}

// ---- numbers

#define AACO_MIN_MAX(T)                                             \
  static inline constexpr T min(T a, T b) { return b < a ? b : a; } \
  static inline constexpr T max(T a, T b) { return a < b ? b : a; }
AACO_MIN_MAX(int)
AACO_MIN_MAX(unsigned int)
AACO_MIN_MAX(long)
AACO_MIN_MAX(unsigned long)
AACO_MIN_MAX(long long)
AACO_MIN_MAX(unsigned long long)
static inline unsigned int min(int a, unsigned int b) { return min(static_cast<unsigned int>(a), b); }
static inline unsigned int min(unsigned int a, int b) { return min(a, static_cast<unsigned int>(b)); }
static inline unsigned int max(int a, unsigned int b) { return max(static_cast<unsigned int>(a), b); }
static inline unsigned int max(unsigned int a, int b) { return max(a, static_cast<unsigned int>(b)); }
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }

static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline float __saturatef(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }
// The C library has these names for its own use, so that they cannot be functions here.
#define __expf expf
#define __exp10f exp10f
#define __exp2f exp2f
#define __logf logf
#define __log2f log2f
#define __log10f log10f
#define __sinf sinf
#define __cosf cosf
#define __tanf tanf
#define __powf powf
static inline float __fdividef(float x, float y) { return x / y; }
static inline float fdividef(float x, float y) { return x / y; }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline double __dsqrt_rn(double x) { return sqrt(x); }
static inline float __fadd_rn(float x, float y) { return x + y; }
static inline float __fsub_rn(float x, float y) { return x - y; }
static inline float __fmul_rn(float x, float y) { return x * y; }
static inline float __fdiv_rn(float x, float y) { return x / y; }
static inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
static inline double __dadd_rn(double x, double y) { return x + y; }
static inline double __dmul_rn(double x, double y) { return x * y; }
static inline double __fma_rn(double x, double y, double z) { return fma(x, y, z); }

template <class T>
static inline T __ldg(const T* place) { return *place; }

#define AACO_SAME_BITS(name, From, To)        \
  static inline To name(From from) {          \
    To to;                                    \
    __builtin_memcpy(&to, &from, sizeof to);  \
    return to;                                \
  }
AACO_SAME_BITS(__float_as_int, float, int)
AACO_SAME_BITS(__float_as_uint, float, unsigned int)
AACO_SAME_BITS(__int_as_float, int, float)
AACO_SAME_BITS(__uint_as_float, unsigned int, float)
AACO_SAME_BITS(__double_as_longlong, double, long long)
AACO_SAME_BITS(__longlong_as_double, long long, double)

static inline int __float2int_rn(float x) { return static_cast<int>(rintf(x)); }
static inline int __float2int_rz(float x) { return static_cast<int>(x); }
static inline int __float2int_rd(float x) { return static_cast<int>(floorf(x)); }
static inline int __float2int_ru(float x) { return static_cast<int>(ceilf(x)); }
static inline float __int2float_rn(int x) { return static_cast<float>(x); }
static inline float __uint2float_rn(unsigned int x) { return static_cast<float>(x); }

static inline int __popc(unsigned int x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned int>(x)); }
static inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x)); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline unsigned int __brev(unsigned int x) {
  x = (x & 0x55555555u) << 1 | (x >> 1 & 0x55555555u);
  x = (x & 0x33333333u) << 2 | (x >> 2 & 0x33333333u);
  x = (x & 0x0f0f0f0fu) << 4 | (x >> 4 & 0x0f0f0f0fu);
  return __builtin_bswap32(x);
}
static inline int __mul24(int x, int y) { return (x << 8 >> 8) * (y << 8 >> 8); }
static inline unsigned int __umul24(unsigned int x, unsigned int y) { return (x & 0xffffffu) * (y & 0xffffffu); }
static inline int __mulhi(int x, int y) { return static_cast<int>(static_cast<long long>(x) * y >> 32); }
static inline unsigned int __umulhi(unsigned int x, unsigned int y) {
  return static_cast<unsigned int>(static_cast<unsigned long long>(x) * y >> 32);
}

// ---- the way in: `aaco_items` is generated from this for the kernel that is built

struct aaco_launch { aaco_index grid, block, group; };

template <auto kernel, class... P, size_t... I>
static inline void aaco_run(
    void (*)(P...), const aaco_launch* launch, void* const* arguments, unsigned int first, unsigned int count,
    std::index_sequence<I...>) {
  gridDim = launch->grid;
  blockDim = launch->block;
  blockIdx = launch->group;
  const unsigned int width = launch->block.x, height = launch->block.y;
  aaco_index item = {first % width, first / width % height, first / width / height};
  [&](P... values) {
    for (unsigned int left = count; left != 0; --left) {
      threadIdx = item;
      kernel(values...);
      if (++item.x == width) {
        item.x = 0;
        if (++item.y == height) {
          item.y = 0;
          ++item.z;
        }
      }
    }
  }(*static_cast<std::remove_reference_t<P>*>(arguments[I])...);
  (void)arguments;
}
template <class... P>
static inline std::index_sequence_for<P...> aaco_parameters(void (*)(P...)) { return {}; }

#define AACO_KERNEL(...)                                                                               \
  extern "C" void aaco_items(                                                                          \
      const aaco_launch* launch, void* const* arguments, unsigned int first, unsigned int count) {     \
    aaco_run<&__VA_ARGS__>(&__VA_ARGS__, launch, arguments, first, count, aaco_parameters(&__VA_ARGS__)); \
  }
