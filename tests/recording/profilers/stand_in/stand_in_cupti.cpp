// A libcupti without a GPU: it hands out records with known values through the same callbacks. As documented, it gives
// a buffer back when it is full or when it is flushed, and counts what found no buffer.
#include "declarations.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <vector>

namespace {

std::mutex lock;
CUpti_BuffersCallbackRequestFunc request;
CUpti_BuffersCallbackCompleteFunc complete;
uint64_t (*clock_of_client)();
uint8_t* buffer;
size_t size, used, lost;
std::atomic<int> flushes{0};
bool is_taken;         // by another subscriber
bool keeps_buffers;    // full buffers are not given back, as while their kernels run
std::vector<std::pair<uint8_t*, size_t>> kept;
uint32_t correlation;

uint64_t now() {
  if (clock_of_client) return clock_of_client();
  timespec time{};
  clock_gettime(CLOCK_REALTIME, &time);
  return time.tv_sec * 1000000000ull + time.tv_nsec;
}

void give_back() {
  if (!buffer) return;
  if (keeps_buffers) kept.emplace_back(buffer, used);
  else complete(nullptr, 0, buffer, size, used);
  buffer = nullptr;
}

template <class Record>
void put(const Record& record) {
  static_assert(sizeof(Record) % 8 == 0, "records are 8 bytes aligned");
  if (!request) return;  // nobody listens
  if (buffer && used + sizeof record > size) give_back();
  if (!buffer) {
    size_t most = 0;
    used = size = 0;
    request(&buffer, &size, &most);
  }
  if (!buffer) {
    ++lost;
    return;
  }
  memcpy(buffer + used, &record, sizeof record);
  used += sizeof record;
}

size_t size_of(CUpti_ActivityKind kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: return sizeof(CUpti_ActivityKernel9);
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER: return sizeof(CUpti_ActivityAPI);
    case CUPTI_ACTIVITY_KIND_MEMCPY: return sizeof(CUpti_ActivityMemcpy5);
    case CUPTI_ACTIVITY_KIND_MEMCPY2: return sizeof(CUpti_ActivityMemcpyPtoP4);
    case CUPTI_ACTIVITY_KIND_MEMSET: return sizeof(CUpti_ActivityMemset4);
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION: return sizeof(CUpti_ActivitySynchronization) + 16;
    case CUPTI_ACTIVITY_KIND_CUDA_EVENT: return sizeof(CUpti_ActivityCudaEvent) + 32;
    case CUPTI_ACTIVITY_KIND_MEMORY2: return sizeof(CUpti_ActivityMemory3);
    case CUPTI_ACTIVITY_KIND_MARKER: return sizeof(CUpti_ActivityMarker2);
    case CUPTI_ACTIVITY_KIND_OVERHEAD: return sizeof(CUpti_ActivityOverhead);
    case CUPTI_ACTIVITY_KIND_DEVICE: return sizeof(CUpti_ActivityDevice4);
    case CUPTI_ACTIVITY_KIND_CONTEXT: return sizeof(CUpti_ActivityContext);
    default: return 0;
  }
}

template <class Record>
struct Longer : Record { uint64_t more[sizeof(Record) == 40 ? 2 : 4]; };

constexpr const char* kRuntime[] = {nullptr, "cudaDriverGetVersion_v3020", nullptr, "cudaLaunchKernel_v7000",
                                    "cudaGetLastError_v3020", "cudaMemcpyAsync_v3020"};
constexpr const char* kDriver[] = {nullptr, "cuInit", "cuLaunchKernel", "cuCtxSynchronize"};

}  // namespace

