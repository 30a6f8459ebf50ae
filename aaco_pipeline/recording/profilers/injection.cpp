// What a CUDA program does on its GPUs, written beside it as it runs: the library that the driver loads into the
// program (CUDA_INJECTION64_PATH) and NVTX, too (NVTX_INJECTION64_PATH).
//
// It asks CUPTI's activity API for kernels, copies, fills, waits, allocations, ranges and chosen calls, and appends
// them as binary chunks to $AACO_CUPTI_FOLDER/<pid>-<start ticks>.cupti. `aaco_pipeline/formats/cupti` reads them; the layouts
// below and its numpy types state the same. It owes the program that it runs in:
// - it never prints, never throws, never changes what the program sees of a signal or an exit;
// - it takes no more memory than kPoolBuffers buffers and some staging: what does not fit is dropped and counted;
// - it keeps out of forked children, and of CUPTI once another tool in the program has taken it over.
// A thread of its own flushes every kFlushMs: CUPTI's own period returns only full buffers, which lets a kill take a
// whole small program with it.
#include <cuda.h>
#include <cupti_activity.h>
#include <cupti_callbacks.h>
#include <cupti_result.h>
#include <cupti_version.h>

#include <cxxabi.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

constexpr size_t kBufferBytes = 1 << 20;       // some 4,000 launches with their calls
constexpr size_t kPoolBuffers = 128;           // half a second of the fastest launches
constexpr size_t kLongestName = 64 << 10;
constexpr size_t kNamesBytes = 16 << 20;       // of the texts that are remembered; beyond, all are forgotten at once
constexpr long kFlushMs = 50;
constexpr long kClocksMs = 1000;
constexpr long kPatienceMs = 400;              // that SIGTERM waits for the last flush

// ---- the stream -----------------------------------------------------------------------------------------------

enum Kind : uint32_t {
  kNames = 1, kKernel, kCall, kCopy, kSet, kWait, kMemory, kMarker, kOverhead, kDevice, kDropped, kCallNames, kClocks,
  kEnd, kEnabled, kSymbols, kEvent, kContext,
};
enum Reason : uint32_t { kAtExit = 1, kSignal = 2 };
constexpr uint32_t kVersion = 2;
constexpr uint32_t kPacked = 0x100;            // added to a kind: its records are columns of steps, see `pack`
constexpr size_t kPackedFrom = 64;             // records of a chunk; fewer are written as they are

struct FileHeader {
  char magic[8];
  uint32_t version, pid, cupti_version, driver_version;
  int64_t monotonic_ns, realtime_ns, cupti_ns;
  uint64_t reserved[2];
};
struct ChunkHeader { uint32_t kind, record_bytes, count, payload_bytes; };
struct Kernel {
  int64_t start, end, queued, submitted;
  uint32_t device, context, stream, correlation, name, grid[3], block[3], registers, static_shared, dynamic_shared;
  uint64_t graph_node;
  uint32_t graph, local_memory_per_thread;
};
struct Call { int64_t start, end; uint32_t thread, correlation, cbid, domain; };
struct Copy {
  int64_t start, end;
  uint64_t bytes;
  uint32_t device, context, stream, correlation;
  uint8_t copy_kind, source_kind, destination_kind, flags;
  uint32_t graph;
  uint64_t graph_node;
  uint32_t source_device, destination_device;
};
struct Set {
  int64_t start, end;
  uint64_t bytes;
  uint32_t device, context, stream, correlation, value, memory_kind;
};
struct Wait {
  int64_t start, end;
  uint32_t type, context, stream, correlation, event, pad;
  uint64_t event_sync;  // 0: this CUPTI does not tell which recording of the event was waited for
};
struct Memory {
  int64_t time;
  uint64_t address, bytes;
  uint32_t operation, memory_kind, device, context, stream, correlation, process, pad[3];
};
struct Marker { int64_t time; uint64_t range; uint32_t kind, thread, name, domain, pad[2]; };
struct Overhead { int64_t start, end; uint32_t overhead_kind, object_kind, thread, pad; };
struct Device {
  uint32_t id, major, minor, multiprocessors;
  uint64_t memory_bytes, memory_kb_per_s;
  uint32_t clock_khz, l2_bytes, threads_per_multiprocessor, threads_per_warp;
  uint32_t shared_per_multiprocessor, registers_per_multiprocessor, threads_per_block, pad;
  char name[64];
  uint8_t uuid[16];
  uint8_t reserved[16];
};
struct Dropped { int64_t time; uint64_t count; };
struct Clocks { int64_t monotonic, realtime, cupti, uncertainty; };
struct End { int64_t time; uint32_t reason, pad; };
struct Event { uint32_t event, context, stream, correlation; uint64_t event_sync; };
struct Context { uint32_t context, device; };

static_assert(sizeof(FileHeader) == 64 && sizeof(ChunkHeader) == 16, "headers");
static_assert(sizeof(Kernel) == 104 && sizeof(Call) == 32 && sizeof(Copy) == 64 && sizeof(Set) == 48, "activities");
static_assert(sizeof(Wait) == 48 && sizeof(Memory) == 64 && sizeof(Marker) == 40 && sizeof(Overhead) == 32, "host");
static_assert(sizeof(Device) == 160 && sizeof(Dropped) == 16 && sizeof(Clocks) == 32 && sizeof(End) == 16, "facts");
static_assert(sizeof(Event) == 24 && sizeof(Context) == 8, "events");

// ---- CUPTI, as the program has it loaded ------------------------------------------------------------------------

