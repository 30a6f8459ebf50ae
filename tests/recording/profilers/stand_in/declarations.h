// The few declarations of CUDA's and CUPTI's headers that injection.cpp uses, written from NVIDIA's documentation of the
// activity API, so that the library is built and run where no CUDA is. Layouts are those of CUDA 12 and 13: what is not
// used here is filler. It is included under each of the real headers' names.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define CUPTI_API_VERSION 130001
#define CUPTIAPI
#define STAND_IN_RECORD __attribute__((packed, aligned(8)))

typedef int CUresult;
typedef struct CUctx_st* CUcontext;
enum { CUDA_SUCCESS = 0 };
typedef enum {
  CUPTI_SUCCESS = 0,
  CUPTI_ERROR_MAX_LIMIT_REACHED = 12,
  CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED = 39,
} CUptiResult;
typedef uint32_t CUpti_CallbackId;
typedef enum { CUPTI_CB_DOMAIN_DRIVER_API = 1, CUPTI_CB_DOMAIN_RUNTIME_API = 2 } CUpti_CallbackDomain;
typedef void (*CUpti_CallbackFunc)(void*, CUpti_CallbackDomain, CUpti_CallbackId, const void*);
typedef struct CUpti_Subscriber_st* CUpti_SubscriberHandle;
typedef enum { CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM = 1 } CUpti_ActivityThreadIdType;
typedef enum {
  CUPTI_ACTIVITY_KIND_MEMCPY = 1,
  CUPTI_ACTIVITY_KIND_MEMSET = 2,
  CUPTI_ACTIVITY_KIND_KERNEL = 3,
  CUPTI_ACTIVITY_KIND_DRIVER = 4,
  CUPTI_ACTIVITY_KIND_RUNTIME = 5,
  CUPTI_ACTIVITY_KIND_DEVICE = 8,
  CUPTI_ACTIVITY_KIND_CONTEXT = 9,
  CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL = 10,
  CUPTI_ACTIVITY_KIND_MARKER = 12,
  CUPTI_ACTIVITY_KIND_OVERHEAD = 17,
  CUPTI_ACTIVITY_KIND_MEMCPY2 = 22,
  CUPTI_ACTIVITY_KIND_CUDA_EVENT = 36,
  CUPTI_ACTIVITY_KIND_SYNCHRONIZATION = 38,
  CUPTI_ACTIVITY_KIND_MEMORY2 = 49,
  CUPTI_ACTIVITY_KIND_FORCE_INT = 0x7fffffff,
} CUpti_ActivityKind;
typedef enum {
  CUPTI_ACTIVITY_FLAG_FLUSH_FORCED = 1,
  CUPTI_ACTIVITY_FLAG_MARKER_INSTANTANEOUS = 1,
  CUPTI_ACTIVITY_FLAG_MARKER_START = 2,
  CUPTI_ACTIVITY_FLAG_MARKER_END = 4,
} CUpti_ActivityFlag;

