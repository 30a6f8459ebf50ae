// What one GPU does at best: memory at every level, arithmetic of the vector units, and of the matrix units through
// the vendor's library. HIP; nvcc reads it through a header of names (targets/gpu/include).
//
//     gpu_roofs DEVICE SECONDS ROUNDS RESULT [LIBRARY ...]
//
// LIBRARY are the names under which cuBLASLt or hipBLASLt is tried. Writes JSON to RESULT, one document a line: the
// device, then each measurement with the work of one launch and, per round, the nanoseconds a launch took in each
// window of launches between two events; or why it could not be made. Bytes are those a kernel reads plus those it
// writes. Tells on standard output how far it is, and ends with the process that started it.
#include <hip/hip_fp16.h>
#include <hip/hip_runtime.h>

#include <dlfcn.h>
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int kBlock = 512;
constexpr int kUnroll = 2;
constexpr int kChunk = kBlock * kUnroll;  // float4s that a block moves at a time
constexpr int kShared = 512;              // float4s of one array in shared memory: 8 KiB
constexpr int kWindows = 128;             // float4s, a power of two, over which the window that L1 holds moves
constexpr int kWindowStep = 32;
constexpr int kChains = 8;                // independent operations a work-item has under way
constexpr int kSteps = 16;
constexpr double kChoiceNs = 3e6;
constexpr double kWindowNs = 50e6;
constexpr double kRestSeconds = 0.1;
constexpr double kWarmUpSeconds = 0.5;
constexpr size_t kWorkspaceBytes = size_t{64} << 20;
constexpr int kAlgorithms = 8;

std::FILE* result = nullptr;

void fail(const char* what, hipError_t error) {
  std::fprintf(result, "{\"failed\": \"%s: %s\"}\n", what, hipGetErrorString(error));
  std::exit(1);
}

#define CHECK(call)                                    \
  do {                                                 \
    hipError_t checked = (call);                       \
    if (checked != hipSuccess) fail(#call, checked);   \
  } while (0)

// Keeps a load from memory that others may write from being taken out of the loop around it.
#define EVERY_TIME() asm volatile("" ::: "memory")

__device__ inline float4 scaled_sum(float4 a, float s, float4 b) {
  return make_float4(a.x + s * b.x, a.y + s * b.y, a.z + s * b.z, a.w + s * b.w);
}
__device__ inline void gather(float4& sum, float4 a) {
  sum.x += a.x;
  sum.y += a.y;
  sum.z += a.z;
  sum.w += a.w;
}
// Stores nothing in fact, which the compiler cannot know.
__device__ inline void keep(float4 sum, float4* out) {
  if (sum.x + sum.y + sum.z + sum.w == -1.25e-30f) out[0] = sum;
}

// A load that L1 does not keep, where there is such a one.
__device__ inline float4 past_first_level(const float4* place) {
#if defined(__HIP_PLATFORM_AMD__)
  return *place;
#else
  return __ldcg(place);
#endif
}

enum class Stream { kRead, kCopy, kTriad };

// Once over arrays far larger than every cache; a block moves `kItems` float4s of each work-item.
template <Stream kStream, int kItems>
__global__ void stream(const float4* __restrict__ a, const float4* __restrict__ b, float4* __restrict__ c, float s) {
  size_t first = size_t(blockIdx.x) * blockDim.x * kItems + threadIdx.x;
  float4 x[kItems], y[kItems];
#pragma unroll
  for (int k = 0; k < kItems; ++k) x[k] = a[first + size_t(k) * blockDim.x];
  if (kStream == Stream::kTriad) {
#pragma unroll
    for (int k = 0; k < kItems; ++k) y[k] = b[first + size_t(k) * blockDim.x];
  }
  float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    if (kStream == Stream::kRead) gather(sum, x[k]);
    if (kStream == Stream::kCopy) c[first + size_t(k) * blockDim.x] = x[k];
    if (kStream == Stream::kTriad) c[first + size_t(k) * blockDim.x] = scaled_sum(x[k], s, y[k]);
  }
  if (kStream == Stream::kRead) keep(sum, c);
}