// The oldest layout of each record that holds what is written here: CUPTI appends to its records, so that it fits every
// library from CUDA 12 on.
using KernelRecord = CUpti_ActivityKernel9;
using CopyRecord = CUpti_ActivityMemcpy5;
using PeerCopyRecord = CUpti_ActivityMemcpyPtoP4;
using SetRecord = CUpti_ActivityMemset4;
using MemoryRecord = CUpti_ActivityMemory3;
using DeviceRecord = CUpti_ActivityDevice4;
// Since CUDA 12.8 (API 26) waits and events name the one recording that they are of: the 64 bits after these.
constexpr uint32_t kNamesRecordings = 26;

using Flag = CUptiResult (*)(uint8_t);
using CallFlag = CUptiResult (*)(CUpti_CallbackId, uint8_t);
struct Cupti {
  void* library = nullptr;
  decltype(&cuptiGetVersion) version = nullptr;
  decltype(&cuptiGetTimestamp) timestamp = nullptr;
  decltype(&cuptiGetResultString) result_string = nullptr;
  decltype(&cuptiGetCallbackName) callback_name = nullptr;
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityFlushAll) flush = nullptr;
  decltype(&cuptiActivityGetNextRecord) next = nullptr;
  decltype(&cuptiActivityGetNumDroppedRecords) dropped = nullptr;
  decltype(&cuptiSetThreadIdType) thread_id_type = nullptr;
  decltype(&cuptiSubscribe) subscribe = nullptr;
  decltype(&cuptiUnsubscribe) unsubscribe = nullptr;
  // Not in every CUPTI 12:
  CUptiResult (*register_timestamp)(uint64_t (*)()) = nullptr;
  CallFlag enable_runtime = nullptr, enable_driver = nullptr;
  Flag all_waits = nullptr;

  // Why there is none, or an empty text. One that the program has loaded is taken before any other.
  std::string load() {
    const int major = CUPTI_API_VERSION >= 10000 ? CUPTI_API_VERSION / 10000 : 12;
    const std::string soname = "libcupti.so." + std::to_string(major);
    library = dlopen(soname.c_str(), RTLD_NOW | RTLD_NOLOAD);
    const char* chosen = getenv("AACO_CUPTI_LIBRARY");
    if (!library && chosen && *chosen) library = dlopen(chosen, RTLD_NOW | RTLD_LOCAL);
    if (!library) library = dlopen(soname.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      const char* why = dlerror();
      return why ? why : soname + " cannot be loaded";
    }
    bool whole = true;
    const auto symbol = [&](auto& function, const char* name, bool needed = true) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
      whole = whole && (function || !needed);
    };
    symbol(version, "cuptiGetVersion");
    symbol(timestamp, "cuptiGetTimestamp");
    symbol(result_string, "cuptiGetResultString");
    symbol(callback_name, "cuptiGetCallbackName");
    symbol(register_callbacks, "cuptiActivityRegisterCallbacks");
    symbol(enable, "cuptiActivityEnable");
    symbol(flush, "cuptiActivityFlushAll");
    symbol(next, "cuptiActivityGetNextRecord");
    symbol(dropped, "cuptiActivityGetNumDroppedRecords");
    symbol(thread_id_type, "cuptiSetThreadIdType");
    symbol(subscribe, "cuptiSubscribe", false);
    symbol(unsubscribe, "cuptiUnsubscribe", false);
    symbol(register_timestamp, "cuptiActivityRegisterTimestampCallback", false);
    symbol(enable_runtime, "cuptiActivityEnableRuntimeApi", false);
    symbol(enable_driver, "cuptiActivityEnableDriverApi", false);
    symbol(all_waits, "cuptiActivityEnableAllSyncRecords", false);
    return whole ? "" : soname + " lacks functions of the activity API";
  }

  std::string text(CUptiResult result) const {
    const char* words = nullptr;
    if (result_string) result_string(result, &words);
    return words ? words : "error " + std::to_string(static_cast<int>(result));
  }
};
Cupti cupti;

struct NamedKind { CUpti_ActivityKind kind; const char* name; };
constexpr NamedKind kKinds[] = {
    {CUPTI_ACTIVITY_KIND_DEVICE, "DEVICE"},
    {CUPTI_ACTIVITY_KIND_CONTEXT, "CONTEXT"},
    {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, "CONCURRENT_KERNEL"},
    {CUPTI_ACTIVITY_KIND_MEMCPY, "MEMCPY"},
    {CUPTI_ACTIVITY_KIND_MEMCPY2, "MEMCPY2"},
    {CUPTI_ACTIVITY_KIND_MEMSET, "MEMSET"},
    {CUPTI_ACTIVITY_KIND_MEMORY2, "MEMORY2"},
    {CUPTI_ACTIVITY_KIND_SYNCHRONIZATION, "SYNCHRONIZATION"},
    {CUPTI_ACTIVITY_KIND_CUDA_EVENT, "CUDA_EVENT"},
    {CUPTI_ACTIVITY_KIND_MARKER, "MARKER"},
    {CUPTI_ACTIVITY_KIND_OVERHEAD, "OVERHEAD"},
};

// Launches, copies, sets, waits, allocations, graphs, streams and events: how their calls begin, after `cuda` or `cu`.
constexpr const char* kCalls[] = {
    "Launch", "GraphLaunch", "GraphInstantiate", "GraphUpload", "GraphExecUpdate", "Memcpy", "Memset", "MemPrefetch",
    "Malloc", "MemAlloc", "Free", "MemFree", "HostAlloc", "HostRegister", "HostUnregister", "MemHostAlloc",
    "MemHostRegister", "MemHostUnregister", "MemCreate", "MemRelease", "MemMap", "MemUnmap", "StreamCreate",
    "StreamDestroy", "StreamWait", "StreamBeginCapture", "StreamEndCapture", "EventCreate", "EventDestroy",
    "EventRecord", "StreamSynchronize", "EventSynchronize", "DeviceSynchronize", "CtxSynchronize", "ThreadSynchronize",
};