typedef struct STAND_IN_RECORD { CUpti_ActivityKind kind; } CUpti_Activity;
typedef struct STAND_IN_RECORD {
  CUpti_ActivityKind kind;
  uint16_t filler_4;
  uint16_t registersPerThread;
  uint32_t filler_8[2];
  uint64_t start, end, completed;
  uint32_t deviceId, contextId, streamId;
  int32_t gridX, gridY, gridZ, blockX, blockY, blockZ, staticSharedMemory, dynamicSharedMemory;
  uint32_t localMemoryPerThread, localMemoryTotal, correlationId;
  int64_t gridId;
  const char* name;
  void* filler_112;
  uint64_t queued, submitted;
  uint32_t filler_136[2];
  uint64_t graphNodeId;
  uint32_t filler_152, graphId;
  uint32_t filler_160[12];
} CUpti_ActivityKernel9;
typedef struct STAND_IN_RECORD {
  CUpti_ActivityKind kind;
  CUpti_CallbackId cbid;
  uint64_t start, end;
  uint32_t processId, threadId, correlationId, returnValue;
} CUpti_ActivityAPI;
typedef struct STAND_IN_RECORD {
  CUpti_ActivityKind kind;
  uint8_t copyKind, srcKind, dstKind, flags;
  uint64_t bytes, start, end;
  uint32_t deviceId, contextId, streamId, correlationId, runtimeCorrelationId, filler_52;
  void* filler_56;
  uint64_t graphNodeId;
  uint32_t graphId, filler_76[3];
} CUpti_ActivityMemcpy5;
typedef struct STAND_IN_RECORD {
  CUpti_ActivityKind kind;
  uint8_t copyKind, srcKind, dstKind, flags;
  uint64_t bytes, start, end;
  uint32_t deviceId, contextId, streamId, srcDeviceId, srcContextId, dstDeviceId, dstContextId, correlationId;
  void* filler_64;
  uint64_t graphNodeId;
  uint32_t graphId, filler_84[3];
} CUpti_ActivityMemcpyPtoP4;
typedef struct STAND_IN_RECORD {
  CUpti_ActivityKind kind;
  uint32_t value;
  uint64_t bytes, start, end;
  uint32_t deviceId, contextId, streamId, correlationId;
  uint16_t flags, memoryKind;
  uint32_t filler_52;
  void* filler_56;
  uint64_t graphNodeId;
  uint32_t graphId, filler_76[3];
} CUpti_ActivityMemset4;
typedef struct STAND_IN_RECORD {
  CUpti_ActivityKind kind;
  uint32_t type;
  uint64_t start, end;
  uint32_t correlationId, contextId, streamId, cudaEventId;
} CUpti_ActivitySynchronization;
typedef struct STAND_IN_RECORD {
  CUpti_ActivityKind kind;
  uint32_t correlationId, contextId, streamId, eventId, filler_20;
} CUpti_ActivityCudaEvent;
typedef struct STAND_IN_RECORD {
  CUpti_ActivityKind kind;
  uint32_t memoryOperationType, memoryKind, correlationId;
  uint64_t address, bytes, timestamp, PC;
  uint32_t processId, deviceId, contextId, streamId;
  uint64_t filler_64[7];
} CUpti_ActivityMemory3;
typedef union {
  struct { uint32_t processId, threadId; } pt;
  uint32_t filler[3];
} CUpti_ActivityObjectKindId;
typedef struct STAND_IN_RECORD {
  CUpti_ActivityKind kind;
  CUpti_ActivityFlag flags;
  uint64_t timestamp;
  uint32_t id, objectKind;
  CUpti_ActivityObjectKindId objectId;
  uint32_t filler_36;
  const char *name, *domain;
} CUpti_ActivityMarker2;
typedef struct STAND_IN_RECORD {
  CUpti_ActivityKind kind;
  uint32_t overheadKind, objectKind;
  CUpti_ActivityObjectKindId objectId;
  uint64_t start, end;
} CUpti_ActivityOverhead;
typedef struct STAND_IN_RECORD {
  CUpti_ActivityKind kind;
  uint32_t flags;
  uint64_t globalMemoryBandwidth, globalMemorySize;
  uint32_t filler_24, l2CacheSize, numThreadsPerWarp, coreClockRate, filler_40, numMultiprocessors, filler_48;
  uint32_t maxWarpsPerMultiprocessor, filler_56, maxSharedMemoryPerMultiprocessor, maxRegistersPerMultiprocessor;
  uint32_t filler_68[2], maxThreadsPerBlock, filler_80[6], computeCapabilityMajor, computeCapabilityMinor, id;
  uint32_t filler_116;
  uint8_t uuid[16];
  const char* name;
  uint64_t filler_144[4];
} CUpti_ActivityDevice4;
typedef struct STAND_IN_RECORD {
  CUpti_ActivityKind kind;
  uint32_t contextId, deviceId, filler_12;
} CUpti_ActivityContext;

static_assert(offsetof(CUpti_ActivityKernel9, correlationId) == 92, "as documented");
static_assert(offsetof(CUpti_ActivityKernel9, graphId) == 156, "as documented");
static_assert(offsetof(CUpti_ActivityMemcpyPtoP4, graphNodeId) == 72, "as documented");
static_assert(offsetof(CUpti_ActivityMemset4, memoryKind) == 50, "as documented");
static_assert(offsetof(CUpti_ActivityMemory3, streamId) == 60, "as documented");
static_assert(offsetof(CUpti_ActivityMarker2, name) == 40, "as documented");
static_assert(offsetof(CUpti_ActivityDevice4, id) == 112 && offsetof(CUpti_ActivityDevice4, name) == 136, "");
static_assert(sizeof(CUpti_ActivitySynchronization) == 40 && sizeof(CUpti_ActivityAPI) == 40, "as documented");

typedef void (*CUpti_BuffersCallbackRequestFunc)(uint8_t** buffer, size_t* size, size_t* most_records);
typedef void (*CUpti_BuffersCallbackCompleteFunc)(CUcontext, uint32_t, uint8_t* buffer, size_t size, size_t valid);

extern "C" {
CUptiResult cuptiGetVersion(uint32_t*);
CUptiResult cuptiGetTimestamp(uint64_t*);
CUptiResult cuptiGetResultString(CUptiResult, const char**);
CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain, uint32_t, const char**);
CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc, CUpti_BuffersCallbackCompleteFunc);
CUptiResult cuptiActivityEnable(CUpti_ActivityKind);
CUptiResult cuptiActivityFlushAll(uint32_t);
CUptiResult cuptiActivityGetNextRecord(uint8_t*, size_t, CUpti_Activity**);
CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t*);
CUptiResult cuptiSetThreadIdType(CUpti_ActivityThreadIdType);
CUptiResult cuptiSubscribe(CUpti_SubscriberHandle*, CUpti_CallbackFunc, void*);
CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle);
CUptiResult cuptiActivityRegisterTimestampCallback(uint64_t (*)());
CUptiResult cuptiActivityEnableRuntimeApi(CUpti_CallbackId, uint8_t);
CUptiResult cuptiActivityEnableDriverApi(CUpti_CallbackId, uint8_t);
}
