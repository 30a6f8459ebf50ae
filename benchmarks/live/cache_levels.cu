// The kernels by which `aaco calibrate --device` measures L1, L2 and halves in pairs, over working sets in steps: what
// each reads and writes by construction, and how quickly. Counters of the same launches (ncu) say from which level.
//
//     cache_levels [once]
//
// One line of JSON for each launch that is counted, in order; with `once` each is launched only that once.
#define main gpu_roofs_main
#include "../../aaco_pipeline/resources/calibrate/gpu_roofs.hip"
#undef main

namespace {

bool once = false;

template <typename Launch>
void tell_case(const char* level, const char* kind, size_t set_bytes, double bytes_read, double bytes_written,
               double operations, Launch launch) {
  launch();
  CHECK(hipDeviceSynchronize());
  double ns = 0;
  if (!once) {
    static Clock clock;
    ns = clock.launch_ns(launch, 1);
    for (int n = 0; n < 4; ++n) ns = std::min(ns, clock.launch_ns(launch, 5));
  }
  std::printf("{\"level\": \"%s\", \"kind\": \"%s\", \"set_bytes\": %zu, \"bytes_read\": %.0f, \"bytes_written\": %.0f, "
              "\"operations\": %.0f, \"ns\": %.1f}\n",
              level, kind, set_bytes, bytes_read, bytes_written, operations, ns);
  std::fflush(stdout);
}

template <Stream kStream>
void tell_circle(float4* a, float4* b, float4* c, size_t set_bytes, unsigned blocks) {
  int chunks = int(double(set_bytes) / arrays_of(kStream) / (kChunk * sizeof(float4)));
  double moved = double(blocks) * 512 * kChunk * sizeof(float4);
  tell_case("l2", name_of(kStream), size_t(arrays_of(kStream) * chunks) * kChunk * sizeof(float4),
            moved * (kStream == Stream::kTriad ? 2 : 1), kStream == Stream::kRead ? 0 : moved, 0,
            [=] { circle<kStream><<<blocks, kBlock>>>(a, b, c, 0.5f, chunks, 512); });
}

}  // namespace

int main(int count, char** arguments) {
  result = stderr;
  once = count > 1 && std::strcmp(arguments[1], "once") == 0;
  hipDeviceProp_t about;
  CHECK(hipGetDeviceProperties(&about, 0));
  unsigned blocks = unsigned(about.multiProcessorCount) * 4;
  size_t each = size_t{256} << 20;
  float4 *a = nullptr, *b = nullptr, *c = nullptr;
  for (float4** place : {&a, &b, &c}) {
    CHECK(hipMalloc(reinterpret_cast<void**>(place), each));
    scatter_numbers<<<1024, 256>>>(*place, each / sizeof(float), Format::kFp32, 0);
  }
  // 304 float4s are read in each of (mask + 1) / stride places.
  for (int windows : {kWindows, 4096, 65536}) {
    int stride = windows == kWindows ? kWindowStep : 320;
    size_t set_bytes = (size_t(windows) + (windows == kWindows ? 304 - kWindowStep : 304)) * sizeof(float4);
    tell_case("vl1d", "read", set_bytes, double(blocks) * kBlock * kSteps * 512 * sizeof(float4), 0, 0,
              [=] { first_level<<<blocks, kBlock>>>(a, c, windows - 1, stride, 512); });
  }
  size_t l2 = size_t(about.l2CacheSize);
  for (size_t set_bytes : {l2 / 32, l2 / 8, l2 / 4, l2 * 3 / 8, l2 / 2, l2 * 3 / 4, l2, l2 * 4}) {
    tell_circle<Stream::kRead>(a, b, c, set_bytes, blocks);
  }
  for (size_t set_bytes : {l2 / 4, l2 / 2, l2 * 4}) {
    tell_circle<Stream::kCopy>(a, b, c, set_bytes, blocks);
    tell_circle<Stream::kTriad>(a, b, c, set_bytes, blocks);
  }
  blocks *= 4;
  tell_case("vector_packed", "fp16", 0, 0, 0, 4.0 * blocks * kBlock * kChains * kSteps * 512,
            [=] { multiply_adds<__half2, true><<<blocks, kBlock>>>(c, 0.999f, 0.001f, 512); });
  return 0;
}
