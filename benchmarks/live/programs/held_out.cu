// Programs with a known cause that are run once, when the analysis is done: nothing was tuned on them. `catalogue.py`
// says what each is slow by and why, `loop.cuh` how they are called and what they print.
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "loop.cuh"

// ---- kernels --------------------------------------------------------------------------------------------------------

static const int kTile = 32;

// Reads in order and writes a line apart.
__global__ void transpose_in_columns(const float* from, float* to, int size) {
  const int column = blockIdx.x * kTile + threadIdx.x;
  for (int row = blockIdx.y * kTile + threadIdx.y; row < (blockIdx.y + 1) * kTile; row += blockDim.y) {
    to[size_t(column) * size + row] = from[size_t(row) * size + column];
  }
}

// Reads and writes in order, by way of shared memory.
__global__ void transpose_in_tiles(const float* from, float* to, int size) {
  __shared__ float tile[kTile][kTile + 1];
  for (int row = threadIdx.y; row < kTile; row += blockDim.y) {
    tile[row][threadIdx.x] = from[size_t(blockIdx.y * kTile + row) * size + blockIdx.x * kTile + threadIdx.x];
  }
  __syncthreads();
  for (int row = threadIdx.y; row < kTile; row += blockDim.y) {
    to[size_t(blockIdx.x * kTile + row) * size + blockIdx.y * kTile + threadIdx.x] = tile[threadIdx.x][row];
  }
}

// Every block adds up its share of the values.
__global__ void sum(const float* values, float* total, unsigned count) {
  __shared__ float warps[32];
  float value = 0.0f;
  const unsigned threads = gridDim.x * blockDim.x;
  for (unsigned at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += threads) value += values[at];
  for (int lanes = 16; lanes; lanes /= 2) value += __shfl_down_sync(~0u, value, lanes);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) value += warps[warp];
    atomicAdd(total, value);
  }
}

// ---- what the programs need -----------------------------------------------------------------------------------------

// The host is busy with something else.
static void pause(long long ns) {
  for (const long long until = now_ns() + ns; now_ns() < until;) {
  }
}

template <typename Type>
static Type* pinned(size_t count) {
  Type* place = nullptr;
  CHECK(cudaMallocHost(&place, count * sizeof(Type)));
  return place;
}