extern "C" {

CUptiResult cuptiGetVersion(uint32_t* version) { return *version = CUPTI_API_VERSION, CUPTI_SUCCESS; }
CUptiResult cuptiGetTimestamp(uint64_t* time) { return *time = now(), CUPTI_SUCCESS; }
CUptiResult cuptiGetResultString(CUptiResult, const char** text) { return *text = "STAND_IN_ERROR", CUPTI_SUCCESS; }
CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain domain, uint32_t number, const char** name) {
  const bool is_runtime = domain == CUPTI_CB_DOMAIN_RUNTIME_API;
  const uint32_t count = is_runtime ? sizeof kRuntime / sizeof *kRuntime : sizeof kDriver / sizeof *kDriver;
  *name = number < count ? (is_runtime ? kRuntime : kDriver)[number] : nullptr;
  return *name ? CUPTI_SUCCESS : CUPTI_ERROR_MAX_LIMIT_REACHED;
}
CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc r, CUpti_BuffersCallbackCompleteFunc c) {
  return request = r, complete = c, CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
  return kind == CUPTI_ACTIVITY_KIND_OVERHEAD ? CUPTI_ERROR_MAX_LIMIT_REACHED : CUPTI_SUCCESS;
}
CUptiResult cuptiActivityFlushAll(uint32_t forced) {
  const std::lock_guard<std::mutex> held(lock);
  give_back();
  for (const auto& one : kept)
    if (forced) complete(nullptr, 0, one.first, one.second, one.second);
  if (forced) kept.clear();
  ++flushes;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNextRecord(uint8_t* from, size_t valid, CUpti_Activity** record) {
  uint8_t* next = *record ? reinterpret_cast<uint8_t*>(*record) + size_of((*record)->kind) : from;
  if (next >= from + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *record = reinterpret_cast<CUpti_Activity*>(next);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t* count) {
  *count = lost;
  lost = 0;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiSetThreadIdType(CUpti_ActivityThreadIdType) { return CUPTI_SUCCESS; }
CUptiResult cuptiSubscribe(CUpti_SubscriberHandle*, CUpti_CallbackFunc, void*) {
  return is_taken ? CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED : CUPTI_SUCCESS;
}
CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle) { return CUPTI_SUCCESS; }
CUptiResult cuptiActivityRegisterTimestampCallback(uint64_t (*clock)()) {
  return clock_of_client = clock, CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnableRuntimeApi(CUpti_CallbackId, uint8_t) { return CUPTI_SUCCESS; }
CUptiResult cuptiActivityEnableDriverApi(CUpti_CallbackId, uint8_t) { return CUPTI_SUCCESS; }
int InitializeInjectionNvtx2(void* table) { return table ? 1 : 0; }

// What the test's program calls.

int stand_in_flushes() { return flushes; }
void stand_in_keep(int keeps) { keeps_buffers = keeps; }
void stand_in_take_over(int with_clock) {
  is_taken = true;
  if (with_clock) clock_of_client = [] { return uint64_t{5}; };
}
// A launch, its call, and a call that nobody asked for.
void stand_in_launch(const char* name) {
  const std::lock_guard<std::mutex> held(lock);
  const uint64_t time = now();
  CUpti_ActivityAPI call{};
  call.kind = CUPTI_ACTIVITY_KIND_RUNTIME;
  call.cbid = 3;
  call.start = time;
  call.end = time + 4000;
  call.processId = static_cast<uint32_t>(getpid());
  call.threadId = 77;
  call.correlationId = ++correlation;
  put(call);
  call.cbid = 4;
  put(call);
  CUpti_ActivityKernel9 kernel{};
  kernel.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
  kernel.registersPerThread = 40;
  kernel.start = time + 5000;
  kernel.end = time + 7500;
  kernel.contextId = 1;
  kernel.streamId = 7;
  kernel.gridX = 12, kernel.gridY = 2, kernel.gridZ = 1;
  kernel.blockX = 128, kernel.blockY = 1, kernel.blockZ = 1;
  kernel.staticSharedMemory = 1024;
  kernel.dynamicSharedMemory = correlation % 2 ? 512 : 256;  // up and down by turns
  kernel.localMemoryPerThread = 16;
  kernel.correlationId = correlation;
  kernel.name = name;
  kernel.graphNodeId = 9;
  kernel.graphId = 3;
  put(kernel);
}
// One record of every other kind.
void stand_in_others() {
  const std::lock_guard<std::mutex> held(lock);
  CUpti_ActivityDevice4 device{};
  device.kind = CUPTI_ACTIVITY_KIND_DEVICE;
  device.globalMemoryBandwidth = 4800000000, device.globalMemorySize = 150000000000;
  device.l2CacheSize = 62914560, device.numThreadsPerWarp = 32, device.coreClockRate = 1980000;
  device.numMultiprocessors = 132, device.maxWarpsPerMultiprocessor = 64;
  device.maxSharedMemoryPerMultiprocessor = 233472, device.maxRegistersPerMultiprocessor = 65536;
  device.maxThreadsPerBlock = 1024, device.computeCapabilityMajor = 9, device.computeCapabilityMinor = 0;
  device.id = 0, device.uuid[0] = 0xAB, device.uuid[15] = 0xCD, device.name = "Stand-in GPU";
  put(device);
  put(CUpti_ActivityContext{CUPTI_ACTIVITY_KIND_CONTEXT, 1, 0, 0});
  CUpti_ActivityMemcpy5 copy{};
  copy.kind = CUPTI_ACTIVITY_KIND_MEMCPY, copy.copyKind = 1, copy.srcKind = 2, copy.dstKind = 3, copy.flags = 1;
  copy.bytes = 4096, copy.start = 100, copy.end = 200, copy.contextId = 1, copy.streamId = 7, copy.correlationId = 501;
  put(copy);
  CUpti_ActivityMemcpyPtoP4 peer{};
  peer.kind = CUPTI_ACTIVITY_KIND_MEMCPY2, peer.copyKind = 10, peer.bytes = 8192, peer.start = 300, peer.end = 400;
  peer.contextId = 1, peer.streamId = 7, peer.srcDeviceId = 0, peer.dstDeviceId = 1, peer.correlationId = 502;
  put(peer);
  CUpti_ActivityMemset4 set{};
  set.kind = CUPTI_ACTIVITY_KIND_MEMSET, set.value = 7, set.bytes = 64, set.start = 500, set.end = 600;
  set.contextId = 1, set.streamId = 7, set.correlationId = 503, set.memoryKind = 3;
  put(set);
  Longer<CUpti_ActivityCudaEvent> event{};
  event.kind = CUPTI_ACTIVITY_KIND_CUDA_EVENT, event.correlationId = 504, event.contextId = 1, event.streamId = 7;
  event.eventId = 6, event.more[3] = 44;
  put(event);
  Longer<CUpti_ActivitySynchronization> wait{};
  wait.kind = CUPTI_ACTIVITY_KIND_SYNCHRONIZATION, wait.type = 2, wait.start = 700, wait.end = 800;
  wait.correlationId = 505, wait.contextId = 1, wait.streamId = 8, wait.cudaEventId = 6, wait.more[0] = 44;
  put(wait);
  CUpti_ActivityMemory3 memory{};
  memory.kind = CUPTI_ACTIVITY_KIND_MEMORY2, memory.memoryOperationType = 1, memory.memoryKind = 3;
  memory.correlationId = 506, memory.address = 0x7000, memory.bytes = 1 << 20, memory.timestamp = 900;
  memory.processId = static_cast<uint32_t>(getpid()), memory.contextId = 1;
  put(memory);
  CUpti_ActivityMarker2 marker{};
  marker.kind = CUPTI_ACTIVITY_KIND_MARKER, marker.objectId.pt.threadId = 77, marker.id = 1;
  marker.flags = CUPTI_ACTIVITY_FLAG_MARKER_START, marker.timestamp = 1000, marker.name = "step 1";
  marker.domain = "model";
  put(marker);
  marker.flags = CUPTI_ACTIVITY_FLAG_MARKER_END, marker.timestamp = 1100, marker.name = nullptr;
  put(marker);
  marker.flags = CUPTI_ACTIVITY_FLAG_MARKER_INSTANTANEOUS, marker.id = 2, marker.timestamp = 1200, marker.name = "now";
  marker.domain = nullptr;
  put(marker);
  CUpti_ActivityOverhead overhead{};
  overhead.kind = CUPTI_ACTIVITY_KIND_OVERHEAD, overhead.overheadKind = 1 << 16, overhead.objectKind = 2;
  overhead.objectId.pt.threadId = 77, overhead.start = 1300, overhead.end = 1400;
  put(overhead);
}

}  // extern "C"