// `steps` chunks of arrays that L2 holds, in a circle. Blocks start evenly apart, so that those of one compute unit
// never read what another of them has just brought into its L1, and so that no two read the same at the same time: on
// the way to NVIDIA's L2 such reads are joined. Where they write, all write the same values.
template <Stream kStream>
__global__ void circle(const float4* __restrict__ a, const float4* __restrict__ b, float4* __restrict__ c, float s,
                       int chunks, int steps) {
  int chunk = int(int64_t(blockIdx.x) * chunks / gridDim.x);
  float4 sum = make_float4(0, 0, 0, 0);
  for (int step = 0; step < steps; ++step) {
    int first = chunk * kChunk + threadIdx.x;
    float4 x[kUnroll], y[kUnroll];
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) x[k] = past_first_level(a + first + k * kBlock);
    if (kStream == Stream::kTriad) {
#pragma unroll
      for (int k = 0; k < kUnroll; ++k) y[k] = past_first_level(b + first + k * kBlock);
    }
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      if (kStream == Stream::kRead) gather(sum, x[k]);
      if (kStream == Stream::kCopy) c[first + k * kBlock] = x[k];
      if (kStream == Stream::kTriad) c[first + k * kBlock] = scaled_sum(x[k], s, y[k]);
    }
    if (++chunk == chunks) chunk = 0;
  }
  if (kStream == Stream::kRead) keep(sum, c);
}

// Every wavefront reads the same few KiB, which its L1 holds, again and again: a window of 304 float4s that moves by
// `stride` within `mask` each step. Only the caller knows both, so that no compiler can keep what was read: one that
// sees the same addresses twice takes the loads out of the loop, whatever stands between them.
__global__ void first_level(const float4* a, float4* out, int mask, int stride, int steps) {
  float4 sum = make_float4(0, 0, 0, 0);
  int offset = 0;
  for (int step = 0; step < steps; ++step) {
    const float4* window = a + offset + threadIdx.x % 64;
#pragma unroll
    for (int k = 0; k < kSteps; ++k) gather(sum, window[k * 16]);
    offset = (offset + stride) & mask;
  }
  keep(sum, out);
}

// The same in shared memory (LDS), where writing costs as much as reading. What is written must be: a compiler knows
// that nobody else sees these arrays, and drops reads alone.
template <Stream kStream>
__global__ void shared_memory(float4* __restrict__ out, float s, int steps) {
  __shared__ float4 a[kShared], b[kShared], c[kShared];
  int me = threadIdx.x;
  a[me] = b[me] = c[me] = make_float4(me, 1, 2, 3);
  __syncthreads();
  float4 sum = make_float4(0, 0, 0, 0);
  for (int step = 0; step < steps; ++step) {
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      EVERY_TIME();
      int place = (me + k * 32) % kShared;
      if (kStream == Stream::kCopy) c[place] = a[place];
      if (kStream == Stream::kTriad) c[place] = scaled_sum(a[place], s, b[place]);
    }
  }
  __syncthreads();
  gather(sum, c[me]);
  keep(sum, out);
}

__device__ inline double multiply_add(double x, double a, double b) { return fma(x, a, b); }
__device__ inline float multiply_add(float x, float a, float b) { return fmaf(x, a, b); }
__device__ inline __half2 multiply_add(__half2 x, __half2 a, __half2 b) { return __hfma2(x, a, b); }
__device__ inline void set(double& x, float value) { x = value; }
__device__ inline void set(float& x, float value) { x = value; }
// Two halves that differ: of equal ones nvcc keeps one, and an instruction that spreads it.
__device__ inline void set(__half2& x, float value) { x = __floats2half2_rn(value, 0.5f * value); }
__device__ inline float value_of(double x) { return float(x); }
__device__ inline float value_of(float x) { return x; }
__device__ inline float value_of(__half2 x) { return __low2float(x) + __high2float(x); }