bool is_taken(const char* name) {
  if (strncmp(name, "cu", 2) != 0) return false;
  name += strncmp(name, "cuda", 4) == 0 ? 4 : 2;
  for (const char* begin : kCalls)
    if (strncmp(name, begin, strlen(begin)) == 0) return true;
  return false;
}

int64_t clock_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

std::atomic<bool> clock_was_read{false};
uint64_t monotonic_for_cupti() {
  clock_was_read.store(true, std::memory_order_relaxed);
  return static_cast<uint64_t>(clock_ns(CLOCK_MONOTONIC));
}

// Which of a job's ranks this process is, by what starters of jobs tell it; an empty text where none does.
std::string job_rank() {
  for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    const char* value = getenv(name);
    const size_t digits = value ? strspn(value, "0123456789") : 0;
    if (digits && digits < 9 && !value[digits]) return value;
  }
  return "";
}

// ---- buffers for CUPTI ------------------------------------------------------------------------------------------

class Pool {
 public:
  uint8_t* take() {
    const std::lock_guard<std::mutex> held(lock_);
    if (!free_.empty()) {
      uint8_t* buffer = free_.back();
      free_.pop_back();
      return buffer;
    }
    if (made_ == kPoolBuffers) return nullptr;
    void* buffer = mmap(nullptr, kBufferBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buffer == MAP_FAILED) return nullptr;
    ++made_;
    return static_cast<uint8_t*>(buffer);
  }
  void give(uint8_t* buffer) {
    const std::lock_guard<std::mutex> held(lock_);
    free_.push_back(buffer);  // the one used last is taken next: a quiet program touches few of them
  }
  void reserve() { free_.reserve(kPoolBuffers); }

 private:
  std::mutex lock_;
  std::vector<uint8_t*> free_;
  size_t made_ = 0;
};

// ---- the file ---------------------------------------------------------------------------------------------------

class File {
 public:
  bool create(const std::string& path) {
    path_ = path;
    return open_again(O_CREAT | O_EXCL);
  }
  // All of it or nothing: what a full disk cuts is taken back, so that later chunks still follow a whole one.
  bool append(const std::string& bytes) {
    struct stat now{};
    // A program that closes every descriptor may have another file behind ours by now.
    const bool is_ours = fstat(descriptor_, &now) == 0 && now.st_ino == inode_ && now.st_dev == device_;
    if (!is_ours) descriptor_ = -1;
    if (!is_ours && !open_again(0)) return false;
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t wrote = write(descriptor_, bytes.data() + done, bytes.size() - done);
      if (wrote > 0) {
        done += static_cast<size_t>(wrote);
      } else if (wrote == 0 || errno != EINTR) {
        forget_limit_signal();
        if (done && ftruncate(descriptor_, size_) != 0) size_ += static_cast<off_t>(done);
        return false;
      }
    }
    size_ += static_cast<off_t>(bytes.size());
    return true;
  }

 private:
  // A write beyond the process's limit on files leaves a signal that would end the program.
  static void forget_limit_signal() {
    sigset_t limit;
    sigemptyset(&limit);
    sigaddset(&limit, SIGXFSZ);
    const timespec none{};
    sigtimedwait(&limit, nullptr, &none);
  }
  bool open_again(int how) {
    const int opened = open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | how, 0644);
    if (opened < 0) return false;
    struct stat now{};
    if (fstat(opened, &now) != 0 || (inode_ && now.st_ino != inode_)) {
      close(opened);
      return false;
    }
    descriptor_ = opened;
    inode_ = now.st_ino;
    device_ = now.st_dev;
    return true;
  }

  std::string path_;
  int descriptor_ = -1;
  off_t size_ = 0;
  ino_t inode_ = 0;
  dev_t device_ = 0;
};

// ---- texts ------------------------------------------------------------------------------------------------------

void add_text(std::string& payload, uint32_t id, const std::string& text) {
  const uint32_t bytes = static_cast<uint32_t>(text.size());
  payload.append(reinterpret_cast<const char*>(&id), 4).append(reinterpret_cast<const char*>(&bytes), 4).append(text);
  payload.append((4 - bytes % 4) % 4, '\0');
}

void add_chunk(std::string& out, Kind kind, size_t record_bytes, size_t count, const void* payload, size_t bytes) {
  if (!count) return;
  const ChunkHeader header{kind, static_cast<uint32_t>(record_bytes), static_cast<uint32_t>(count),
                           static_cast<uint32_t>(bytes)};
  out.append(reinterpret_cast<const char*>(&header), sizeof header).append(static_cast<const char*>(payload), bytes);
}

// Records of `words` 32-bit words as columns: a byte for each word that says how many bytes its steps take (0, 1, 2, 4),
// filled up to a multiple of four; the first record; then, word by word, each record's step from the one before. A step
// is the difference modulo 2^32 with its sign in the lowest bit. What stays as it was, as most of a kernel's launch does,
// takes no bytes, and a time's step takes two.
void pack(std::string& out, const char* rows, size_t words, size_t count) {
  const size_t record_bytes = words * 4;
  const auto step = [=](size_t row, size_t word) {
    uint32_t before, now;
    memcpy(&before, rows + (row - 1) * record_bytes + word * 4, 4);
    memcpy(&now, rows + row * record_bytes + word * 4, 4);
    const uint32_t difference = now - before;
    return difference << 1 ^ (0u - (difference >> 31));
  };
  const size_t widths = out.size();
  out.append((words + 3) / 4 * 4, '\0').append(rows, record_bytes);
  for (size_t word = 0; word < words; ++word) {
    uint32_t bits = 0;
    for (size_t row = 1; row < count; ++row) bits |= step(row, word);
    const size_t width = bits == 0 ? 0 : bits < 1u << 8 ? 1 : bits < 1u << 16 ? 2 : 4;
    if (!width) continue;
    out[widths + word] = static_cast<char>(width);
    const size_t begin = out.size();
    out.resize(begin + width * (count - 1));
    char* to = &out[begin];
    for (size_t row = 1; row < count; ++row, to += width) {
      const uint32_t one = step(row, word);
      memcpy(to, &one, width);  // little endian: the lowest bytes
    }
  }
}

