// Kernels whose work is known by construction, to hold counters against: prints what each is to count, in launch order.
//
//     counted_kernels [STREAM_MIB]
//
// Amounts are of one launch: bytes of memory, bytes between the multiprocessors and L2, bytes of shared memory,
// operations by number format (a fused multiply-add is two).
#include <cuda_fp16.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#define CHECK(call)                                                                     \
  do {                                                                                  \
    cudaError_t checked = (call);                                                       \
    if (checked != cudaSuccess) {                                                       \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(checked));             \
      std::exit(1);                                                                     \
    }                                                                                   \
  } while (0)

constexpr int kBlock = 256;
constexpr int kSteps = 256;
constexpr int kChains = 8;

__global__ void copy_stream(const float4* __restrict__ a, float4* __restrict__ b) {
  size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
  b[i] = a[i];
}
__global__ void triad_stream(const float4* __restrict__ a, const float4* __restrict__ b, float4* __restrict__ c,
                             float s) {
  size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
  float4 x = a[i], y = b[i];
  c[i] = make_float4(fmaf(s, y.x, x.x), fmaf(s, y.y, x.y), fmaf(s, y.z, x.z), fmaf(s, y.w, x.w));
}
__global__ void fill_stream(float4* __restrict__ a, float value) {
  size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
  a[i] = make_float4(value, value, value, value);
}
__global__ void read_stream(const float4* __restrict__ a, float4* __restrict__ out) {
  size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
  float4 x = a[i];
  if (x.x == -1.25e-30f) out[0] = x;
}
// One 4-byte word of each 32-byte sector.
__global__ void sparse_stream(const float* __restrict__ a, float* __restrict__ b) {
  size_t i = (size_t(blockIdx.x) * blockDim.x + threadIdx.x) * 8;
  b[i] = a[i];
}

__global__ void multiply_adds_fp32(float* out, float a, float b) {
  float x[kChains];
  for (int k = 0; k < kChains; ++k) x[k] = float(threadIdx.x + k);
#pragma unroll 1
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int k = 0; k < kChains; ++k) x[k] = fmaf(x[k], a, b);
  }
  bool kept = true;
  for (int k = 0; k < kChains; ++k) kept = kept && x[k] == -1.0f;
  if (kept) out[0] = x[0];
}
__global__ void multiply_adds_fp64(double* out, double a, double b) {
  double x[kChains];
  for (int k = 0; k < kChains; ++k) x[k] = double(threadIdx.x + k);
#pragma unroll 1
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int k = 0; k < kChains; ++k) x[k] = fma(x[k], a, b);
  }
  bool kept = true;
  for (int k = 0; k < kChains; ++k) kept = kept && x[k] == -1.0;
  if (kept) out[0] = x[0];
}
__global__ void multiply_adds_half2(__half2* out, float a, float b) {
  __half2 x[kChains], factor = __float2half2_rn(a), addend = __float2half2_rn(b);
  for (int k = 0; k < kChains; ++k) x[k] = __float2half2_rn(float(threadIdx.x + k));
#pragma unroll 1
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int k = 0; k < kChains; ++k) x[k] = __hfma2(x[k], factor, addend);
  }
  bool kept = true;
  for (int k = 0; k < kChains; ++k) kept = kept && __hbeq2(x[k], __float2half2_rn(-1.0f));
  if (kept) out[0] = x[0];
}
__global__ void multiply_adds_half(__half* out, float a, float b) {
  __half x[kChains], factor = __float2half(a), addend = __float2half(b);
  for (int k = 0; k < kChains; ++k) x[k] = __float2half(float(threadIdx.x + k));
#pragma unroll 1
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int k = 0; k < kChains; ++k) x[k] = __hfma(x[k], factor, addend);
  }
  bool kept = true;
  for (int k = 0; k < kChains; ++k) kept = kept && __heq(x[k], __float2half(-1.0f));
  if (kept) out[0] = x[0];
}
// Additions and products, and only every other lane of a warp at work.
__global__ void half_of_lanes(float* out, float a, float b) {
  float x = float(threadIdx.x), y = float(threadIdx.x);
  if (threadIdx.x % 2) {
#pragma unroll 1
    for (int step = 0; step < kSteps; ++step) {
      x = __fadd_rn(x, a);
      y = __fmul_rn(y, b);
    }
  }
  if (x == -1.0f && y == -1.0f) out[0] = x;
}

