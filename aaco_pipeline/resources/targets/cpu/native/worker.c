/* The process in which a kernel runs: shut in before the kernel's first instruction, and trusted in nothing after it.
 *
 * It is linked with one kernel. At start it takes its setup from the channel, maps the buffers that the parent shares,
 * makes stacks, puts what it must rely on into memory that is read-only from then on, and forbids itself every call of
 * the kernel but three, each by number and by the address it comes from. Then it answers requests.
 *
 * The kernel shares this address space, so that nothing here that can be written is believed twice. Before each call all
 * memory that can be written is made what it was before the first (`prepare`), by code that the kernel cannot reach
 * into: nothing of one call is left for the next. And the two calls of the operating system that are left, in `turn`,
 * never return to whoever jumped to them: what follows them is the next request.
 * What is true of a call is read by the parent: CPU time, the outputs, the canaries around them, the number of threads.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
  CHANNEL = 3,
  MOST_BUFFERS = 64,
  MOST_ARGUMENTS = 64,
  MOST_ITEMS = 1024,
  LANES = 64,
  PAGE = 65536, /* the largest page of the two machines: what is protected alone lies on its own */
  MAIN_STACK = 1 << 18,
  FIBER_STACK = 1 << 15,
  MOST_REGIONS = 64,
  OWN_STACK = 1 << 12, /* of the main stack: what this file's functions need before the kernel's begin */
  DYNAMIC_LDS = 1 << 16,
};

static const uint64_t MAIN_STACK_AT = 0xc00000000, FIBERS_AT = 0xd00000000, COPIES_AT = 0xe00000000,
                      LDS_LEFT_AT = 0xf00000000;

/* ---- what goes over the channel: see process.py, which packs the same fields */

struct mapping {
  int32_t descriptor;
  uint32_t writable;
  uint64_t address, bytes;
};
struct setup {
  uint32_t mappings, parent, items, unused;
  uint64_t memory_bytes;
  struct mapping mapping[MOST_BUFFERS];
};
struct ready {
  uint64_t lds_bytes, restored_bytes;
  uint32_t failed; /* 0, or the number of the step that could not be done */
  uint32_t error;
  uint32_t namespaces; /* 1 where it has a network, mounts and process numbers of its own */
  uint32_t unused;
};
enum { PREPARE = 1, GO = 2 };
struct request {
  uint64_t nonce;
  uint32_t kind, order; /* of workgroups and work-items: 0 ascending, 1 descending, else a permutation's seed */
  uint32_t grid[3], block[3];
  uint32_t dynamic_lds, arguments;
  uint32_t keeps_lds, unused; /* 1 where local data share holds what the last call left */
  uint64_t value[MOST_ARGUMENTS];
};
enum { DONE = 1, FAULT = 2, SHUT_IN = 3, PREPARED = 4, UNCONFINED = 5 };
struct reply {
  uint64_t nonce;
  uint32_t kind, control, lds_overrun, signal;
  uint64_t address;
  uint32_t detail, sites_met; /* 1 where lanes of one wavefront met in different exchanges */
};

/* ---- what the link gives: the kernel, and where its data are */

struct index { uint32_t x, y, z; };
struct launch { struct index grid, block, group; };
extern void aaco_items(const struct launch *, void *const *, unsigned, unsigned);
extern const uint32_t aaco_uses_fibers, aaco_uses_dynamic_lds;
extern char *aaco_dynamic_lds(void); /* where all arrays of dynamic local data share begin */

/* ---- what must be relied on: read-only once the kernel may run */

static __attribute__((used)) union {
  struct {
    char *stack, *fibers, *lds, *lds_left;
    uint64_t lds_bytes, vector_state;
    uint32_t control, items, regions;
    struct region {
      char *place, *copy;
      uint64_t bytes;
    } region[MOST_REGIONS];
  } is;
  char page[PAGE];
} trusted __attribute__((aligned(PAGE)));
#define T trusted.is
_Static_assert(offsetof(__typeof__(trusted.is), stack) == 0, "as in the assembly below");

struct request aaco_request;
struct reply aaco_reply;

/* ---- the three calls that are left */