// Keeps the compiler from joining two operations on fp32 to a packed one, which some architectures have.
template <typename T>
__device__ inline void stay_single(T&) {}
#if defined(__HIP_PLATFORM_AMD__)
template <>
__device__ inline void stay_single(float& x) {
  asm volatile("" : "+v"(x));
}
#endif

// Chains of fused multiply-adds in registers.
template <typename T, bool kPacked>
__global__ void multiply_adds(float4* __restrict__ out, float factor, float addend, int steps) {
  T x[kChains], a, b;
  set(a, factor);
  set(b, addend);
#pragma unroll
  for (int k = 0; k < kChains; ++k) set(x[k], 0.001f * (threadIdx.x % 64) + k);
  for (int step = 0; step < steps; ++step) {
#pragma unroll
    for (int again = 0; again < kSteps; ++again) {
#pragma unroll
      for (int k = 0; k < kChains; ++k) {
        x[k] = multiply_add(x[k], a, b);
        if (!kPacked) stay_single(x[k]);
      }
    }
  }
  float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
  for (int k = 0; k < kChains; ++k) sum.x += value_of(x[k]);
  keep(sum, out);
}

enum class Format { kFp64, kFp32, kFp16, kBf16, kFp8 };

// Numbers of both signs without pattern, evenly from -1 to 1: a product of zeros takes less power, and runs at a higher
// clock. Another `seed` gives others.
__global__ void scatter_numbers(void* place, size_t elements, Format format, uint32_t seed) {
  for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < elements; i += size_t(gridDim.x) * blockDim.x) {
    uint32_t h = (uint32_t(i) + seed) * 2654435761u;
    h ^= h >> 15;
    h *= 2246822519u;
    h ^= h >> 13;
    float value = float(int32_t(h)) / 2147483648.0f;
    if (format == Format::kFp64) static_cast<double*>(place)[i] = value;
    if (format == Format::kFp32) static_cast<float*>(place)[i] = value;
    if (format == Format::kFp16) static_cast<__half*>(place)[i] = __float2half(value);
    if (format == Format::kBf16) {
      uint32_t bits;
      memcpy(&bits, &value, sizeof bits);
      static_cast<uint16_t*>(place)[i] = uint16_t(bits >> 16);
    }
    // Of e4m3 either sign and magnitudes of 2^-3 to 1, whichever its bias is.
    if (format == Format::kFp8) static_cast<uint8_t*>(place)[i] = uint8_t((h & 0x80) | (0x20 + (h >> 8) % 24));
  }
}

// What cuBLASLt and hipBLASLt have in common: calls of the same form under two prefixes. Numbers: cublasLt.h of CUDA
// 11.8 to 13, hipblaslt.h of ROCm 6 and 7; data types are the same in both (library_types.h of either).
enum DataType { kR32F = 0, kR64F = 1, kR16F = 2, kR16BF = 14, kR8FE4M3 = 28, kR8FE4M3Fnuz = 1000 };
#if defined(__HIP_PLATFORM_AMD__)
constexpr const char* kPrefix = "hipblasLt";
enum Number { kCompute32F = 2, kComputeFastTf32 = 6, kCompute64F = 7, kTransposeA = 0, kScaleA = 5, kScaleB = 6 };
constexpr int kPlain = 111;
constexpr int kTransposed = 112;
constexpr int kFastAccumulation = -1;
constexpr size_t kResultBytes = 56;
#else
constexpr const char* kPrefix = "cublasLt";
enum Number { kCompute32F = 68, kComputeFastTf32 = 77, kCompute64F = 70, kTransposeA = 3, kScaleA = 17, kScaleB = 18 };
constexpr int kPlain = 0;
constexpr int kTransposed = 1;
constexpr int kFastAccumulation = 25;
constexpr size_t kResultBytes = 96;
#endif
constexpr int kLargestWorkspace = 1;

