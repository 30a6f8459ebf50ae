// Programs with a known cause, written against the CUDA runtime alone; `catalogue.py` says what each is slow by, and
// `loop.cuh` how they are called and what they print.
#include <sys/wait.h>
#include <unistd.h>

#include "loop.cuh"

// ---- kernels --------------------------------------------------------------------------------------------------------

__global__ void add(const float4* left, const float4* right, float4* sum) {
  const size_t at = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
  const float4 one = left[at], other = right[at];
  sum[at] = make_float4(one.x + other.x, one.y + other.y, one.z + other.z, one.w + other.w);
}

__global__ void scale_and_add(const float4* from, float4* to, float by) {
  const size_t at = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
  const float4 value = from[at];
  to[at] = make_float4(value.x + by * value.x, value.y + by * value.y, value.z + by * value.z, value.w + by * value.w);
}

// Places in order, or those of MurmurHash3's finalizer, by Austin Appleby (public domain).
__global__ void fill_places(unsigned* places, unsigned count, unsigned table, bool in_order) {
  const unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned mixed = at;
  mixed = (mixed ^ (mixed >> 16)) * 0x85ebca6bu;
  mixed = (mixed ^ (mixed >> 13)) * 0xc2b2ae35u;
  if (at < count) places[at] = in_order ? at : (mixed ^ (mixed >> 16)) & (table - 1);
}

__global__ void gather(const float* table, const unsigned* places, float* out, unsigned count) {
  const unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at < count) out[at] = table[places[at]];
}

__global__ void add_to_one(const float* values, float* total, unsigned count) {
  const unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at < count) atomicAdd(total, values[at]);
}

__global__ void add_in_blocks(const float* values, float* total, unsigned count) {
  __shared__ float warps[32];
  const unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
  float value = at < count ? values[at] : 0.0f;
  for (int lanes = 16; lanes; lanes /= 2) value += __shfl_down_sync(~0u, value, lanes);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) value += warps[warp];
    atomicAdd(total, value);
  }
}

__global__ void increment_often(float* values, int times) {
  volatile float* own = values + blockIdx.x * blockDim.x + threadIdx.x;
  for (int one = 0; one < times; ++one) *own += 1.0f;
}

// ---- the programs ---------------------------------------------------------------------------------------------------

// Two passes over memory where one does.
static long long stream(int steps, bool fixed) {
  const size_t quads = 64 << 20;
  auto *from = allocated<float4>(quads), *middle = allocated<float4>(quads), *to = allocated<float4>(quads);
  return timed(steps, [&] {
    if (fixed) {
      LAUNCH(scale_and_add, quads / 256, 256, nullptr, from, to, 0.5f);
    } else {
      LAUNCH(scale, quads / 256, 256, nullptr, from, middle, 0.5f);
      LAUNCH(add, quads / 256, 256, nullptr, from, middle, to);
    }
  });
}

static long long random_gather(int steps, bool fixed) {
  const unsigned table_count = 1u << 28, count = 1u << 26;
  auto* table = allocated<float>(table_count);
  auto* places = allocated<unsigned>(count);
  auto* out = allocated<float>(count);
  LAUNCH(fill_places, count / 256, 256, nullptr, places, count, table_count, fixed);
  return timed(steps, [&] { LAUNCH(gather, count / 256, 256, nullptr, table, places, out, count); });
}

static long long atomics_one_address(int steps, bool fixed) {
  const unsigned count = 1u << 22;
  auto *values = allocated<float>(count), *total = allocated<float>(1);
  return timed(steps, [&] {
    if (fixed) LAUNCH(add_in_blocks, count / 256, 256, nullptr, values, total, count);
    else LAUNCH(add_to_one, count / 256, 256, nullptr, values, total, count);
  });
}

static const int kTiny = 200;

static cudaGraphExec_t graph_of_tiny(float* values, cudaStream_t stream) {
  cudaGraph_t graph;
  cudaGraphExec_t ready;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int one = 0; one < kTiny; ++one) increment<<<4, 128, 0, stream>>>(values);  // captured, not launched
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&ready, graph, 0));
  return ready;
}

