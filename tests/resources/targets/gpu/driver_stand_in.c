/* A stand-in of a GPU driver, for tests of the runner's protocol only: nothing that it says is a measurement.
 *
 * It has the entry points of the CUDA driver API that the runner uses. Device memory is this process's own, behind an
 * offset; a kernel is a C function looked up by name; an event keeps the host's clock. A module is any bytes. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define OFFSET 0x100000000000ull
#define ILLEGAL_ADDRESS 700
#define INVALID_VALUE 1

typedef struct {
  long long nanoseconds;
} Event;
typedef int (*Kernel)(const unsigned *grid, const unsigned *block, void **arguments);

static int pending = 0;
static double clock_scale = 1.0;
static long long loads = 0;

static long long now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000ll + time.tv_nsec;
}
static char *host(uint64_t device) { return (char *)(device - OFFSET); }
static float *floats(void *argument) { return (float *)host(*(uint64_t *)argument); }

/* twice(in, out, n): out[i] = 2 in[i] */
static int twice_to(void **arguments, int first, int last) {
  float *in = floats(arguments[0]), *out = floats(arguments[1]);
  for (int i = first; i < last; ++i) out[i] = 2 * in[i];
  return 0;
}
static int count(void **arguments) { return *(int *)arguments[2]; }
static int twice(const unsigned *grid, const unsigned *block, void **arguments) {
  return twice_to(arguments, 0, count(arguments));
}
static int past_the_end(const unsigned *grid, const unsigned *block, void **arguments) {
  twice_to(arguments, 0, count(arguments));
  ((char *)(floats(arguments[1]) + count(arguments)))[0] ^= 1;
  return 0;
}
static int before_the_begin(const unsigned *grid, const unsigned *block, void **arguments) {
  twice_to(arguments, 0, count(arguments));
  ((char *)floats(arguments[0]))[-4] ^= 1;
  return 0;
}
static int half_done(const unsigned *grid, const unsigned *block, void **arguments) {
  return twice_to(arguments, 0, count(arguments) / 2);
}
static int input_changed(const unsigned *grid, const unsigned *block, void **arguments) {
  floats(arguments[0])[count(arguments) - 1] += 1;
  return twice_to(arguments, 0, count(arguments));
}
static int illegal_address(const unsigned *grid, const unsigned *block, void **arguments) { return ILLEGAL_ADDRESS; }
static int hangs(const unsigned *grid, const unsigned *block, void **arguments) {
  for (;;) sleep(1);
}
static int kills_the_process(const unsigned *grid, const unsigned *block, void **arguments) {
  static const char words[] = "Memory access fault by GPU node-1\n";
  if (write(2, words, sizeof words - 1) > 0) abort();
  return 0;
}
static int in_place(const unsigned *grid, const unsigned *block, void **arguments) {
  float *values = floats(arguments[0]);
  for (unsigned i = 0; i < grid[0] * block[0]; ++i) values[i] += *(float *)arguments[1];
  return 0;
}
static int hurries_the_clock(const unsigned *grid, const unsigned *block, void **arguments) {
  clock_scale = 3.0;
  struct timespec pause = {0, 20000000};
  nanosleep(&pause, 0);
  return twice_to(arguments, 0, count(arguments));
}
static int tells_loads(const unsigned *grid, const unsigned *block, void **arguments) {
  floats(arguments[1])[0] = (float)loads;
  return 0;
}

static const struct {
  const char *name;
  Kernel kernel;
} kernels[] = {{"twice", twice},
               {"past_the_end", past_the_end},
               {"before_the_begin", before_the_begin},
               {"half_done", half_done},
               {"input_changed", input_changed},
               {"illegal_address", illegal_address},
               {"hangs", hangs},
               {"kills_the_process", kills_the_process},
               {"in_place", in_place},
               {"hurries_the_clock", hurries_the_clock},
               {"tells_loads", tells_loads}};

int cuInit(unsigned flags) {
  if (CLOCK_SCALE != 1.0) clock_scale = CLOCK_SCALE;
  return 0;
}
int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, 0; }
int cuDeviceGetName(char *name, int size, int device) { return strncpy(name, "stand-in of a GPU", size), 0; }
int cuDeviceGetPCIBusId(char *bus, int size, int device) { return strncpy(bus, "0000:00:00.0", size), 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  return *value = attribute == 10 ? 32 : attribute == 75 ? 9 : 0, 0;
}
int cuDriverGetVersion(int *version) { return *version = 13000, 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = 0, 0; }
int cuCtxSetCurrent(void *context) { return 0; }
int cuMemAlloc_v2(uint64_t *device, size_t size) {
  char *memory = aligned_alloc(256, (size + 255) / 256 * 256);
  return memory ? (*device = (uint64_t)memory + OFFSET, 0) : 2;
}
int cuMemFree_v2(uint64_t device) { return free(host(device)), 0; }
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) { return memcpy(host(to), from, size), pending; }
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) { return memcpy(to, host(from), size), pending; }
int cuMemsetD8_v2(uint64_t to, unsigned char byte, size_t size) { return memset(host(to), byte, size), pending; }
/* A fill that is only there to flush caches: some time passes, and no memory is touched. */
int cuMemsetD8Async(uint64_t to, unsigned char byte, size_t size, void *stream) {
  struct timespec pause = {0, 50000};
  return nanosleep(&pause, 0), pending;
}
int cuModuleLoadData(void **module, const void *image) { return ++loads, *module = (void *)1, 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) {
  for (size_t i = 0; i < sizeof kernels / sizeof *kernels; ++i)
    if (!strcmp(kernels[i].name, name)) return *function = (void *)kernels[i].kernel, 0;
  return 500;
}
int cuFuncSetAttribute(void *function, int attribute, int value) {
  return attribute == 8 && value <= 65536 ? 0 : INVALID_VALUE;
}
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned lds, void *stream, void **arguments, void **extra) {
  unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
  if (bx * by * bz > 1024) return INVALID_VALUE;
  pending = ((Kernel)function)(grid, block, arguments);
  return 0;
}
int cuEventCreate(void **event, unsigned flags) { return (*event = malloc(sizeof(Event))) ? 0 : 2; }
int cuEventRecord(Event *event, void *stream) { return event->nanoseconds = now(), pending; }
int cuEventSynchronize(Event *event) { return pending; }
int cuEventElapsedTime(float *milliseconds, Event *begin, Event *end) {
  return *milliseconds = (float)((end->nanoseconds - begin->nanoseconds) * clock_scale / 1e6), 0;
}
int cuCtxSynchronize(void) { return pending; }
int cuGetErrorName(int code, const char **name) {
  *name = code == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : code == 500 ? "CUDA_ERROR_NOT_FOUND" : "CUDA_ERROR";
  return 0;
}