template <class Row>
void add_rows(std::string& out, Kind kind, std::vector<Row>& rows) {
  static_assert(sizeof(Row) % 4 == 0, "records are words");
  if (rows.size() < kPackedFrom) {
    add_chunk(out, kind, sizeof(Row), rows.size(), rows.data(), rows.size() * sizeof(Row));
  } else {
    const size_t begin = out.size();
    out.append(sizeof(ChunkHeader), '\0');
    pack(out, reinterpret_cast<const char*>(rows.data()), sizeof(Row) / 4, rows.size());
    const ChunkHeader header{kind | kPacked, sizeof(Row), static_cast<uint32_t>(rows.size()),
                             static_cast<uint32_t>(out.size() - begin - sizeof(ChunkHeader))};
    memcpy(&out[begin], &header, sizeof header);
  }
  rows.clear();
}

// Numbers for texts, each written once. Their pointers are not trusted: memory of a range's text is used again.
class Names {
 public:
  uint32_t number(const char* text) {
    if (!text) return 0;
    Seen& seen = seen_[(reinterpret_cast<uintptr_t>(text) >> 3) % kSeen];
    if (seen.pointer == text && seen.text && seen.text->compare(0, std::string::npos, text) == 0) return seen.number;
    const std::string key(text, strnlen(text, kLongestName));
    auto found = numbers_.find(key);
    if (found == numbers_.end()) {
      if (bytes_ + key.size() > kNamesBytes) forget();
      bytes_ += key.size() + sizeof(std::string) + 64;
      found = numbers_.emplace(key, ++last_).first;
      state(found->second, key);
    }
    seen = {text, &found->first, found->second};
    return found->second;
  }
  void flush(std::string& out) {
    add_chunk(out, kNames, 0, new_names_, names_.data(), names_.size());
    add_chunk(out, kSymbols, 0, new_symbols_, symbols_.data(), symbols_.size());
    names_.clear();
    symbols_.clear();
    new_names_ = new_symbols_ = 0;
  }
  // What was not written is stated again where it is next met.
  void forget() {
    numbers_.clear();
    memset(static_cast<void*>(seen_), 0, sizeof seen_);
    bytes_ = 0;
  }

 private:
  struct Seen { const char* pointer; const std::string* text; uint32_t number; };
  static constexpr size_t kSeen = 4096;

  void state(uint32_t number, const std::string& text) {
    int status = -1;
    char* plain = text.compare(0, 2, "_Z") == 0 ? abi::__cxa_demangle(text.c_str(), nullptr, nullptr, &status) : nullptr;
    if (plain && status == 0) {
      add_text(symbols_, number, text);
      ++new_symbols_;
      add_text(names_, number, std::string(plain, strnlen(plain, kLongestName)));
    } else {
      add_text(names_, number, text);
    }
    ++new_names_;
    free(plain);
  }

  std::unordered_map<std::string, uint32_t> numbers_;
  Seen seen_[kSeen] = {};
  std::string names_, symbols_;
  size_t new_names_ = 0, new_symbols_ = 0, bytes_ = 0;
  uint32_t last_ = 0;
};

// ---- the recorder -----------------------------------------------------------------------------------------------

// While a thread writes, no handler of the program may leave it by a jump or end the process with the lock held.
class SignalsHeld {
 public:
  SignalsHeld() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsHeld() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

class Recorder {
 public:
  void start();
  void drain(CUcontext context, uint32_t stream, uint8_t* buffer, size_t valid);
  void finish(Reason reason);
  void watch();
  bool watches() const { return owner.load() == getpid() && !stopped_; }

  Pool pool;
  std::atomic<pid_t> owner{0};     // 0 until it runs; a forked child has another number
  std::atomic<int> asked{0};       // futex: a signal wants all that is left to be written
  std::atomic<int> answered{0};

 private:
  void take(const CUpti_Activity* record);
  void write_out();
  void enable_all();
  size_t enable_calls(CUpti_CallbackDomain domain, const char* what, CallFlag by_id, CUpti_ActivityKind whole,
                      std::string& names);
  void try_to(const std::string& what, CUptiResult result);
  void note(const std::string& line) { notes_ += line + "\n"; }
  void read_clocks();
  void look_for_others();
  void note_other_cupti(const std::string& which);