static long long tiny_kernels(int steps, bool fixed) {
  auto* values = allocated<float>(4 * 128);
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  cudaGraphExec_t graph = fixed ? graph_of_tiny(values, stream) : nullptr;
  return timed(steps, [&] {
    if (fixed) {
      CHECK(cudaGraphLaunch(graph, stream));
      counts.kernels += kTiny;
    } else {
      for (int one = 0; one < kTiny; ++one) LAUNCH(increment, 4, 128, stream, values);
    }
  });
}

static long long cuda_graph(int steps, bool fixed) {
  auto* values = allocated<float>(4 * 128);
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  cudaGraphExec_t graph = graph_of_tiny(values, stream);
  return timed(steps, [&] {
    if (fixed) {
      LAUNCH(increment_often, 4, 128, stream, values, kTiny);
    } else {
      CHECK(cudaGraphLaunch(graph, stream));
      counts.kernels += kTiny;
    }
  });
}

// Kernels that leave most of the device free, beside each other; with --fixed one after the other.
static long long two_streams(int steps, bool fixed) {
  cudaStream_t streams[2];
  for (auto& one : streams) CHECK(cudaStreamCreate(&one));
  return timed(steps, [&] {
    for (int one = 0; one < 8; ++one) {
      LAUNCH(spin, 32, 128, streams[fixed ? 0 : one % 2], 200 * kCyclesOfMicrosecond);
    }
  });
}

static long long allocation_each_step(int steps, bool fixed) {
  const size_t quads = 16 << 20;
  auto* from = allocated<float4>(quads);
  float4* kept = fixed ? allocated<float4>(quads) : nullptr;
  return timed(steps, [&] {
    float4* to = kept;
    if (!fixed) {
      CHECK(cudaMalloc(&to, quads * sizeof(float4)));
      ++counts.allocations;
    }
    LAUNCH(scale, quads / 256, 256, nullptr, from, to, 0.5f);
    if (!fixed) CHECK(cudaFree(to));
  });
}

// A second process does the same on the same GPU; with --fixed it does not.
static long long two_processes(int steps, bool fixed) {
  int to_parent[2], to_child[2];
  if (pipe(to_parent) != 0 || pipe(to_child) != 0) exit(8);
  pid_t child = fixed ? 0 : fork();  // before CUDA begins in either
  const bool is_child = !fixed && child == 0;
  auto meet = [&] {  // both begin their steps together
    char byte = 1;
    if (fixed) return;
    const int out = is_child ? to_parent[1] : to_child[1], in = is_child ? to_child[0] : to_parent[0];
    if (write(out, &byte, 1) != 1 || read(in, &byte, 1) != 1) exit(8);
  };
  const long long loop_ns = timed(
      steps, [&] { LAUNCH(spin, 264, 256, nullptr, 1000 * kCyclesOfMicrosecond); }, meet);
  if (is_child) {
    if (write(to_parent[1], &counts, sizeof counts) != ssize_t(sizeof counts)) exit(8);
    exit(0);
  }
  if (!fixed) {
    Counts of_child;
    if (read(to_parent[0], &of_child, sizeof of_child) != ssize_t(sizeof of_child)) exit(8);
    waitpid(child, nullptr, 0);
    counts.kernels += of_child.kernels;
  }
  return loop_ns;
}

// ---- what tracing costs ---------------------------------------------------------------------------------------------

// Nothing but launches, a thousand a step: the host has no other work, and the device keeps up.
static long long back_to_back(int steps, bool) {
  auto* values = allocated<float>(32);
  return timed(steps, [&] {
    for (int one = 0; one < 1000; ++one) LAUNCH(increment, 1, 32, nullptr, values);
  });
}

int main(int count, char** words) {
  return run_named(
      {
          {"stream", stream},
          {"random_gather", random_gather},
          {"atomics_one_address", atomics_one_address},
          {"tiny_kernels", tiny_kernels},
          {"cuda_graph", cuda_graph},
          {"two_streams", two_streams},
          {"allocation_each_step", allocation_each_step},
          {"two_processes", two_processes},
          {"launches_200k", back_to_back},
          {"launches_10m", back_to_back},
      },
      count, words);
}