// The whole of a set that L2 holds and L1 does not, read by each block from another place on.
__global__ void circle_of_reads(const float4* __restrict__ a, float4* __restrict__ out, int chunks, int steps) {
  int chunk = int(int64_t(blockIdx.x) * chunks / gridDim.x);
  float4 sum = make_float4(0, 0, 0, 0);
  for (int step = 0; step < steps; ++step) {
    float4 x = a[size_t(chunk) * blockDim.x + threadIdx.x];
    sum = make_float4(sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w);
    if (++chunk == chunks) chunk = 0;
  }
  if (sum.x == -1.25e-30f) out[0] = sum;
}
__global__ void circle_of_writes(float4* __restrict__ a, int chunks, int steps) {
  int chunk = int(int64_t(blockIdx.x) * chunks / gridDim.x);
  for (int step = 0; step < steps; ++step) {
    a[size_t(chunk) * blockDim.x + threadIdx.x] = make_float4(1, 2, 3, 4);
    if (++chunk == chunks) chunk = 0;
  }
}
__global__ void additions_in_memory(float* a) {
  size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
  atomicAdd(a + i, 1.0f);
}
__global__ void exchanges_in_memory(unsigned* a, unsigned* out) {
  size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (atomicExch(a + i, 1u) == 0xdeadbeefu) out[0] = 1;
}

// Shared memory: 16 bytes of each lane without conflicts; then 4 bytes of each, all 32 in one bank.
__global__ void shared_without_conflicts(float4* out) {
  __shared__ float4 a[kBlock];
  a[threadIdx.x] = make_float4(threadIdx.x, 1, 2, 3);
  __syncthreads();
  float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 1
  for (int step = 0; step < kSteps; ++step) {
    asm volatile("" ::: "memory");
    float4 x = a[threadIdx.x];
    sum = make_float4(sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w);
  }
  if (sum.x == -1.25e-30f) out[0] = sum;
}
__global__ void shared_in_one_bank(float* out) {
  __shared__ float a[32 * 32];
  for (int i = threadIdx.x; i < 32 * 32; i += blockDim.x) a[i] = float(i);
  __syncthreads();
  float sum = 0;
#pragma unroll 1
  for (int step = 0; step < kSteps; ++step) {
    asm volatile("" ::: "memory");
    sum += a[(threadIdx.x % 32) * 32];
  }
  if (sum == -1.25e-30f) out[0] = sum;
}
// Two blocks of 8 warps on each multiprocessor, all for as long: 16 of its 64 warps.
__global__ void quarter_of_warps(long long cycles) {
  extern __shared__ char taken[];
  taken[threadIdx.x] = 0;
  long long until = clock64() + cycles;
  while (clock64() < until) {
  }
}

struct Expected {
  double dram_read = -1, dram_write = -1, l2_read = -1, l2_write = -1, shared = -1, fp16 = -1, fp32 = -1, fp64 = -1;
};
bool first = true;

void expect(const char* kernel, const Expected& one) {
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
  std::printf("%s\n {\"kernel\": \"%s\"", first ? "" : ",", kernel);
  first = false;
  const struct {
    const char* name;
    double value;
  } fields[] = {{"dram_read_bytes", one.dram_read}, {"dram_write_bytes", one.dram_write},
                {"l2_read_bytes", one.l2_read},     {"l2_write_bytes", one.l2_write},
                {"shared_bytes", one.shared},       {"fp16_operations", one.fp16},
                {"fp32_operations", one.fp32},      {"fp64_operations", one.fp64}};
  for (const auto& field : fields) {
    if (field.value >= 0) std::printf(", \"%s\": %.17g", field.name, field.value);
  }
  std::printf("}");
}