  std::mutex lock_;
  File file_;
  Names names_;
  std::vector<Kernel> kernels_;
  std::vector<Call> calls_;
  std::vector<Copy> copies_;
  std::vector<Set> sets_;
  std::vector<Wait> waits_;
  std::vector<Memory> memory_;
  std::vector<Marker> markers_;
  std::vector<Overhead> overheads_;
  std::vector<Device> devices_;
  std::vector<Dropped> dropped_;
  std::vector<Clocks> clocks_;
  std::vector<End> ends_;
  std::vector<Event> events_;
  std::vector<Context> contexts_;
  std::string notes_, out_;
  std::vector<bool> taken_[2];     // by runtime and driver, then by call: all that counts where a whole kind is enabled
  uint64_t unwritten_ = 0, staged_ = 0;
  uint32_t cupti_version_ = 0;
  bool own_clock_ = false;
  std::atomic<bool> other_cupti_{false};
  std::atomic<bool> others_{false};
  std::atomic<bool> stopped_{false};
  std::timed_mutex flushing_;      // held by whoever calls CUPTI's flush: the thread stays out of CUPTI's own ending
};
// Never destroyed: CUPTI may complete buffers after the program's last destructor.
Recorder& recorder = *new Recorder;

void CUPTIAPI buffer_requested(uint8_t** buffer, size_t* size, size_t* most_records) {
  *buffer = recorder.pool.take();
  *size = *buffer ? kBufferBytes : 0;
  *most_records = 0;
}

void CUPTIAPI buffer_completed(CUcontext context, uint32_t stream, uint8_t* buffer, size_t, size_t valid) {
  if (!buffer) return;
  recorder.drain(context, stream, buffer, valid);
  recorder.pool.give(buffer);
}

void Recorder::drain(CUcontext context, uint32_t stream, uint8_t* buffer, size_t valid) {
  if (owner.load() != getpid()) return;
  const SignalsHeld no_signals;
  const std::lock_guard<std::mutex> held(lock_);
  try {
    CUpti_Activity* record = nullptr;
    while (valid && cupti.next(buffer, valid, &record) == CUPTI_SUCCESS) take(record);
    size_t lost = 0;
    if (cupti.dropped(context, stream, &lost) == CUPTI_SUCCESS && lost)
      dropped_.push_back({clock_ns(CLOCK_MONOTONIC), lost});
    write_out();
  } catch (...) {  // no memory left
    ++unwritten_;
  }
}

void Recorder::take(const CUpti_Activity* record) {
  const auto ns = [](uint64_t time) { return static_cast<int64_t>(time); };
  ++staged_;
  switch (static_cast<uint32_t>(record->kind)) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto& one = *reinterpret_cast<const KernelRecord*>(record);
      const auto count = [](int32_t number) { return static_cast<uint32_t>(number); };
      kernels_.push_back({ns(one.start), ns(one.end), ns(one.queued), ns(one.submitted), one.deviceId, one.contextId,
                          one.streamId, one.correlationId, names_.number(one.name),
                          {count(one.gridX), count(one.gridY), count(one.gridZ)},
                          {count(one.blockX), count(one.blockY), count(one.blockZ)}, one.registersPerThread,
                          count(one.staticSharedMemory), count(one.dynamicSharedMemory), one.graphNodeId, one.graphId,
                          one.localMemoryPerThread});
      break;
    }
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER: {
      const auto& one = *reinterpret_cast<const CUpti_ActivityAPI*>(record);
      const uint32_t domain = record->kind == CUPTI_ACTIVITY_KIND_RUNTIME ? 1 : 2;
      const auto& taken = taken_[domain - 1];
      if (one.cbid >= taken.size() || !taken[one.cbid]) break;
      calls_.push_back({ns(one.start), ns(one.end), one.threadId, one.correlationId, one.cbid, domain});
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto& one = *reinterpret_cast<const CopyRecord*>(record);
      copies_.push_back({ns(one.start), ns(one.end), one.bytes, one.deviceId, one.contextId, one.streamId,
                         one.correlationId, one.copyKind, one.srcKind, one.dstKind, one.flags, one.graphId,
                         one.graphNodeId, one.deviceId, one.deviceId});
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY2: {
      const auto& one = *reinterpret_cast<const PeerCopyRecord*>(record);
      copies_.push_back({ns(one.start), ns(one.end), one.bytes, one.deviceId, one.contextId, one.streamId,
                         one.correlationId, one.copyKind, one.srcKind, one.dstKind, one.flags, one.graphId,
                         one.graphNodeId, one.srcDeviceId, one.dstDeviceId});
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      const auto& one = *reinterpret_cast<const SetRecord*>(record);
      sets_.push_back({ns(one.start), ns(one.end), one.bytes, one.deviceId, one.contextId, one.streamId,
                       one.correlationId, one.value, one.memoryKind});
      break;
    }
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION: {
      const auto& one = *reinterpret_cast<const CUpti_ActivitySynchronization*>(record);
      Wait row{ns(one.start), ns(one.end), static_cast<uint32_t>(one.type), one.contextId, one.streamId,
               one.correlationId, one.cudaEventId, 0, 0};
      if (cupti_version_ >= kNamesRecordings) memcpy(&row.event_sync, &one + 1, sizeof row.event_sync);
      waits_.push_back(row);
      break;
    }
    case CUPTI_ACTIVITY_KIND_CUDA_EVENT: {
      const auto& one = *reinterpret_cast<const CUpti_ActivityCudaEvent*>(record);
      Event row{one.eventId, one.contextId, one.streamId, one.correlationId, 0};
      constexpr size_t kAt = 48;  // CUpti_ActivityCudaEvent2::cudaEventSyncId
      if (cupti_version_ >= kNamesRecordings)
        memcpy(&row.event_sync, reinterpret_cast<const char*>(record) + kAt, sizeof row.event_sync);
      events_.push_back(row);
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMORY2: {
      const auto& one = *reinterpret_cast<const MemoryRecord*>(record);
      memory_.push_back({ns(one.timestamp), one.address, one.bytes, static_cast<uint32_t>(one.memoryOperationType),
                         static_cast<uint32_t>(one.memoryKind), one.deviceId, one.contextId, one.streamId,
                         one.correlationId, one.processId, {}});
      break;
    }
    case CUPTI_ACTIVITY_KIND_MARKER: {
      const auto& one = *reinterpret_cast<const CUpti_ActivityMarker2*>(record);
      const uint32_t flags = static_cast<uint32_t>(one.flags);
      const uint32_t kind = flags & CUPTI_ACTIVITY_FLAG_MARKER_START ? 1
                            : flags & CUPTI_ACTIVITY_FLAG_MARKER_END ? 2
                            : flags & CUPTI_ACTIVITY_FLAG_MARKER_INSTANTANEOUS ? 3 : 0;
      if (kind)
        markers_.push_back({ns(one.timestamp), one.id, kind, one.objectId.pt.threadId, names_.number(one.name),
                            names_.number(one.domain), {}});
      break;
    }
    case CUPTI_ACTIVITY_KIND_OVERHEAD: {
      const auto& one = *reinterpret_cast<const CUpti_ActivityOverhead*>(record);
      overheads_.push_back({ns(one.start), ns(one.end), static_cast<uint32_t>(one.overheadKind),
                            static_cast<uint32_t>(one.objectKind), one.objectId.pt.threadId, 0});
      break;
    }
    case CUPTI_ACTIVITY_KIND_DEVICE: {
      const auto& one = *reinterpret_cast<const DeviceRecord*>(record);
      Device row{};
      row.id = one.id;
      row.major = one.computeCapabilityMajor;
      row.minor = one.computeCapabilityMinor;
      row.multiprocessors = one.numMultiprocessors;
      row.memory_bytes = one.globalMemorySize;
      row.memory_kb_per_s = one.globalMemoryBandwidth;
      row.clock_khz = one.coreClockRate;
      row.l2_bytes = one.l2CacheSize;
      row.threads_per_multiprocessor = one.maxWarpsPerMultiprocessor * one.numThreadsPerWarp;
      row.threads_per_warp = one.numThreadsPerWarp;
      row.shared_per_multiprocessor = one.maxSharedMemoryPerMultiprocessor;
      row.registers_per_multiprocessor = one.maxRegistersPerMultiprocessor;
      row.threads_per_block = one.maxThreadsPerBlock;
      if (one.name) strncpy(row.name, one.name, sizeof row.name - 1);
      memcpy(row.uuid, &one.uuid, sizeof row.uuid);
      devices_.push_back(row);
      break;
    }
    case CUPTI_ACTIVITY_KIND_CONTEXT: {
      const auto& one = *reinterpret_cast<const CUpti_ActivityContext*>(record);
      contexts_.push_back({one.contextId, one.deviceId});
      break;
    }
    default:
      break;
  }
}

void Recorder::write_out() {
  if (unwritten_) dropped_.push_back({clock_ns(CLOCK_MONOTONIC), unwritten_});
  out_.clear();
  names_.flush(out_);  // before the records that name them
  add_chunk(out_, kEnabled, 1, notes_.size(), notes_.data(), notes_.size());
  add_rows(out_, kDevice, devices_);
  add_rows(out_, kContext, contexts_);
  add_rows(out_, kKernel, kernels_);
  add_rows(out_, kCall, calls_);
  add_rows(out_, kCopy, copies_);
  add_rows(out_, kSet, sets_);
  add_rows(out_, kEvent, events_);
  add_rows(out_, kWait, waits_);
  add_rows(out_, kMemory, memory_);
  add_rows(out_, kMarker, markers_);
  add_rows(out_, kOverhead, overheads_);
  add_rows(out_, kDropped, dropped_);
  add_rows(out_, kClocks, clocks_);
  add_rows(out_, kEnd, ends_);
  const uint64_t records = std::exchange(staged_, 0);
  if (out_.empty()) return;
  if (file_.append(out_)) {
    notes_.clear();
    unwritten_ = 0;
  } else {
    unwritten_ += records;
    names_.forget();
  }
}

void Recorder::read_clocks() {
  Clocks row{};
  uint64_t time = 0;
  clock_was_read.store(false);
  const int64_t first = clock_ns(CLOCK_MONOTONIC);
  row.realtime = clock_ns(CLOCK_REALTIME);
  const CUptiResult result = cupti.timestamp(&time);
  const int64_t last = clock_ns(CLOCK_MONOTONIC);
  if (result != CUPTI_SUCCESS) return;
  row.monotonic = first + (last - first) / 2;
  row.cupti = static_cast<int64_t>(time);
  row.uncertainty = (last - first + 1) / 2;
  clocks_.push_back(row);
  // CUPTI reads our clock for its own; when it no longer does, somebody has given it another.
  if (own_clock_ && !others_ && !clock_was_read.load()) {
    others_ = true;
    note("other_profiler " + std::to_string(row.monotonic) + " another tool in the program gave CUPTI its own clock");
  }
}

// Asks for the one place of a subscriber and gives it back. Not while the program works: it might want it just then.
void Recorder::look_for_others() {
  if (others_ || !cupti.subscribe || !cupti.unsubscribe) return;
  CUpti_SubscriberHandle place{};
  const CUptiResult result = cupti.subscribe(&place, nullptr, nullptr);
  if (result == CUPTI_SUCCESS) {
    cupti.unsubscribe(place);
  } else if (result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED) {
    others_ = true;
    note("other_profiler " + std::to_string(clock_ns(CLOCK_MONOTONIC)) + " another tool in the program uses CUPTI");
  }
}

// A second CUPTI of another version, as a profiler in the program brings it: only one of both is given GPU events, and
// neither learns of the other. The kernel's list is read, not the loader's, whose lock the program may hold. It takes
// milliseconds in a large program: call it without the recorder's lock, for which launches may wait.
std::string other_cupti() {
  FILE* maps = fopen("/proc/self/maps", "re");
  if (!maps) return "";
  const auto inside = reinterpret_cast<uintptr_t>(cupti.version);
  std::string ours;
  std::vector<std::string> found;
  char* line = nullptr;
  size_t capacity = 0;
  for (ssize_t length; (length = getline(&line, &capacity, maps)) > 0;) {
    const char* path = strstr(line, "/libcupti.so");
    if (!path) continue;
    unsigned long begin = 0, end = 0;
    if (sscanf(line, "%lx-%lx", &begin, &end) != 2) continue;
    const std::string whole(strchr(line, '/'), line + length - 1);
    if (begin <= inside && inside < end) ours = whole;
    if (found.empty() || found.back() != whole) found.push_back(whole);
  }
  free(line);
  fclose(maps);
  for (const std::string& one : found)
    if (!ours.empty() && one != ours)
      return one.substr(one.rfind('/') + 1) + " beside " + ours.substr(ours.rfind('/') + 1);
  return "";
}

void Recorder::note_other_cupti(const std::string& which) {
  if (other_cupti_ || which.empty()) return;
  other_cupti_ = true;
  note("other_cupti " + std::to_string(clock_ns(CLOCK_MONOTONIC)) + " " + which);
}

void Recorder::try_to(const std::string& what, CUptiResult result) {
  note(result == CUPTI_SUCCESS ? what : "refused " + what + ": " + cupti.text(result));
}

size_t Recorder::enable_calls(CUpti_CallbackDomain domain, const char* what, CallFlag by_id, CUpti_ActivityKind whole,
                              std::string& names) {
  auto& taken = taken_[domain == CUPTI_CB_DOMAIN_RUNTIME_API ? 0 : 1];
  size_t enabled = 0;
  if (!by_id) try_to(std::string("kind ") + what, cupti.enable(whole));
  // The names end where CUPTI knows no more; gaps between them are small.
  for (uint32_t cbid = 1, unknown = 0; unknown < 64; ++cbid) {
    const char* name = nullptr;
    const bool known = cupti.callback_name(domain, cbid, &name) == CUPTI_SUCCESS && name;
    unknown = known ? 0 : unknown + 1;
    taken.resize(cbid + 1);
    if (!known || !is_taken(name)) continue;
    const CUptiResult result = by_id ? by_id(cbid, 1) : CUPTI_SUCCESS;
    try_to(std::string("call ") + name, result);
    if (result != CUPTI_SUCCESS) continue;
    taken[cbid] = true;
    add_text(names, (domain == CUPTI_CB_DOMAIN_RUNTIME_API ? 1u : 2u) << 16 | cbid, name);
    ++enabled;
  }
  return enabled;
}

void Recorder::enable_all() {
  utsname system{};
  if (uname(&system) == 0) note(std::string("host ") + system.nodename);
  if (const std::string number = job_rank(); !number.empty()) note("rank " + number);
  if (cupti.register_timestamp) {
    const CUptiResult result = cupti.register_timestamp(monotonic_for_cupti);
    own_clock_ = result == CUPTI_SUCCESS;
    try_to("clock monotonic", result);
  }
  try_to("thread_ids system", cupti.thread_id_type(CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM));
  if (cupti.all_waits) try_to("queries off", cupti.all_waits(0));
  try_to("buffers", cupti.register_callbacks(buffer_requested, buffer_completed));
  for (const auto& one : kKinds) try_to(std::string("kind ") + one.name, cupti.enable(one.kind));
  std::string names;
  size_t count = enable_calls(CUPTI_CB_DOMAIN_RUNTIME_API, "RUNTIME", cupti.enable_runtime, CUPTI_ACTIVITY_KIND_RUNTIME,
                              names);
  count += enable_calls(CUPTI_CB_DOMAIN_DRIVER_API, "DRIVER", cupti.enable_driver, CUPTI_ACTIVITY_KIND_DRIVER, names);
  std::string chunk;
  add_chunk(chunk, kCallNames, 0, count, names.data(), names.size());
  file_.append(chunk);
}

// ---- the ends of a program --------------------------------------------------------------------------------------

void futex(std::atomic<int>& word, int operation, int value, const timespec* most) {
  syscall(SYS_futex, reinterpret_cast<int*>(&word), operation | FUTEX_PRIVATE_FLAG, value, most, nullptr, 0);
}

void Recorder::finish(Reason reason) {
  if (owner.load() != getpid()) return;
  if (reason == kAtExit) stopped_.store(true);
  {
    const std::unique_lock<std::timed_mutex> alone(flushing_, std::chrono::milliseconds(kPatienceMs));
    if (!others_ && alone) cupti.flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  }
  const SignalsHeld no_signals;
  try {
    const std::string other = other_cupti_ ? "" : other_cupti();
    const std::lock_guard<std::mutex> held(lock_);
    if (reason == kAtExit) look_for_others();
    note_other_cupti(other);
    read_clocks();
    ends_.push_back({clock_ns(CLOCK_MONOTONIC), reason, 0});
    write_out();
  } catch (...) {
  }
}

// The thread: flushes, reads the clocks once a second, and answers a signal.
void Recorder::watch() {
  int64_t clocks_due = clock_ns(CLOCK_MONOTONIC) + kClocksMs * 1000000;
  for (;;) {
    const timespec period{0, kFlushMs * 1000000};
    const int seen = asked.load();
    if (seen == answered.load()) futex(asked, FUTEX_WAIT, seen, &period);
    if (const int now = asked.load(); now != answered.load()) {
      finish(kSignal);
      answered.store(now);
      continue;
    }
    {
      const std::lock_guard<std::timed_mutex> alone(flushing_);
      if (stopped_) return;
      if (!others_) cupti.flush(0);
    }
    if (clock_ns(CLOCK_MONOTONIC) < clocks_due) continue;
    clocks_due += kClocksMs * 1000000;
    try {
      const std::string other = other_cupti_ ? "" : other_cupti();
      const std::lock_guard<std::mutex> held(lock_);
      if (!stopped_) read_clocks();
      note_other_cupti(other);
      write_out();
    } catch (...) {
    }
  }
}

void* watch_thread(void*) {
  recorder.watch();
  return nullptr;
}

void at_exit() { recorder.finish(kAtExit); }

struct sigaction program_action;

// Before SIGTERM ends the program, or its own handler decides what to do, the last records are written; both then
// happen as they would have. A handler that the program sets later replaces this one, which is its right.
void on_terminate(int number, siginfo_t* info, void* context) {
  const int error = errno;
  if (recorder.watches()) {
    const int mine = recorder.asked.fetch_add(1) + 1;
    futex(recorder.asked, FUTEX_WAKE, 1, nullptr);
    const timespec moment{0, 1000000};
    for (long ms = 0; ms < kPatienceMs && recorder.answered.load() < mine; ++ms) nanosleep(&moment, nullptr);
  }
  errno = error;
  if (program_action.sa_flags & SA_SIGINFO) {
    program_action.sa_sigaction(number, info, context);
  } else if (program_action.sa_handler != SIG_DFL) {
    program_action.sa_handler(number);
  } else {
    signal(number, SIG_DFL);
    kill(getpid(), number);  // held back until this handler returns
  }
}

void catch_terminate() {
  if (sigaction(SIGTERM, nullptr, &program_action) != 0) return;
  if (!(program_action.sa_flags & SA_SIGINFO) && program_action.sa_handler == SIG_IGN) return;
  struct sigaction ours = program_action;
  ours.sa_sigaction = on_terminate;
  ours.sa_flags = (program_action.sa_flags & ~SA_RESETHAND) | SA_SIGINFO;
  sigaction(SIGTERM, &ours, nullptr);
}

// ---- the beginning ----------------------------------------------------------------------------------------------

std::string start_ticks() {  // field 22 of stat, counted after the name, which may hold spaces and brackets
  char text[1024] = {};
  const int stat_file = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
  if (stat_file < 0) return "0";
  const ssize_t length = read(stat_file, text, sizeof text - 1);
  close(stat_file);
  const char* at = length > 0 ? strrchr(text, ')') : nullptr;
  for (int field = 2; at && field < 22; ++field) at = strchr(at + 1, ' ');
  return at ? std::to_string(strtoull(at + 1, nullptr, 10)) : "0";
}

uint32_t driver_version() {
  using Get = CUresult (*)(int*);
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  const auto get = driver ? reinterpret_cast<Get>(dlsym(driver, "cuDriverGetVersion")) : nullptr;
  int version = 0;
  return get && get(&version) == CUDA_SUCCESS ? static_cast<uint32_t>(version) : 0;
}

void Recorder::start() {
  const char* folder = getenv("AACO_CUPTI_FOLDER");
  if (!folder || !*folder) return;
  const std::string lacking = cupti.load();
  FileHeader header{{'A', 'A', 'C', 'O', 'C', 'U', 'P', 'T'}, kVersion, static_cast<uint32_t>(getpid()), 0, driver_version(),
                    clock_ns(CLOCK_MONOTONIC), clock_ns(CLOCK_REALTIME), 0, {}};
  const std::string path = std::string(folder) + "/" + std::to_string(getpid()) + "-" + start_ticks();
  if (lacking.empty()) {
    cupti.version(&header.cupti_version);
    uint64_t time = 0;
    if (cupti.timestamp(&time) == CUPTI_SUCCESS) header.cupti_ns = static_cast<int64_t>(time);
  }
  cupti_version_ = header.cupti_version;
  // A process that becomes another program keeps its number and its start.
  bool made = file_.create(path + ".cupti");
  for (int program = 2; !made && errno == EEXIST && program < 100; ++program)
    made = file_.create(path + "-" + std::to_string(program) + ".cupti");
  if (!made || !file_.append(std::string(reinterpret_cast<const char*>(&header), sizeof header))) return;
  if (!lacking.empty()) {
    note("refused cupti: " + lacking);
    write_out();
    return;
  }
  owner.store(getpid());
  pool.reserve();
  {
    const std::lock_guard<std::mutex> held(lock_);
    look_for_others();
  }
  enable_all();
  {
    const std::lock_guard<std::mutex> held(lock_);
    read_clocks();
    write_out();
  }
  pthread_t thread;
  const SignalsHeld no_signals;  // the thread inherits that it is sent none
  if (pthread_create(&thread, nullptr, watch_thread, nullptr) == 0) {
    pthread_setname_np(thread, "aaco-cupti");
    pthread_detach(thread);
    catch_terminate();
  }
  atexit(at_exit);
}

// CUPTI may initialize CUDA, which calls back here: the thread that starts goes on, any other waits for it.
void start_once() {
  static std::atomic<int> begun{0}, done{0};
  static thread_local bool is_starting = false;
  if (begun.exchange(1)) {
    const timespec moment{0, 1000000};
    for (int ms = 0; ms < 5000 && !done && !is_starting; ++ms) nanosleep(&moment, nullptr);
    return;
  }
  is_starting = true;
  try {
    recorder.start();
  } catch (...) {  // no memory left: the program runs on unrecorded
  }
  is_starting = false;
  done.store(1);
}

}  // namespace

extern "C" {

// Called by the driver while it initializes CUDA. Anything but 1 might be taken for a failure of CUDA itself.
__attribute__((visibility("default"))) int InitializeInjection() {
  start_once();
  return 1;
}

// Called by NVTX at a program's first range, before CUDA or after it: ranges reach CUPTI through its own function.
__attribute__((visibility("default"))) int InitializeInjectionNvtx2(void* get_export_table) {
  start_once();
  using Forwarded = int (*)(void*);
  const auto forwarded =
      cupti.library ? reinterpret_cast<Forwarded>(dlsym(cupti.library, "InitializeInjectionNvtx2")) : nullptr;
  return forwarded ? forwarded(get_export_table) : 0;
}

}  // extern "C"