void aaco_turn(void) __attribute__((noreturn));
void aaco_leave(void) __attribute__((noreturn));
extern const char aaco_wrote[], aaco_heard[], aaco_left[];
void aaco_serve(long heard) __attribute__((used));

_Static_assert(OWN_STACK == 4096, "what is cleared of the stack in the assembly below");
_Static_assert(sizeof(struct request) == 568 && sizeof(struct reply) == 40, "sizes as in the assembly below");
#if defined(__x86_64__)
__asm__(
    ".text\n.balign 64\n.globl aaco_turn\naaco_turn:\n"
    "  mov $1, %eax\n  mov $3, %edi\n  lea aaco_reply(%rip), %rsi\n  mov $40, %edx\n  syscall\n"
    ".globl aaco_wrote\naaco_wrote:\n"
    "  xor %eax, %eax\n  mov $3, %edi\n  lea aaco_request(%rip), %rsi\n  mov $568, %edx\n  syscall\n"
    ".globl aaco_heard\naaco_heard:\n"
    "  mov trusted(%rip), %rsp\n  cld\n  xor %ebp, %ebp\n  mov %rax, %rdx\n"
    "  lea -4096(%rsp), %rdi\n  mov $512, %ecx\n  xor %eax, %eax\n  rep stosq\n  mov %rdx, %rdi\n"
    "  call aaco_serve\n  jmp aaco_turn\n"
    ".globl aaco_leave\naaco_leave:\n  mov $231, %eax\n  xor %edi, %edi\n  syscall\n"
    ".globl aaco_left\naaco_left:\n  hlt\n"
    /* aaco_switch(where to keep the stack pointer, the one to go on with) */
    ".balign 16\n.globl aaco_switch\naaco_switch:\n"
    "  push %rbp\n  push %rbx\n  push %r12\n  push %r13\n  push %r14\n  push %r15\n"
    "  mov %rsp, (%rdi)\n  mov %rsi, %rsp\n"
    "  pop %r15\n  pop %r14\n  pop %r13\n  pop %r12\n  pop %rbx\n  pop %rbp\n  ret\n"
    ".balign 16\n.globl aaco_fiber_start\naaco_fiber_start:\n  xor %ebp, %ebp\n  call aaco_fiber_main\n  hlt\n");