static cudaEvent_t event() {
  cudaEvent_t made;
  CHECK(cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
  return made;
}

// A lock that is given in the order in which it was asked for.
class FairLock {
 public:
  unsigned long ask() {
    std::lock_guard<std::mutex> held(guard_);
    return asked_++;
  }
  void wait(unsigned long turn) {
    std::unique_lock<std::mutex> held(guard_);
    changed_.wait(held, [&] { return given_back_ == turn; });
  }
  void give_back() {
    {
      std::lock_guard<std::mutex> held(guard_);
      ++given_back_;
    }
    changed_.notify_all();
  }

 private:
  std::mutex guard_;
  std::condition_variable changed_;
  unsigned long asked_ = 0, given_back_ = 0;
};

// ---- the programs ---------------------------------------------------------------------------------------------------

static long long synced_kernels(int steps, bool fixed) {
  return timed(steps, [&] {
    for (int one = 0; one < 16; ++one) {
      LAUNCH(spin, 132, 128, nullptr, 6 * kCyclesOfMicrosecond);
      if (!fixed) CHECK(cudaDeviceSynchronize());
    }
  });
}

// The default stream waits for every other stream that does not opt out, and they for it. The work is about as long as
// its results take to the host of this machine, so that either can hide the other.
static long long results_in_the_way(int steps, bool fixed) {
  const size_t count = 4 << 20;  // 16 MiB
  float *results[] = {allocated<float>(count), allocated<float>(count)};
  float *on_host[] = {pinned<float>(count), pinned<float>(count)};
  cudaEvent_t done[] = {event(), event()}, copied[] = {event(), event()};
  cudaStream_t work, aside;
  CHECK(cudaStreamCreate(&work));
  CHECK(cudaStreamCreateWithFlags(&aside, cudaStreamNonBlocking));
  long long copy_ns = 0;
  for (int one = -1; one < 10; ++one) {  // the first is not counted
    const long long begin = now_ns();
    CHECK(cudaMemcpy(on_host[0], results[0], count * sizeof(float), cudaMemcpyDeviceToHost));
    ++counts.copies;
    if (one >= 0) copy_ns += (now_ns() - begin) / 10;
  }
  int turn = 0;
  return timed(steps, [&] {
    cudaStream_t copies = fixed ? aside : nullptr;
    if (fixed) CHECK(cudaStreamWaitEvent(work, copied[turn], 0));
    LAUNCH(spin, 132, 128, work, copy_ns * kCyclesOfMicrosecond / 1000);
    LAUNCH(increment, count / 256, 256, work, results[turn]);
    if (fixed) {
      CHECK(cudaEventRecord(done[turn], work));
      CHECK(cudaStreamWaitEvent(copies, done[turn], 0));
    }
    CHECK(cudaMemcpyAsync(on_host[turn], results[turn], count * sizeof(float), cudaMemcpyDeviceToHost, copies));
    ++counts.copies;
    if (fixed) CHECK(cudaEventRecord(copied[turn], copies));
    turn = 1 - turn;
  });
}

static long long pinned_each_step(int steps, bool fixed) {
  const size_t quads = 1 << 20;  // 16 MiB
  auto *from = allocated<float4>(quads), *to = allocated<float4>(quads);
  float4* kept = fixed ? pinned<float4>(quads) : nullptr;
  return timed(steps, [&] {
    float4* on_host = fixed ? kept : pinned<float4>(quads);
    CHECK(cudaMemcpyAsync(from, on_host, quads * sizeof(float4), cudaMemcpyHostToDevice, nullptr));
    ++counts.copies;
    LAUNCH(scale, quads / 256, 256, nullptr, from, to, 0.5f);
    CHECK(cudaStreamSynchronize(nullptr));
    if (!fixed) CHECK(cudaFreeHost(on_host));
  });
}

// Another thread keeps books under the lock that launches need, and asks for it anew before it gives it back: no two
// launches come between two of its turns. With --fixed it has a lock of its own.
static long long lock_between_threads(int steps, bool fixed) {
  FairLock of_launches, of_books;
  FairLock& others = fixed ? of_books : of_launches;
  std::atomic<bool> ended{false};
  unsigned long first = others.ask();
  std::thread books([&, turn = first]() mutable {
    while (!ended) {
      others.wait(turn);
      pause(100000);
      turn = others.ask();
      others.give_back();
    }
    others.wait(turn);
    others.give_back();
  });
  const long long loop_ns = timed(steps, [&] {
    for (int one = 0; one < 8; ++one) {
      of_launches.wait(of_launches.ask());
      LAUNCH(spin, 132, 128, nullptr, 20 * kCyclesOfMicrosecond);
      of_launches.give_back();
    }
  });
  ended = true;
  books.join();
  return loop_ns;
}

static long long small_copies(int steps, bool fixed) {
  const size_t pieces = 64, bytes = 4096;
  auto* place = allocated<char>(pieces * bytes);
  std::vector<std::vector<char>> parameters(pieces, std::vector<char>(bytes, 1));
  std::vector<char> packed(pieces * bytes);
  return timed(steps, [&] {
    for (size_t one = 0; one < pieces; ++one) {
      if (fixed) {
        memcpy(packed.data() + one * bytes, parameters[one].data(), bytes);
      } else {
        CHECK(cudaMemcpy(place + one * bytes, parameters[one].data(), bytes, cudaMemcpyHostToDevice));
        ++counts.copies;
      }
    }
    if (fixed) {
      CHECK(cudaMemcpy(place, packed.data(), pieces * bytes, cudaMemcpyHostToDevice));
      ++counts.copies;
    }
    LAUNCH(spin, 132, 128, nullptr, 30 * kCyclesOfMicrosecond);
  });
}

static long long pauses_and_launches(int steps, bool fixed) {
  auto* values = allocated<float>(4 * 128);
  return timed(steps, [&] {
    for (int half = 0; half < 2; ++half) {
      if (!fixed) pause(1500000);
      for (int one = 0; one < 250; ++one) LAUNCH(increment, 4, 128, nullptr, values);
    }
  });
}

static long long strided_transpose(int steps, bool fixed) {
  const int size = 8192;
  auto *from = allocated<float>(size_t(size) * size), *to = allocated<float>(size_t(size) * size);
  const dim3 grid(size / kTile, size / kTile), block(kTile, 8);
  return timed(steps, [&] {
    if (fixed) LAUNCH(transpose_in_tiles, grid, block, nullptr, from, to, size);
    else LAUNCH(transpose_in_columns, grid, block, nullptr, from, to, size);
  });
}

static long long one_block(int steps, bool fixed) {
  const unsigned count = 16 << 20;
  auto *values = allocated<float>(count), *total = allocated<float>(1);
  return timed(steps, [&] { LAUNCH(sum, fixed ? 1024 : 1, 1024, nullptr, values, total, count); });
}

int main(int count, char** words) {
  return run_named(
      {
          {"synced_kernels", synced_kernels},
          {"results_in_the_way", results_in_the_way},
          {"pinned_each_step", pinned_each_step},
          {"lock_between_threads", lock_between_threads},
          {"small_copies", small_copies},
          {"pauses_and_launches", pauses_and_launches},
          {"strided_transpose", strided_transpose},
          {"one_block", one_block},
      },
      count, words);
}