int main(int count, char** arguments) {
  size_t bytes = (count > 1 ? size_t(std::atoll(arguments[1])) : 2048) << 20;
  cudaDeviceProp about;
  CHECK(cudaGetDeviceProperties(&about, 0));
  unsigned units = unsigned(about.multiProcessorCount);
  float4 *a, *b, *c;
  for (float4** place : {&a, &b, &c}) {
    CHECK(cudaMalloc(place, bytes));
    CHECK(cudaMemset(*place, 0, bytes));
  }
  CHECK(cudaDeviceSynchronize());
  std::printf("{\"multiprocessors\": %u, \"l2_bytes\": %d, \"stream_bytes\": %zu, \"kernels\": [", units,
              about.l2CacheSize, bytes);
  double all = double(bytes);
  unsigned blocks = unsigned(bytes / sizeof(float4) / kBlock);

  copy_stream<<<blocks, kBlock>>>(a, b);
  expect("copy_stream", {all, all, all, all});
  triad_stream<<<blocks, kBlock>>>(a, b, c, 0.5f);
  expect("triad_stream", {2 * all, all, 2 * all, all, -1, -1, all / 4 * 2});
  fill_stream<<<blocks, kBlock>>>(c, 1.0f);
  expect("fill_stream", {0, all, 0, all});
  read_stream<<<blocks, kBlock>>>(a, c);
  expect("read_stream", {all, 0, all, 0});
  sparse_stream<<<blocks / 2, kBlock>>>(reinterpret_cast<float*>(a), reinterpret_cast<float*>(b));
  expect("sparse_stream", {all, all, all, all});

  unsigned many = units * 32;
  double operations = 2.0 * many * kBlock * kSteps * kChains;
  multiply_adds_fp32<<<many, kBlock>>>(reinterpret_cast<float*>(c), 0.5f, 0.25f);
  expect("multiply_adds_fp32", {-1, -1, -1, -1, -1, -1, operations});
  multiply_adds_fp64<<<many, kBlock>>>(reinterpret_cast<double*>(c), 0.5, 0.25);
  expect("multiply_adds_fp64", {-1, -1, -1, -1, -1, -1, -1, operations});
  multiply_adds_half2<<<many, kBlock>>>(reinterpret_cast<__half2*>(c), 0.5f, 0.25f);
  expect("multiply_adds_half2", {-1, -1, -1, -1, -1, 2 * operations});
  multiply_adds_half<<<many, kBlock>>>(reinterpret_cast<__half*>(c), 0.5f, 0.25f);
  expect("multiply_adds_half", {-1, -1, -1, -1, -1, operations});
  half_of_lanes<<<many, kBlock>>>(reinterpret_cast<float*>(c), 0.5f, 0.5f);
  expect("half_of_lanes", {-1, -1, -1, -1, -1, -1, 2.0 * many * kBlock / 2 * kSteps});

  int chunks = (8 << 20) / int(kBlock * sizeof(float4)), steps = 512;
  double moved = double(units) * 4 * steps * kBlock * sizeof(float4);
  circle_of_reads<<<units * 4, kBlock>>>(a, c, chunks, steps);
  expect("circle_of_reads", {-1, -1, moved, -1});
  circle_of_writes<<<units * 4, kBlock>>>(b, chunks, steps);
  expect("circle_of_writes", {-1, -1, -1, moved});
  unsigned words = 64u << 20;
  additions_in_memory<<<words / kBlock, kBlock>>>(reinterpret_cast<float*>(a));
  expect("additions_in_memory", {});
  exchanges_in_memory<<<words / kBlock, kBlock>>>(reinterpret_cast<unsigned*>(a), reinterpret_cast<unsigned*>(c));
  expect("exchanges_in_memory", {});

  shared_without_conflicts<<<many, kBlock>>>(c);
  expect("shared_without_conflicts", {-1, -1, -1, -1, double(many) * kBlock * 16 * (kSteps + 1)});
  shared_in_one_bank<<<many, kBlock>>>(reinterpret_cast<float*>(c));
  expect("shared_in_one_bank", {-1, -1, -1, -1, double(many) * 4 * (double(kBlock) * kSteps + 32 * 32)});
  int taken = int(about.sharedMemPerMultiprocessor / 2 - 2048);
  CHECK(cudaFuncSetAttribute(quarter_of_warps, cudaFuncAttributeMaxDynamicSharedMemorySize, taken));
  quarter_of_warps<<<units * 2, 256, taken>>>(4000000);
  expect("quarter_of_warps", {});

  // What the first writes, L2 still holds for the second.
  size_t small = size_t{8} << 20;
  fill_stream<<<unsigned(small / sizeof(float4) / kBlock), kBlock>>>(a, 2.0f);
  expect("fill_stream", {-1, -1, 0, double(small)});
  read_stream<<<unsigned(small / sizeof(float4) / kBlock), kBlock>>>(a, c);
  expect("read_stream", {-1, 0, double(small), 0});
  std::printf("\n]}\n");
  return 0;
}