struct Library {
  void* handle = nullptr;
  int (*create)(void**) = nullptr;
  int (*make_product)(void**, int, int) = nullptr;
  int (*set_product)(void*, int, const void*, size_t) = nullptr;
  int (*make_layout)(void**, int, uint64_t, uint64_t, int64_t) = nullptr;
  int (*make_preference)(void**) = nullptr;
  int (*set_preference)(void*, int, const void*, size_t) = nullptr;
  int (*choose)(void*, void*, void*, void*, void*, void*, void*, int, void*, int*) = nullptr;
  int (*multiply)(void*, void*, const void*, const void*, void*, const void*, void*, const void*, const void*, void*,
                  void*, void*, const void*, void*, size_t, hipStream_t) = nullptr;

  template <typename F>
  bool find(F& function, const char* name) {
    function = reinterpret_cast<F>(dlsym(handle, (std::string(kPrefix) + name).c_str()));
    return function != nullptr;
  }
  bool open(const char* name) {
    handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    return handle && find(create, "Create") && find(make_product, "MatmulDescCreate") &&
           find(set_product, "MatmulDescSetAttribute") && find(make_layout, "MatrixLayoutCreate") &&
           find(make_preference, "MatmulPreferenceCreate") && find(set_preference, "MatmulPreferenceSetAttribute") &&
           find(choose, "MatmulAlgoGetHeuristic") && find(multiply, "Matmul");
  }
};

struct Measurement {
  std::string resource, dtype, kernel, failed;
  double work = 0;
  const char* unit = "byte/s";
  std::function<void()> launch;
  int launches = 1;
  std::vector<std::vector<double>> rounds;
};

std::vector<Measurement> measurements;

void add(const char* resource, const char* dtype, std::string kernel, double work, const char* unit,
         std::function<void()> launch) {
  Measurement one;
  one.resource = resource;
  one.dtype = dtype;
  one.kernel = std::move(kernel);
  one.work = work;
  one.unit = unit;
  one.launch = std::move(launch);
  measurements.push_back(std::move(one));
}

void add_failed(const char* resource, const char* dtype, const char* kernel, std::string why) {
  add(resource, dtype, kernel, 0, "flop/s", {});
  measurements.back().failed = std::move(why);
}

struct Clock {
  hipEvent_t begin, end;
  Clock() {
    CHECK(hipEventCreate(&begin));
    CHECK(hipEventCreate(&end));
  }
  double launch_ns(const std::function<void()>& launch, int launches) {
    CHECK(hipEventRecord(begin, 0));
    for (int n = 0; n < launches; ++n) launch();
    CHECK(hipEventRecord(end, 0));
    CHECK(hipEventSynchronize(end));
    CHECK(hipGetLastError());
    float milliseconds = 0;
    CHECK(hipEventElapsedTime(&milliseconds, begin, end));
    return 1e6 * milliseconds / launches;
  }
};

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

const char* name_of(Stream stream) {
  return stream == Stream::kRead ? "read" : stream == Stream::kCopy ? "copy" : "triad";
}
double arrays_of(Stream stream) { return stream == Stream::kRead ? 1 : stream == Stream::kCopy ? 2 : 3; }

template <Stream kStream, int kItems>
void add_stream(float4* a, float4* b, float4* c, size_t elements, int block) {
  unsigned blocks = unsigned(elements / (size_t(block) * kItems));
  std::string kernel = std::string(name_of(kStream)) + ", " + std::to_string(elements * sizeof(float4) >> 20) +
                       " MiB an array, " + std::to_string(block) + " work-items of " + std::to_string(kItems);
  add("dram", "", kernel, arrays_of(kStream) * double(elements) * sizeof(float4), "byte/s",
      [=] { stream<kStream, kItems><<<blocks, block>>>(a, b, c, 0.5f); });
}

template <Stream kStream>
void add_streams(float4* a, float4* b, float4* c, size_t elements) {
  for (int block : {256, 1024}) {
    add_stream<kStream, 1>(a, b, c, elements, block);
    add_stream<kStream, 4>(a, b, c, elements, block);
  }
}