enum { SAVED_WORDS = 8, RETURN_WORD = 6 };
#define ARCHITECTURE AUDIT_ARCH_X86_64
static uint32_t control_state(void) {
  uint32_t mxcsr;
  uint16_t x87;
  __asm__ volatile("stmxcsr %0\n\tfnstcw %1" : "=m"(mxcsr), "=m"(x87));
  return (mxcsr & 0xffc0u) | (uint32_t)x87 << 16; /* without the flags of what has happened */
}
/* All vector registers and their control to what they are in a new program (XRSTOR of an empty image). */
static const struct {
  uint16_t x87_control;
  uint8_t between[22];
  uint32_t mxcsr;
  uint8_t rest[548];
} __attribute__((aligned(64))) initial_state = {.x87_control = 0x37f, .mxcsr = 0x1f80};
static uint64_t vector_state(void) {
  uint32_t a, b, c, d;
  __asm__("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(1), "c"(0));
  if (!(c >> 27 & 1)) return 0;
  __asm__("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
  return a & 0xe7;
}
static void reset_registers(uint64_t which) {
  if (which != 0)
    __asm__ volatile("xrstor64 %0" : : "m"(initial_state), "a"((uint32_t)which), "d"(0));
  else
    __asm__ volatile("fninit\n\tldmxcsr %0" : : "m"(initial_state.mxcsr));
}
static void dirty_registers(uint64_t with) {
  __asm__ volatile(
      "movq %0, %%xmm0\n\tpunpcklqdq %%xmm0, %%xmm0\n\t"
      "movdqa %%xmm0, %%xmm1\n\tmovdqa %%xmm0, %%xmm2\n\tmovdqa %%xmm0, %%xmm3\n\tmovdqa %%xmm0, %%xmm4\n\t"
      "movdqa %%xmm0, %%xmm5\n\tmovdqa %%xmm0, %%xmm6\n\tmovdqa %%xmm0, %%xmm7\n\tmovdqa %%xmm0, %%xmm8\n\t"
      "movdqa %%xmm0, %%xmm9\n\tmovdqa %%xmm0, %%xmm10\n\tmovdqa %%xmm0, %%xmm11\n\tmovdqa %%xmm0, %%xmm12\n\t"
      "movdqa %%xmm0, %%xmm13\n\tmovdqa %%xmm0, %%xmm14\n\tmovdqa %%xmm0, %%xmm15\n\t"
      "mov %0, %%r8\n\tmov %0, %%r9\n\tmov %0, %%r10\n\tmov %0, %%r11\n"
      :
      : "r"(with)
      : "r8", "r9", "r10", "r11", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
        "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
}
#elif defined(__aarch64__)
__asm__(
    ".text\n.balign 64\n.globl aaco_turn\naaco_turn:\n"
    "  mov x8, #64\n  mov x0, #3\n  adrp x1, aaco_reply\n  add x1, x1, :lo12:aaco_reply\n  mov x2, #40\n  svc #0\n"
    ".globl aaco_wrote\naaco_wrote:\n"
    "  mov x8, #63\n  mov x0, #3\n  adrp x1, aaco_request\n  add x1, x1, :lo12:aaco_request\n  mov x2, #568\n  svc #0\n"
    ".globl aaco_heard\naaco_heard:\n"
    "  adrp x1, trusted\n  ldr x1, [x1, :lo12:trusted]\n  mov sp, x1\n  mov x29, #0\n"
    "  sub x2, x1, #4096\n1:\n  stp xzr, xzr, [x2], #16\n  cmp x2, x1\n  b.lo 1b\n"
    "  bl aaco_serve\n  b aaco_turn\n"
    ".globl aaco_leave\naaco_leave:\n  mov x8, #94\n  mov x0, #0\n  svc #0\n"
    ".globl aaco_left\naaco_left:\n  brk #1\n"
    ".balign 16\n.globl aaco_switch\naaco_switch:\n"
    "  sub sp, sp, #160\n"
    "  stp x19, x20, [sp]\n  stp x21, x22, [sp, #16]\n  stp x23, x24, [sp, #32]\n  stp x25, x26, [sp, #48]\n"
    "  stp x27, x28, [sp, #64]\n  stp x29, x30, [sp, #80]\n"
    "  stp d8, d9, [sp, #96]\n  stp d10, d11, [sp, #112]\n  stp d12, d13, [sp, #128]\n  stp d14, d15, [sp, #144]\n"
    "  mov x9, sp\n  str x9, [x0]\n  mov sp, x1\n"
    "  ldp x19, x20, [sp]\n  ldp x21, x22, [sp, #16]\n  ldp x23, x24, [sp, #32]\n  ldp x25, x26, [sp, #48]\n"
    "  ldp x27, x28, [sp, #64]\n  ldp x29, x30, [sp, #80]\n"
    "  ldp d8, d9, [sp, #96]\n  ldp d10, d11, [sp, #112]\n  ldp d12, d13, [sp, #128]\n  ldp d14, d15, [sp, #144]\n"
    "  add sp, sp, #160\n  ret\n"
    ".globl aaco_fiber_start\naaco_fiber_start:\n  mov x29, #0\n  bl aaco_fiber_main\n  brk #1\n");
enum { SAVED_WORDS = 20, RETURN_WORD = 11 };
#define ARCHITECTURE AUDIT_ARCH_AARCH64
static uint32_t control_state(void) {
  uint64_t fpcr;
  __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
  return (uint32_t)fpcr;
}
static uint64_t vector_state(void) { return 0; }
static void reset_registers(uint64_t which) {
  (void)which;
  __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0));
}
static void dirty_registers(uint64_t with) {
  __asm__ volatile(
      "dup v0.2d, %0"
      "\n\tmov v1.16b, v0.16b"
      "\n\tmov v2.16b, v0.16b"
      "\n\tmov v3.16b, v0.16b"
      "\n\tmov v4.16b, v0.16b"
      "\n\tmov v5.16b, v0.16b"
      "\n\tmov v6.16b, v0.16b"
      "\n\tmov v7.16b, v0.16b"
      "\n\tmov v8.16b, v0.16b"
      "\n\tmov v9.16b, v0.16b"
      "\n\tmov v10.16b, v0.16b"
      "\n\tmov v11.16b, v0.16b"
      "\n\tmov v12.16b, v0.16b"
      "\n\tmov v13.16b, v0.16b"
      "\n\tmov v14.16b, v0.16b"
      "\n\tmov v15.16b, v0.16b"
      "\n\tmov v16.16b, v0.16b"
      "\n\tmov v17.16b, v0.16b"
      "\n\tmov v18.16b, v0.16b"
      "\n\tmov v19.16b, v0.16b"
      "\n\tmov v20.16b, v0.16b"
      "\n\tmov v21.16b, v0.16b"
      "\n\tmov v22.16b, v0.16b"
      "\n\tmov v23.16b, v0.16b"
      "\n\tmov v24.16b, v0.16b"
      "\n\tmov v25.16b, v0.16b"
      "\n\tmov v26.16b, v0.16b"
      "\n\tmov v27.16b, v0.16b"
      "\n\tmov v28.16b, v0.16b"
      "\n\tmov v29.16b, v0.16b"
      "\n\tmov v30.16b, v0.16b"
      "\n\tmov v31.16b, v0.16b"
      :
      : "r"(with)
      : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31");
}
#else
#error "the cpu target runs on x86-64 and AArch64"
#endif

static void fill(char *place, uint64_t bytes, uint64_t with) {
  for (uint64_t at = 0; at + 8 <= bytes; at += 8) memcpy(place + at, &with, 8);
}

/* ---- orders of workgroups and work-items: where the one after another comes from, without room for all of them */

enum { ASCENDING = 0, DESCENDING = 1 };

/* Steps that each have an inverse, on as many bits as `count` needs; what lies beyond it is sent on. */
static uint64_t permuted(uint64_t at, uint64_t count, uint64_t seed) {
  uint64_t mask = 1;
  while (mask < count - 1) mask = mask << 1 | 1;
  const int half = (64 - __builtin_clzll(mask) + 1) / 2;
  do {
    uint64_t key = seed;
    for (int round = 0; round < 4; ++round) {
      key = key * 6364136223846793005u + 1442695040888963407u;
      at = (at * (key >> 20 | 1) + (key >> 40)) & mask;
      at ^= at >> half;
    }
  } while (at >= count);
  return at;
}

static uint64_t in_order(uint32_t order, uint64_t at, uint64_t count, uint64_t phase) {
  if (order == ASCENDING || count < 2) return at;
  return order == DESCENDING ? count - 1 - at : permuted(at, count, order * 0x9e3779b97f4a7c15u + phase);
}

/* ---- fibers: one for each work-item of a workgroup that has a barrier or exchanges values between lanes */

void aaco_switch(void **keep, void *go_on);
void aaco_fiber_start(void);
void aaco_fiber_main(void) __attribute__((used, noreturn));

enum { CAN_RUN, AT_BARRIER, AT_EXCHANGE, FINISHED };
static struct {
  void *stack[MOST_ITEMS], *scheduler;
  uint8_t state[MOST_ITEMS], bank[MOST_ITEMS / LANES];
  uint16_t turn[MOST_ITEMS]; /* the order of this phase, and which place of it runs */
  uint32_t place, running, count, left, order;
  unsigned long long value[MOST_ITEMS / LANES][2][LANES], taking_part[MOST_ITEMS / LANES][2];
  uint32_t site[MOST_ITEMS / LANES][2], sites_met;
  const struct launch *launch;
  void *const *arguments;
} fibers;

static void wait_as(int state) {
  const uint32_t own = fibers.running;
  const uint32_t place = fibers.place + 1;
  const uint32_t next = place < fibers.count ? fibers.turn[place] : own;
  fibers.state[own] = (uint8_t)state;
  fibers.left -= state == FINISHED;
  if (next != own && fibers.state[next] == CAN_RUN) {
    fibers.place = place;
    fibers.running = next;
    aaco_switch(&fibers.stack[own], fibers.stack[next]);
  } else {
    aaco_switch(&fibers.stack[own], fibers.scheduler);
  }
}

void aaco_fiber_main(void) {
  for (;;) {
    aaco_items(fibers.launch, fibers.arguments, fibers.running, 1);
    wait_as(FINISHED);
  }
}

void aaco_barrier(void) { wait_as(AT_BARRIER); }

const unsigned long long *aaco_exchange(unsigned site, unsigned long long value, unsigned long long *taking_part) {
  const uint32_t own = fibers.running, wave = own / LANES, lane = own % LANES, bank = fibers.bank[wave];
  if (fibers.taking_part[wave][bank] == 0) {
    memset(fibers.value[wave][bank], 0, sizeof fibers.value[wave][bank]);
    fibers.site[wave][bank] = site;
  }
  fibers.sites_met |= fibers.site[wave][bank] != site;
  fibers.value[wave][bank][lane] = value;
  fibers.taking_part[wave][bank] |= 1ull << lane;
  wait_as(AT_EXCHANGE);
  *taking_part = fibers.taking_part[wave][bank];
  return fibers.value[wave][bank];
}

/* Stacks start at different offsets in their pages, so that their tops do not share the same lines of a cache. */
static char *fiber_top(uint32_t fiber) { return T.fibers + (uint64_t)(fiber + 1) * FIBER_STACK - 192 * (fiber % 64); }

static void make_fibers(uint32_t count, uint32_t order) {
  memset(&fibers, 0, sizeof fibers);
  fibers.order = order;
  for (uint32_t fiber = 0; fiber < count; ++fiber) {
    uint64_t *top = (uint64_t *)fiber_top(fiber);
    top -= SAVED_WORDS;
    memset(top, 0, SAVED_WORDS * sizeof *top);
    top[RETURN_WORD] = (uint64_t)(uintptr_t)aaco_fiber_start;
    fibers.stack[fiber] = top;
  }
}

static void run_group(const struct launch *launch, void *const *arguments, uint32_t count) {
  fibers.count = fibers.left = count;
  fibers.launch = launch;
  fibers.arguments = arguments;
  memset(fibers.state, CAN_RUN, count);
  for (uint64_t phase = 0; fibers.left != 0; ++phase) {
    uint32_t released = 0;
    if (phase == 0 || fibers.order > DESCENDING)
      for (uint32_t place = 0; place < count; ++place)
        fibers.turn[place] = (uint16_t)in_order(fibers.order, place, count, phase);
    for (uint32_t place = 0; place < count; ++place) {
      const uint32_t fiber = fibers.turn[place];
      if (fibers.state[fiber] != CAN_RUN) continue;
      fibers.place = place;
      fibers.running = fiber;
      aaco_switch(&fibers.scheduler, fibers.stack[fiber]);
    }
    /* Nobody can run now. Lanes that exchange go on when all of their wavefront have come as far as they can. */
    for (uint32_t first = 0; first < count; first += LANES) {
      uint32_t end = first + LANES < count ? first + LANES : count, found = 0;
      for (uint32_t fiber = first; fiber < end; ++fiber) {
        if (fibers.state[fiber] != AT_EXCHANGE) continue;
        fibers.state[fiber] = CAN_RUN;
        found = 1;
      }
      if (!found) continue;
      fibers.bank[first / LANES] ^= 1;
      fibers.taking_part[first / LANES][fibers.bank[first / LANES]] = 0;
      released = 1;
    }
    if (released) continue;
    for (uint32_t fiber = 0; fiber < count; ++fiber)
      if (fibers.state[fiber] == AT_BARRIER) fibers.state[fiber] = CAN_RUN;
  }
}

/* ---- a request */

static const uint64_t QUIET_NAN = 0x7ff8000000000000;

static int changed_control(void) { return control_state() != T.control; }

/* All memory that can be written to what it was before the first call, stacks and local data share to poison. The own
   stack is that of this function's caller and below it the kernel's. Local data share may stay as it was left. */
static void prepare(uint64_t poison, uint32_t keeps_lds) {
  if (keeps_lds) memcpy(T.lds_left, T.lds, T.lds_bytes);
  for (uint32_t at = 0; at < T.regions; ++at) memcpy(T.region[at].place, T.region[at].copy, T.region[at].bytes);
  if (keeps_lds) memcpy(T.lds, T.lds_left, T.lds_bytes);
  fill(T.lds_left, T.lds_bytes, poison);
  fill(T.stack - MAIN_STACK, MAIN_STACK - OWN_STACK, poison);
  if (T.fibers != NULL) fill(T.fibers, (uint64_t)T.items * FIBER_STACK, poison);
}

static void run_kernel(const struct request *request, struct reply *reply) {
  const uint64_t poison = request->nonce | QUIET_NAN;
  const uint64_t items = (uint64_t)request->block[0] * request->block[1] * request->block[2];
  struct launch launch;
  void *arguments[MOST_ARGUMENTS];
  if (items == 0 || items > T.items || request->arguments > MOST_ARGUMENTS) aaco_leave();
  if (!request->keeps_lds)
    fill(T.lds, T.lds_bytes, poison);
  else if (aaco_uses_dynamic_lds && request->dynamic_lds < DYNAMIC_LDS)
    fill(aaco_dynamic_lds() + ((request->dynamic_lds + 7) & ~7ull), DYNAMIC_LDS - request->dynamic_lds, poison);
  for (uint32_t at = 0; at < request->arguments; ++at) arguments[at] = (void *)&request->value[at];
  memcpy(&launch.grid, request->grid, sizeof launch.grid);
  memcpy(&launch.block, request->block, sizeof launch.block);
  if (aaco_uses_fibers) make_fibers((uint32_t)items, request->order);
  reset_registers(T.vector_state);
  dirty_registers(poison);
  const uint64_t row = request->grid[0], plane = row * request->grid[1], groups = plane * request->grid[2];
  launch.group = (struct index){0, 0, 0};
  for (uint64_t place = 0; place < groups; ++place) {
    const uint64_t group = in_order(request->order, place, groups, ~0ull);
    if (request->order != ASCENDING) {
      launch.group.x = (uint32_t)(group % row);
      launch.group.y = (uint32_t)(group / row % request->grid[1]);
      launch.group.z = (uint32_t)(group / plane);
    } else if (place != 0 && ++launch.group.x == request->grid[0]) {
      launch.group.x = 0;
      if (++launch.group.y == request->grid[1]) launch.group.y = 0, ++launch.group.z;
    }
    if (aaco_uses_fibers)
      run_group(&launch, arguments, (uint32_t)items);
    else if (request->order == ASCENDING)
      aaco_items(&launch, arguments, 0, (uint32_t)items);
    else
      for (uint64_t item = 0; item < items; ++item)
        aaco_items(&launch, arguments, (unsigned)in_order(request->order, item, items, group), 1);
  }
  reply->control |= changed_control() ? 1 : 0;
  reply->sites_met = aaco_uses_fibers ? fibers.sites_met : 0;
  if (aaco_uses_dynamic_lds) {
    const char *arrays = aaco_dynamic_lds();
    for (uint64_t at = (request->dynamic_lds + 7) & ~7ull; at < DYNAMIC_LDS; at += 8)
      if (memcmp(arrays + at, &poison, 8) != 0) reply->lds_overrun = 1;
  }
}

void aaco_serve(long heard) {
  struct reply reply = {0};
  if (heard != (long)sizeof aaco_request) aaco_leave();
  const struct request request = aaco_request;
  aaco_request.order = 0; /* a kernel that looks here does not see in which order it runs */
  reply.nonce = request.nonce;
  reply.control = changed_control() ? 2 : 0;
  if (request.kind == PREPARE) {
    reset_registers(T.vector_state);
    prepare(request.nonce | QUIET_NAN, request.keeps_lds);
    reply.kind = PREPARED;
  } else {
    run_kernel(&request, &reply);
    reply.kind = DONE;
  }
  aaco_reply = reply;
}

/* ---- what went wrong, told as the answer; the parent ends the process then */

static void on_fault(int number, siginfo_t *info, void *context) {
  struct reply reply = {0};
  reply.nonce = aaco_request.nonce;
  reply.kind = FAULT;
  reply.signal = (uint32_t)number;
  reply.address = (uint64_t)(uintptr_t)info->si_addr;
  (void)context;
  reply.detail = (uint32_t)(number == SIGSYS ? info->si_syscall : info->si_code);
  aaco_reply = reply;
  aaco_turn();
}

/* ---- before the kernel may run */

static struct ready ready;
static int channel;

static void must(int done, uint32_t step) {
  if (done) return;
  ready.failed = step;
  ready.error = (uint32_t)errno;
  (void)!write(channel, &ready, sizeof ready);
  _exit(1);
}

/* At the same addresses in every process, so that no stack lies better than another. */
static void *mapped(uint64_t address, uint64_t bytes, uint32_t step) {
  void *wanted = (void *)(uintptr_t)address;
  must(mmap(wanted, bytes, PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0) == wanted, step);
  return wanted;
}

static int find_lds(struct dl_phdr_info *info, size_t size, void *unused) {
  (void)size;
  (void)unused;
  for (int at = 0; at < info->dlpi_phnum; ++at)
    if (info->dlpi_phdr[at].p_type == PT_TLS) {
      T.lds = info->dlpi_tls_data;
      T.lds_bytes = info->dlpi_phdr[at].p_memsz;
    }
  return 1; /* the first is the program itself */
}

/* What can be written, apart from stacks of this file's own and what is about to be read-only. */
static void add_region(uint64_t start, uint64_t end) {
  const uint64_t sealed = (uint64_t)(uintptr_t)&trusted;
  if (start == MAIN_STACK_AT + PAGE || start == FIBERS_AT || start >= end) return;
  if (start < sealed + sizeof trusted && sealed < end) {
    add_region(start, sealed);
    add_region(sealed + sizeof trusted, end);
    return;
  }
  must(T.regions < MOST_REGIONS, 6);
  T.region[T.regions++] = (struct region){(char *)(uintptr_t)start, NULL, end - start};
}

static void find_regions(void) {
  static char text[PAGE];
  size_t length = 0;
  const int file = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  must(file >= 0, 6);
  for (ssize_t got; (got = read(file, text + length, sizeof text - 1 - length)) > 0;) length += (size_t)got;
  must(length < sizeof text - 1, 6);
  close(file);
  for (char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
    char *rest;
    const uint64_t from = strtoull(line, &rest, 16), to = strtoull(rest + 1, &rest, 16);
    if (rest[1] == 'r' && rest[2] == 'w' && rest[4] == 'p') add_region(from, to);
  }
}

/* The last of this program's doing: from here on its memory is what each call finds. */
static uint64_t keep_regions(void) {
  uint64_t total = 0;
  for (uint32_t at = 0; at < T.regions; ++at) total += T.region[at].bytes;
  char *copy = mapped(COPIES_AT, total, 6);
  for (uint32_t at = 0; at < T.regions; ++at) {
    T.region[at].copy = copy;
    memcpy(copy, T.region[at].place, T.region[at].bytes);
    copy += T.region[at].bytes;
  }
  must(mprotect((void *)(uintptr_t)COPIES_AT, total, PROT_READ) == 0, 6);
  return total;
}

static void limit(int what, uint64_t most) {
  struct rlimit both = {most, most};
  must(setrlimit(what, &both) == 0, 7);
}

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define IS(value, then, otherwise) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(value), then, otherwise)
#define HIGH_HALF_OF_ADDRESS BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer) + 4)

/* Only `write` and `read` of aaco_turn and `exit_group` of aaco_leave, each at its own address, are left. */
static void forbid_everything_else(void) {
  struct sock_filter filter[] = {
      LOAD(arch),
      IS(ARCHITECTURE, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      HIGH_HALF_OF_ADDRESS,
      IS(0, 0, 9),
      LOAD(nr),
      IS(__NR_write, 0, 2),
      LOAD(instruction_pointer),
      IS((uintptr_t)aaco_wrote, 6, 5),
      IS(__NR_read, 0, 2),
      LOAD(instruction_pointer),
      IS((uintptr_t)aaco_heard, 3, 2),
      IS(__NR_exit_group, 0, 1),
      BPF_STMT(BPF_JMP | BPF_JA, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0) return;
  aaco_reply = (struct reply){.kind = UNCONFINED, .detail = (uint32_t)errno};
  (void)!write(CHANNEL, &aaco_reply, sizeof aaco_reply);
  _exit(1);
}

int main(int count, char **words) {
  static struct setup setup;
  static char alternate[PAGE];
  const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGSYS, SIGTRAP};
  must(prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) == 0, 1);
  if (count != 2) return 1;
  channel = atoi(words[1]);
  must(read(channel, &setup, sizeof setup) == sizeof setup && setup.mappings <= MOST_BUFFERS &&
           setup.items <= MOST_ITEMS, 2);
  T.items = setup.items;
  if ((uint32_t)getppid() != setup.parent) _exit(1);

  ready.namespaces = unshare(CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWIPC) == 0 ||
                     unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWIPC) == 0;
  for (uint32_t at = 0; at < setup.mappings; ++at) {
    const struct mapping *one = &setup.mapping[at];
    void *wanted = (void *)(uintptr_t)one->address;
    must(mmap(wanted, one->bytes, PROT_READ | (one->writable ? PROT_WRITE : 0),
              MAP_SHARED | MAP_FIXED_NOREPLACE | MAP_POPULATE, one->descriptor, 0) == wanted, 3);
  }
  must(channel == CHANNEL || dup2(channel, CHANNEL) == CHANNEL, 4);
  channel = CHANNEL;
  must(syscall(SYS_close_range, CHANNEL + 1, ~0u, 0) == 0, 4);
  close(0);
  close(1);
  close(2);

  char *stack = mapped(MAIN_STACK_AT, MAIN_STACK + PAGE, 5);
  must(mprotect(stack, PAGE, PROT_NONE) == 0, 5);
  T.stack = stack + PAGE + MAIN_STACK;
  if (aaco_uses_fibers) {
    /* One after another without pages between them, in large pages where there are any: a workgroup's stacks are in
       use by turns, and the machine's table of pages is short. */
    T.fibers = mapped(FIBERS_AT, (uint64_t)T.items * FIBER_STACK, 5);
    (void)madvise(T.fibers, (uint64_t)T.items * FIBER_STACK, MADV_HUGEPAGE);
  }
  dl_iterate_phdr(find_lds, NULL);
  find_regions();
  T.lds_left = T.lds_bytes == 0 ? NULL : mapped(LDS_LEFT_AT, T.lds_bytes, 6);

  limit(RLIMIT_AS, setup.memory_bytes);
  limit(RLIMIT_STACK, 0); /* the first stack, which is used no longer, does not grow either */
  limit(RLIMIT_CPU, 3600);
  limit(RLIMIT_FSIZE, 0);
  limit(RLIMIT_CORE, 0);
  if (getuid() == 0) {
    /* Its own number of nobody's, so that a limit on processes holds; not granted in some containers, and then
       the filter below is what holds. */
    if (syscall(SYS_setgroups, 0, NULL) != 0 || syscall(SYS_setresgid, 65534, 65534, 65534) != 0 ||
        syscall(SYS_setresuid, 65534, 65534, 65534) != 0)
      ready.namespaces |= 2;
  }
  limit(RLIMIT_NPROC, 0);
  must(prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) == 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, 8);
  if ((uint32_t)getppid() != setup.parent) _exit(1);
#if defined(PR_SET_TSC) && defined(__x86_64__)
  must(prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0) == 0, 8); /* a kernel has no business with the time */
#endif
  stack_t other = {.ss_sp = alternate, .ss_size = sizeof alternate};
  struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
  sigfillset(&action.sa_mask);
  must(sigaltstack(&other, NULL) == 0, 9);
  for (size_t at = 0; at < sizeof signals / sizeof *signals; ++at) must(sigaction(signals[at], &action, NULL) == 0, 9);
  limit(RLIMIT_NOFILE, 0);

  T.vector_state = vector_state();
  reset_registers(T.vector_state);
  T.control = control_state();
  ready.lds_bytes = T.lds_bytes;
  ready.restored_bytes = keep_regions();
  must(mprotect(&trusted, sizeof trusted, PROT_READ) == 0, 10);
  must(write(CHANNEL, &ready, sizeof ready) == sizeof ready, 10);
  forbid_everything_else();
  aaco_reply = (struct reply){.kind = SHUT_IN};
  aaco_turn();
}
