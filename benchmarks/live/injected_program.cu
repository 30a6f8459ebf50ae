// The program that `h200_injection.py` runs plain and traced: it counts itself what it asks of the GPU.
//
//   injected_program launches N        N back-to-back launches of an empty kernel; the loop is timed with its end
//   injected_program mixed             known numbers of copies, fills, events, streams, allocations, graph replays, ranges
//   injected_program steady PATH MS    batches of ten launches until MS have passed; after each, counts go to PATH
//   injected_program handler PATH MS   the same with a handler of SIGTERM of its own, which ends it with status 7
//   injected_program leave PATH MS     the same, left by _exit
//   injected_program fork PATH MS      the same with a child that is forked in the middle and one that is not waited for
#include <cuda_runtime.h>
#include <fcntl.h>
#include <nvtx3/nvToolsExt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(call)                                                              \
  do {                                                                           \
    const cudaError_t status_ = (call);                                          \
    if (status_ != cudaSuccess) {                                                \
      fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status_));           \
      _exit(9);                                                                  \
    }                                                                            \
  } while (0)

__global__ void tiny(int* place) {
  if (place && threadIdx.x > 1024) *place = 1;
}
__global__ void add_one(float* values, int count) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at < count) values[at] += 1.0f;
}

static long long now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static int launches(long count) {
  CHECK(cudaFree(nullptr));
  tiny<<<1, 32>>>(nullptr);
  CHECK(cudaDeviceSynchronize());
  const long long begin = now_ns();
  for (long one = 1; one < count; ++one) tiny<<<1, 32>>>(nullptr);
  const long long launched = now_ns();
  CHECK(cudaDeviceSynchronize());
  const long long end = now_ns();
  printf("{\"kernels\": %ld, \"launch_ns\": %lld, \"loop_ns\": %lld}\n", count, launched - begin, end - begin);
  return 0;
}

static int mixed() {
  const size_t bytes = 4 << 20;
  const int count = bytes / sizeof(float);
  float *device, *other, *pinned;
  float* pageable = static_cast<float*>(calloc(1, bytes));
  CHECK(cudaMalloc(&device, bytes));
  CHECK(cudaMalloc(&other, bytes));
  CHECK(cudaMallocHost(&pinned, bytes));
  cudaStream_t first, second;
  CHECK(cudaStreamCreate(&first));
  CHECK(cudaStreamCreate(&second));
  cudaEvent_t event;
  CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  for (int one = 0; one < 10; ++one) {
    nvtxRangePushA("step");
    char text[32];
    snprintf(text, sizeof text, "step %d", one);
    nvtxRangePushA(text);
    CHECK(cudaMemcpy(device, pageable, bytes, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpyAsync(device, pinned, bytes, cudaMemcpyHostToDevice, first));
    CHECK(cudaMemsetAsync(other, 7, bytes, first));
    add_one<<<count / 256, 256, 0, first>>>(device, count);
    CHECK(cudaEventRecord(event, first));
    CHECK(cudaStreamWaitEvent(second, event, 0));
    CHECK(cudaMemcpyAsync(other, device, bytes, cudaMemcpyDeviceToDevice, second));
    CHECK(cudaMemcpyAsync(pinned, other, bytes, cudaMemcpyDeviceToHost, second));
    nvtxRangePop();
    CHECK(cudaStreamSynchronize(second));
    nvtxRangePop();
    nvtxMarkA("done");
  }
  CHECK(cudaEventSynchronize(event));
  cudaGraph_t graph;
  cudaGraphExec_t ready;
  CHECK(cudaStreamBeginCapture(first, cudaStreamCaptureModeGlobal));
  for (int node = 0; node < 8; ++node) add_one<<<count / 256, 256, 0, first>>>(device, count);
  CHECK(cudaMemsetAsync(other, 0, bytes, first));
  CHECK(cudaStreamEndCapture(first, &graph));
  CHECK(cudaGraphInstantiate(&ready, graph, 0));
  for (int replay = 0; replay < 25; ++replay) CHECK(cudaGraphLaunch(ready, first));
  CHECK(cudaStreamSynchronize(first));
  for (int one = 0; one < 5; ++one) {
    void* piece;
    CHECK(cudaMalloc(&piece, 1 << 20));
    CHECK(cudaFree(piece));
  }
  CHECK(cudaDeviceSynchronize());
  printf("{\"kernels\": 210, \"graph_kernels\": 200, \"host_to_device\": 20, \"device_to_device\": 10, "
         "\"device_to_host\": 10, \"fills\": 35, \"ranges\": 20, \"instants\": 10, \"copied_bytes\": %zu, "
         "\"graph_launches\": 25, \"allocations\": 8, \"releases\": 5, \"pageable\": 10}\n", 40 * bytes);
  return 0;
}

struct Progress {
  volatile long long begun, kernels, last_ns;
};

static void on_terminate(int) {
  static const char words[] = "handler of the program\n";
  if (write(1, words, sizeof words - 1)) _exit(7);
  _exit(7);
}

static int steady(const char* how, const char* path, long milliseconds) {
  const int file = open(path, O_RDWR | O_CREAT, 0644);
  if (file < 0 || ftruncate(file, sizeof(Progress)) != 0) return 8;
  auto* progress =
      static_cast<Progress*>(mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  if (!strcmp(how, "handler")) signal(SIGTERM, on_terminate);
  CHECK(cudaFree(nullptr));
  const long long end = now_ns() + milliseconds * 1000000LL;
  progress->begun = now_ns();
  pid_t waited = 0;
  for (long batch = 0; now_ns() < end; ++batch) {
    for (int one = 0; one < 10; ++one) tiny<<<1, 32>>>(nullptr);
    CHECK(cudaDeviceSynchronize());
    progress->kernels += 10;
    progress->last_ns = now_ns();
    if (batch == 100 && !strcmp(how, "fork")) {
      waited = fork();
      if (waited == 0) exit(0);
      if (fork() == 0) {
        usleep(200000);
        raise(SIGTERM);
      }
    }
    usleep(500);
  }
  if (waited) waitpid(waited, nullptr, 0);
  printf("{\"kernels\": %lld}\n", static_cast<long long>(progress->kernels));
  fflush(stdout);
  if (!strcmp(how, "leave")) _exit(0);
  return 0;
}

int main(int count, char** words) {
  if (count == 3 && !strcmp(words[1], "launches")) return launches(atol(words[2]));
  if (count == 2 && !strcmp(words[1], "mixed")) return mixed();
  if (count == 4) return steady(words[1], words[2], atol(words[3]));
  fprintf(stderr, "see the head of the source\n");
  return 2;
}