template <Stream kStream>
void add_circle(float4* a, float4* b, float4* c, size_t set_bytes, int units) {
  size_t each = size_t(double(set_bytes) / arrays_of(kStream));
  int chunks = int(std::max<size_t>(each / (kChunk * sizeof(float4)), 1));
  int steps = 512;
  unsigned blocks = unsigned(units) * 4;
#if !defined(__HIP_PLATFORM_AMD__)
  if (unsigned(chunks) < blocks) return;  // two would read the same at the same time
#endif
  std::string kernel =
      std::string(name_of(kStream)) + ", " + std::to_string(size_t(chunks) * kChunk * sizeof(float4) >> 10) + " KiB an array";
  add("l2", "", kernel, arrays_of(kStream) * blocks * steps * kChunk * sizeof(float4), "byte/s",
      [=] { circle<kStream><<<blocks, kBlock>>>(a, b, c, 0.5f, chunks, steps); });
}

template <Stream kStream>
void add_shared(float4* out, int units) {
  int steps = 512;
  unsigned blocks = unsigned(units) * 4;
  add("lds", "", std::string(name_of(kStream)) + ", 8 KiB an array",
      arrays_of(kStream) * blocks * double(kShared) * kSteps * steps * sizeof(float4), "byte/s",
      [=] { shared_memory<kStream><<<blocks, kShared>>>(out, 0.5f, steps); });
}

template <typename T, bool kPacked>
void add_arithmetic(const char* resource, const char* dtype, int per_operation, float4* out, int units) {
  int steps = 512;
  unsigned blocks = unsigned(units) * 16;
  add(resource, dtype, "fused multiply-adds, 8 chains of each work-item",
      double(per_operation) * blocks * kBlock * kChains * kSteps * steps, "flop/s",
      [=] { multiply_adds<T, kPacked><<<blocks, kBlock>>>(out, 0.999f, 0.001f, steps); });
}

struct Product {
  const char* dtype;
  Format format;
  size_t element_bytes;
  int input, output, compute, scale;
};

// One square product with as many algorithms as the library offers; each is a measurement of its own. The left matrix
// is transposed or not: libraries have other kernels for either.
void add_product(Library& library, void* blas, const Product& product, int side, bool transpose, void* workspace,
                 float* one) {
  std::string title = std::string(kPrefix) + ", " + std::to_string(side) + "\u00b2" + (transpose ? " transposed" : "");
  size_t elements = size_t(side) * side;
  size_t output_bytes = product.output == kR64F ? 8 : product.output == kR32F ? 4 : 2;
  void *a = nullptr, *b = nullptr, *d = nullptr;
  if (hipMalloc(&a, elements * product.element_bytes) != hipSuccess ||
      hipMalloc(&b, elements * product.element_bytes) != hipSuccess ||
      hipMalloc(&d, elements * output_bytes) != hipSuccess) {
    (void)hipGetLastError();
    return add_failed("matrix", product.dtype, title.c_str(), "the memory is too small for the matrices");
  }
  scatter_numbers<<<1024, 256>>>(a, elements, product.format, 0);
  scatter_numbers<<<1024, 256>>>(b, elements, product.format, 0x9e3779b9u);
  CHECK(hipMemset(d, 0, elements * output_bytes));
  void *work = nullptr, *in = nullptr, *out = nullptr, *preference = nullptr;
  int transposed = transpose ? kTransposed : kPlain;
  size_t workspace_bytes = kWorkspaceBytes;
  std::vector<char> results(kResultBytes * kAlgorithms);
  int found = 0;
  bool asked = !library.make_product(&work, product.compute, product.scale) &&
               !library.set_product(work, kTransposeA, &transposed, sizeof transposed) &&
               !library.make_layout(&in, product.input, side, side, side) &&
               !library.make_layout(&out, product.output, side, side, side) && !library.make_preference(&preference) &&
               !library.set_preference(preference, kLargestWorkspace, &workspace_bytes, sizeof workspace_bytes);
  if (asked && product.format == Format::kFp8) {
    signed char fast = 1;
    asked = !library.set_product(work, kScaleA, &one, sizeof one) && !library.set_product(work, kScaleB, &one, sizeof one);
    if (kFastAccumulation >= 0) (void)library.set_product(work, kFastAccumulation, &fast, sizeof fast);
  }
  int status = asked ? library.choose(blas, work, in, in, out, out, preference, kAlgorithms, results.data(), &found) : -1;
  if (status || found < 1) return add_failed("matrix", product.dtype, title.c_str(), "the library has no such product");
  for (int n = 0; n < found; ++n) {
    std::vector<char> algorithm(results.begin() + n * kResultBytes, results.begin() + (n + 1) * kResultBytes);
    auto multiply = [=, &library]() -> int {
      static const double one64 = 1, zero64 = 0;
      static const float one32 = 1, zero32 = 0;
      bool wide = product.scale == kR64F;
      const void* alpha = wide ? static_cast<const void*>(&one64) : &one32;
      const void* beta = wide ? static_cast<const void*>(&zero64) : &zero32;
      return library.multiply(blas, work, alpha, a, in, b, in, beta, d, out, d, out, algorithm.data(), workspace,
                              workspace_bytes, 0);
    };
    if (multiply() || hipDeviceSynchronize() != hipSuccess) {
      (void)hipGetLastError();
      continue;
    }
    add("matrix", product.dtype, title + ", algorithm " + std::to_string(n + 1), 2.0 * side * side * double(side),
        "flop/s", [=] { (void)multiply(); });
  }
}

