/* A stand-in for libnvidia-ml.so.1 with known answers, for tests on hosts without an NVIDIA GPU.
 *
 * Macros make it lack functions (OLD), and the environment variable NVML_STAND_IN, read at every call, makes it fail:
 * "lost" after a device has fallen off the bus, "forbidden" without permission, "no_driver", "mig", and "dear" with a slow
 * reading of the energy.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NO_DRIVER = 9, LOST = 15 };

static int mode(const char *name)
{
    const char *set = getenv("NVML_STAND_IN");
    return set != NULL && strcmp(set, name) == 0;
}

static int answer(void) { return mode("lost") ? LOST : OK; }

const char *nvmlErrorString(int status)
{
    switch (status) {
    case NOT_SUPPORTED: return "Not Supported";
    case NO_PERMISSION: return "Insufficient Permissions";
    case NO_DRIVER: return "Driver Not Loaded";
    case LOST: return "GPU is lost";
    default: return "Unknown Error";
    }
}

int nvmlInit_v2(void) { return mode("no_driver") ? NO_DRIVER : OK; }
int nvmlShutdown(void) { return OK; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    *device = (void *)(uintptr_t)(0x100000001ull + index); /* needs all 64 bits, as a pointer does */
    return index == 1 && mode("forbidden") ? NO_PERMISSION : OK;
}

static unsigned number(void *device) { return (unsigned)((uintptr_t)device - 0x100000001ull); }

int nvmlDeviceGetName(void *device, char *text, unsigned size) { (void)device; snprintf(text, size, "NVIDIA H200"); return OK; }
int nvmlDeviceGetUUID(void *device, char *text, unsigned size)
{
    snprintf(text, size, "GPU-0000000%u-1111-2222-3333-444444444444", number(device));
    return OK;
}

struct pci { char legacy[16]; unsigned domain, bus, device, ids, subsystem; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(void *device, struct pci *pci)
{
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", 0xC1 + number(device));
    return OK;
}

int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) { (void)device; *major = 9; *minor = 0; return OK; }
int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *pending)
{
    (void)device;
    *now = *pending = mode("mig");
    return OK;
}
int nvmlDeviceGetMaxClockInfo(void *device, unsigned kind, unsigned *mhz) { (void)device; *mhz = kind == 1 ? 1980 : 3201; return OK; }
int nvmlDeviceGetMemoryBusWidth(void *device, unsigned *bits) { (void)device; *bits = 6144; return OK; }
int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *mw) { (void)device; *mw = 700000; return OK; }

int nvmlDeviceGetPowerUsage(void *device, unsigned *mw) { *mw = 321500 + number(device); return answer(); }
int nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *c) { (void)device; *c = sensor == 0 ? 41 : 0; return answer(); }
int nvmlDeviceGetClockInfo(void *device, unsigned kind, unsigned *mhz) { (void)device; *mhz = kind == 1 ? 1755 : 3201; return answer(); }

struct utilization { unsigned gpu, memory; };
int nvmlDeviceGetUtilizationRates(void *device, struct utilization *rates)
{
    (void)device;
    if (mode("mig"))
        return NOT_SUPPORTED;
    rates->gpu = 97;
    rates->memory = 35;
    return answer();
}

struct memory { unsigned long long total, free, used; };
int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory)
{
    (void)device;
    memory->total = 150ull << 30;
    memory->used = (9ull << 30) + (1ull << 30); /* what the driver keeps for itself is in it */
    return answer();
}

#ifndef OLD
static unsigned long long readings; /* grows with each reading of the energy, as the counters do */

struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *memory)
{
    (void)device;
    if (memory->version != (sizeof *memory | 2u << 24))
        return INVALID;
    memory->total = 150ull << 30;
    memory->reserved = 1ull << 30;
    memory->used = 9ull << 30;
    return answer();
}

int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *mj)
{
    (void)device;
    if (mode("dear"))
        usleep(250); /* an H200 takes 3 ms */
    *mj = 5000000000ull + 32000 * ++readings; /* beyond 32 bits */
    return answer();
}

int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *bits) { (void)device; *bits = 0x1 | 0x4; return answer(); }
int nvmlDeviceGetCurrPcieLinkGeneration(void *device, unsigned *generation) { (void)device; *generation = 5; return answer(); }
int nvmlDeviceGetCurrPcieLinkWidth(void *device, unsigned *lanes) { (void)device; *lanes = 16; return answer(); }

struct field { unsigned id, scope; long long timestamp, latency; unsigned type, status; union { unsigned u; unsigned long long ull; } value; };
int nvmlDeviceGetFieldValues(void *device, int count, struct field *fields)
{
    (void)device;
    for (int i = 0; i < count; i++) {
        struct field *one = &fields[i];
        one->value.ull = 0xAAAAAAAAAAAAAAAAull; /* of a narrow value the other bytes mean nothing */
        one->status = OK;
        one->type = 3;
        switch (one->id) {
        case 82: one->type = 1; one->value.u = 44; break;
        case 3: one->value.ull = 7; break;
        case 4: one->value.ull = 0; break;
        case 74: one->value.ull = 1000; break;
        case 269: one->value.ull = 5000 * readings; break; /* held the clocks between every two readings */
        default: one->status = NOT_SUPPORTED;
        }
    }
    return answer();
}
#else
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *bits) { (void)device; *bits = 0x8; return answer(); }
#endif
