// What the CUDA programs of this folder share: checked calls, counted launches, the marked loop, the command line.
//
//   BINARY NAME [--steps N] [--fixed]
//
// Prints one JSON object: what the process asked of the GPU in all, counted where it asks, the time of its steps, and
// its peak memory. Every step is an NVTX range "step N" and a marked iteration; those before the loop lie in the phase
// "warm-up", all others in the range and phase "loop", which ends when the device has done them. Steps do not wait for
// the device unless waiting is the cause. Compile with -I of the folder that holds aaco_mark.h.
#pragma once
#include <aaco_mark.h>
#include <cuda_runtime.h>
#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <functional>
#include <string>
#include <vector>

#define CHECK(call)                                                    \
  do {                                                                 \
    const cudaError_t status_ = (call);                                \
    if (status_ != cudaSuccess) {                                      \
      fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status_)); \
      exit(9);                                                         \
    }                                                                  \
  } while (0)

struct Counts {
  long kernels = 0, copies = 0, fills = 0, allocations = 0;
};
static Counts counts;

#define LAUNCH(kernel, grid, block, stream, ...)               \
  do {                                                         \
    kernel<<<(grid), (block), 0, (stream)>>>(__VA_ARGS__);     \
    CHECK(cudaGetLastError());                                 \
    ++counts.kernels;                                          \
  } while (0)

// ---- kernels of several programs ------------------------------------------------------------------------------------

// Busy for about so many cycles of the clock, on as many multiprocessors as there are blocks.
__global__ void spin(long long cycles) {
  const long long begin = clock64();
  while (clock64() - begin < cycles) {
  }
}

__global__ void scale(const float4* from, float4* to, float by) {
  const size_t at = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
  const float4 value = from[at];
  to[at] = make_float4(by * value.x, by * value.y, by * value.z, by * value.w);
}

__global__ void increment(float* values) { values[blockIdx.x * blockDim.x + threadIdx.x] += 1.0f; }

// ---- the loop -------------------------------------------------------------------------------------------------------

static long long now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

template <typename Type>
static Type* allocated(size_t count) {
  Type* place = nullptr;
  CHECK(cudaMalloc(&place, count * sizeof(Type)));
  ++counts.allocations;
  CHECK(cudaMemset(place, 0, count * sizeof(Type)));
  ++counts.fills;
  return place;
}

static const long long kCyclesOfMicrosecond = 1700;
static const int kWarmSteps = 3;

// The steps' time in ns; the clock is up and everything loaded before. `ready` is called just before the first.
static long long timed(int steps, const std::function<void()>& step, const std::function<void()>& ready = [] {}) {
  aaco_phase_begin("warm-up");
  LAUNCH(spin, 132, 32, nullptr, 150000 * kCyclesOfMicrosecond);
  for (int one = 0; one < kWarmSteps; ++one) {
    aaco_iteration_begin();
    step();
    aaco_iteration_end();
  }
  CHECK(cudaDeviceSynchronize());
  aaco_phase_end();
  ready();
  aaco_phase_begin("loop");
  nvtxRangePushA("loop");
  const long long begin = now_ns();
  for (int one = 0; one < steps; ++one) {
    nvtxRangePushA(("step " + std::to_string(one)).c_str());
    aaco_iteration_begin();
    step();
    aaco_iteration_end();
    nvtxRangePop();
  }
  CHECK(cudaDeviceSynchronize());
  const long long end = now_ns();
  nvtxRangePop();
  aaco_phase_end();
  return end - begin;
}

// ---- the command line -----------------------------------------------------------------------------------------------

// The most memory that the process has held at once, by the kernel's account; -1 where it does not say.
static long long peak_memory_bytes() {
  long long kibibytes = -1;
  char line[256];
  FILE* status = fopen("/proc/self/status", "r");
  while (status && fgets(line, sizeof line, status)) {
    if (sscanf(line, "VmHWM: %lld kB", &kibibytes) == 1) break;
  }
  if (status) fclose(status);
  return kibibytes < 0 ? -1 : 1024 * kibibytes;
}

struct Named {
  const char* name;
  long long (*run)(int steps, bool fixed);
};

static int run_named(const std::vector<Named>& programs, int count, char** words) {
  int steps = 20;
  bool fixed = false;
  for (int at = 2; at < count; ++at) {
    if (!strcmp(words[at], "--fixed")) fixed = true;
    else if (!strcmp(words[at], "--steps") && at + 1 < count) steps = atoi(words[++at]);
  }
  for (const auto& program : programs) {
    if (count < 2 || strcmp(words[1], program.name)) continue;
    const long long loop_ns = program.run(steps, fixed);
    printf(
        "{\"steps\": %d, \"loop_ns\": %lld, \"kernels\": %ld, \"copies\": %ld, \"fills\": %ld, "
        "\"allocations\": %ld, \"peak_memory_bytes\": %lld}\n",
        steps, loop_ns, counts.kernels, counts.copies, counts.fills, counts.allocations, peak_memory_bytes());
    return 0;
  }
  fprintf(stderr, "see the head of loop.cuh\n");
  return 2;
}