void add_products(const std::vector<const char*>& names) {
  static Library library;
  const Product products[] = {
      {"fp64", Format::kFp64, 8, kR64F, kR64F, kCompute64F, kR64F},
      {"xf32", Format::kFp32, 4, kR32F, kR32F, kComputeFastTf32, kR32F},
      {"fp16", Format::kFp16, 2, kR16F, kR16F, kCompute32F, kR32F},
      {"bf16", Format::kBf16, 2, kR16BF, kR16BF, kCompute32F, kR32F},
      {"fp8", Format::kFp8, 1, kR8FE4M3, kR16BF, kCompute32F, kR32F},
#if defined(__HIP_PLATFORM_AMD__)
      {"fp32", Format::kFp32, 4, kR32F, kR32F, kCompute32F, kR32F},
      {"fp8", Format::kFp8, 1, kR8FE4M3Fnuz, kR16BF, kCompute32F, kR32F},
#endif
  };
  bool open = std::any_of(names.begin(), names.end(), [](const char* name) { return library.open(name); });
  void* blas = nullptr;
  if (!open || library.create(&blas)) {
    std::string why = open ? "the library cannot use this device" : std::string("no ") + kPrefix + " could be loaded";
    for (const Product& product : products) add_failed("matrix", product.dtype, kPrefix, why);
    return;
  }
  void* workspace = nullptr;
  float *one = nullptr, value = 1;
  CHECK(hipMalloc(&workspace, kWorkspaceBytes));
  CHECK(hipMalloc(reinterpret_cast<void**>(&one), sizeof value));
  CHECK(hipMemcpy(one, &value, sizeof value, hipMemcpyHostToDevice));
  for (const Product& product : products) {
    for (int side : {4096, 8192}) {
      add_product(library, blas, product, side, true, workspace, one);
      // Of 8-bit formats libraries have the transposed product alone.
      if (product.format != Format::kFp8) add_product(library, blas, product, side, false, workspace, one);
    }
  }
}

// `copy` of `copy, 2048 MiB an array`, and a product without its algorithm.
std::string kind_of(const std::string& kernel) {
  return kernel.substr(0, kernel.find(kernel.rfind(kPrefix, 0) == 0 ? ", algorithm" : ","));
}

// The quickest of each resource, format and kernel; the others would take their time.
void keep_quickest(Clock& clock) {
  std::vector<double> rate(measurements.size(), 0);
  for (size_t n = 0; n < measurements.size(); ++n) {
    Measurement& one = measurements[n];
    if (!one.launch) continue;
    one.launch();
    double ns = std::min(clock.launch_ns(one.launch, 1), clock.launch_ns(one.launch, 1));
    int launches = std::max(1, int(kChoiceNs / ns));
    ns = clock.launch_ns(one.launch, launches);
    one.launches = std::max(1, int(std::ceil(kWindowNs / ns)));
    rate[n] = one.work / ns;
  }
  std::vector<Measurement> kept;
  for (size_t n = 0; n < measurements.size(); ++n) {
    bool better = false;
    for (size_t m = 0; m < measurements.size(); ++m) {
      if (measurements[m].resource != measurements[n].resource || measurements[m].dtype != measurements[n].dtype) continue;
      std::string mine = kind_of(measurements[n].kernel), theirs = kind_of(measurements[m].kernel);
      if (measurements[m].launch && !measurements[n].launch) better = true;
      if (mine == theirs && rate[m] > rate[n]) better = true;
    }
    if (!better) kept.push_back(measurements[n]);  // a copy: the others are still compared with it
  }
  measurements = std::move(kept);
}

// Each window starts from rest, because products of matrices take more power than a GPU may have for long. An H100 does
// them at 1965 MHz for the first 50 ms and a little more, then its power limit brings it to 1350 to 1450: what it does at
// best is what it does before, and a product that comes straight after another starts at the lower clock.
void measure(Clock& clock, double seconds, int rounds) {
  size_t active = 0;
  for (const Measurement& one : measurements) active += bool(one.launch);
  double share = seconds / (rounds * std::max<size_t>(active, 1));
  int windows = std::max(1, int(std::lround(share / (kRestSeconds + kWindowNs / 1e9))));
  std::chrono::duration<double> rest(std::min(kRestSeconds, share / 2));
  size_t done = 0;
  for (int round = 0; round < rounds; ++round) {
    for (Measurement& one : measurements) {
      if (!one.launch) continue;
      std::printf("{\"done\": %zu, \"total\": %zu}\n", done++, active * rounds);
      std::fflush(stdout);
      one.rounds.emplace_back();
      for (int window = 0; window < windows; ++window) {
        std::this_thread::sleep_for(rest);
        one.rounds.back().push_back(clock.launch_ns(one.launch, one.launches));
      }
    }
  }
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

void tell() {
  for (const Measurement& one : measurements) {
    std::fprintf(result, "{\"resource\": %s, \"dtype\": %s, \"kernel\": %s", quoted(one.resource).c_str(),
                one.dtype.empty() ? "null" : quoted(one.dtype).c_str(), quoted(one.kernel).c_str());
    if (!one.failed.empty()) {
      std::fprintf(result, ", \"failed\": %s}\n", quoted(one.failed).c_str());
      continue;
    }
    std::fprintf(result, ", \"work\": %.17g, \"unit\": \"%s\", \"launches\": %d, \"rounds\": [", one.work, one.unit,
                 one.launches);
    for (size_t round = 0; round < one.rounds.size(); ++round) {
      std::fprintf(result, "%s[", round ? ", " : "");
      const std::vector<double>& windows = one.rounds[round];
      for (size_t n = 0; n < windows.size(); ++n) std::fprintf(result, "%s%.1f", n ? ", " : "", windows[n]);
      std::fprintf(result, "]");
    }
    std::fprintf(result, "]}\n");
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 5 || !(result = std::fopen(arguments[4], "w"))) {
    std::fprintf(stderr, "usage: gpu_roofs DEVICE SECONDS ROUNDS RESULT [LIBRARY ...]\n");
    return 2;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  int device = std::atoi(arguments[1]), devices = 0;
  double seconds = std::atof(arguments[2]);
  int rounds = std::atoi(arguments[3]);
  CHECK(hipGetDeviceCount(&devices));
  if (device < 0 || device >= devices) {
    std::fprintf(result, "{\"failed\": \"there is no device %d, only %d of them\"}\n", device, devices);
    return 1;
  }
  CHECK(hipSetDevice(device));
  hipDeviceProp_t about;
  CHECK(hipGetDeviceProperties(&about, device));
  size_t free_bytes = 0, all_bytes = 0;
  CHECK(hipMemGetInfo(&free_bytes, &all_bytes));
  std::fprintf(result, "{\"device\": {\"name\": %s, \"compute_units\": %d, \"memory_bytes\": %zu, \"l2_bytes\": %d, ",
               quoted(about.name).c_str(), about.multiProcessorCount, size_t(about.totalGlobalMem), about.l2CacheSize);
#if defined(__HIP_PLATFORM_AMD__)
  std::fprintf(result, "\"arch\": %s}}\n", quoted(about.gcnArchName).c_str());
#else
  std::fprintf(result, "\"arch\": \"sm_%d%d\"}}\n", about.major, about.minor);
#endif

  size_t each = size_t{64} << 20;
  while (each < size_t{2} << 30 && each * 2 <= free_bytes / 8) each *= 2;
  float4 *a = nullptr, *b = nullptr, *c = nullptr;
  for (float4** place : {&a, &b, &c}) {
    CHECK(hipMalloc(reinterpret_cast<void**>(place), each));
    scatter_numbers<<<1024, 256>>>(*place, each / sizeof(float), Format::kFp32, 0);
  }
  int units = about.multiProcessorCount;
  size_t elements = each / sizeof(float4);
  add_streams<Stream::kRead>(a, b, c, elements);
  add_streams<Stream::kCopy>(a, b, c, elements);
  add_streams<Stream::kTriad>(a, b, c, elements);
  for (int share : {4, 2}) {
    size_t set_bytes = size_t(about.l2CacheSize) / share;
#if defined(__HIP_PLATFORM_AMD__)
    // NVIDIA's L2 sees only nine of ten reads of such a set: the others are joined on the way.
    add_circle<Stream::kRead>(a, b, c, set_bytes, units);
#endif
    add_circle<Stream::kCopy>(a, b, c, set_bytes, units);
    add_circle<Stream::kTriad>(a, b, c, set_bytes, units);
  }
  unsigned blocks = unsigned(units) * 4;
  add("vl1d", "", "read, 6 KiB", double(blocks) * kBlock * kSteps * 512 * sizeof(float4), "byte/s",
      [=] { first_level<<<blocks, kBlock>>>(a, c, kWindows - 1, kWindowStep, 512); });
  add_shared<Stream::kCopy>(c, units);
  add_shared<Stream::kTriad>(c, units);
  add_arithmetic<double, false>("vector", "fp64", 2, c, units);
  add_arithmetic<float, false>("vector", "fp32", 2, c, units);
  add_arithmetic<__half2, true>("vector_packed", "fp16", 4, c, units);
#if defined(__HIP_PLATFORM_AMD__)
  if (std::strncmp(about.gcnArchName, "gfx90a", 6) == 0 || std::strncmp(about.gcnArchName, "gfx94", 5) == 0 ||
      std::strncmp(about.gcnArchName, "gfx95", 5) == 0) {
    add_arithmetic<float, true>("vector_packed", "fp32", 2, c, units);
  }
#endif
  add_products(std::vector<const char*>(arguments + 5, arguments + count));

  Clock clock;
  double warm = seconds_now() + kWarmUpSeconds;
  while (seconds_now() < warm) clock.launch_ns([=] { multiply_adds<float, false><<<blocks, kBlock>>>(c, 0.999f, 0.001f, 512); }, 8);
  keep_quickest(clock);
  measure(clock, seconds, rounds);
  tell();
  return 0;
}
