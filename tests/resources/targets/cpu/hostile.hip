// What a kernel could do that means harm, one thing for each `mode`. The tests build it past every guard of its object,
// so that it even knows the names inside its worker: what holds then is the worker and its parent alone.
#include <hip/hip_runtime.h>

struct hostile_request { unsigned long long nonce; unsigned int rest[8]; unsigned long long value[64]; };
struct hostile_reply {
  unsigned long long nonce;
  unsigned int kind, control, lds_overrun, signal;
  unsigned long long address;
  unsigned int detail, write;
};
extern "C" {
__device__ void aaco_turn();
__device__ void aaco_wrote();
__device__ int* __errno_location();
extern hostile_request aaco_request;
extern hostile_reply aaco_reply;
}

__device__ static int& errno_of_the_library() { return *__errno_location(); }

#if defined(__x86_64__)
enum { WRITE = 1, MMAP = 9, MPROTECT = 10, SIGACTION = 13, SIGALTSTACK = 131, CLONE = 56, FORK = 57, KILL = 62 };
enum { OPENAT = 257, EXIT_GROUP = 231, PRCTL = 157, PTRACE = 101, READ = 0, THREAD = 0x10f00 };
__device__ static long raw(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) {
  register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
  __asm__ volatile("syscall"
                   : "+a"(number)
                   : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return number;
}
__device__ static void set_control(unsigned int mxcsr) { __asm__ volatile("ldmxcsr %0" : : "m"(mxcsr)); }
__device__ static void flush_to_zero() { set_control(0x9fc0); }
__device__ static void round_up() { set_control(0x5f80); }
__device__ static void x87_precision() {
  unsigned short word = 0x7f;
  __asm__ volatile("fldcw %0" : : "m"(word));
}
__device__ static void read_time() { __asm__ volatile("rdtsc" : : : "eax", "edx"); }
__device__ static void old_call() { __asm__ volatile("int $0x80" : : "a"(20) : "memory"); }
__device__ static void strange_call() { raw(0x40000000 + WRITE, 3, 0, 0); }
__device__ static void backwards() { __asm__ volatile("std"); }
__device__ static float kept_in_a_register(float next) {
  float before;
  __asm__ volatile("movd %%mm3, %0\n\tmovd %1, %%mm3\n\temms" : "=&r"(before) : "r"(next));
  return before;
}
#else
enum { WRITE = 64, MMAP = 222, MPROTECT = 226, SIGACTION = 134, SIGALTSTACK = 132, CLONE = 220, FORK = 220, KILL = 129 };
enum { OPENAT = 56, EXIT_GROUP = 94, PRCTL = 167, PTRACE = 117, READ = 63, THREAD = 0x10f00 };
__device__ static long raw(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) {
  register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
  register long x3 __asm__("x3") = d, x4 __asm__("x4") = e, x5 __asm__("x5") = f;
  __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
  return x0;
}
__device__ static void set_control(unsigned long fpcr) { __asm__ volatile("msr fpcr, %0" : : "r"(fpcr)); }
__device__ static void flush_to_zero() { set_control(1ul << 24); }
__device__ static void round_up() { set_control(1ul << 22); }
__device__ static void x87_precision() { set_control(1ul << 25); }
__device__ static void read_time() { raw(KILL, 0, 0); }
__device__ static void old_call() { raw(KILL, 0, 0); }
__device__ static void strange_call() { raw(KILL, 0, 0); }
__device__ static void backwards() {}
__device__ static float kept_in_a_register(float next) {
  float before;
  __asm__ volatile("mov %w0, v31.s[3]\n\tmov v31.s[3], %w1" : "=&r"(before) : "r"(next));
  return before;
}
#endif

__device__ static __attribute__((noinline)) int deeper(volatile int* from) {
  volatile int own[1024];
  own[0] = from[0] + 1;
  return deeper(own) + own[1];
}
__device__ static __attribute__((noinline)) void smash(long with) {
  volatile long* own = static_cast<volatile long*>(__builtin_frame_address(0));
  for (int at = 0; at < 64; ++at) own[at] = with;
}

__global__ void hostile(const float* in, float* out, int n, int mode) {
  static int calls = 0;
  const int item = blockIdx.x * blockDim.x + threadIdx.x;
  if (item == 0) {
    volatile float* open = const_cast<float*>(in);
    switch (mode) {
      case 1: out[n] = 1.0f; break;
      case 2: out[-1] = 1.0f; break;
      case 3: out[0] = *static_cast<const volatile float*>(in + n); break;
      case 4: open[0] = 7.0f; break;
      case 5: raw(EXIT_GROUP, 0); break;
      case 6: raw(KILL, 0, 9); break;
      case 7: for (;;) __asm__ volatile(""); break;
      case 8: raw(FORK, 17); break;
      case 9: raw(CLONE, THREAD); break;
      case 10: raw(MMAP, 0, 1l << 40, 3, 0x22, -1, 0); break;
      case 11: flush_to_zero(); break;
      case 12: round_up(); break;
      case 13: x87_precision(); break;
      case 14: raw(SIGACTION, 11, 0, 0, 8); break;
      case 15: { volatile int own = 0; out[0] = deeper(&own); break; }
      case 16: smash(0x41414141414141l); break;
      case 17: raw(MPROTECT, reinterpret_cast<long>(in) & ~4095l, 4096, 3); break;
      case 18: raw(OPENAT, -100, reinterpret_cast<long>("/etc/passwd"), 0); break;
      case 19: raw(WRITE, 3, reinterpret_cast<long>(&aaco_reply), sizeof aaco_reply); break;
      case 20: raw(READ, 3, reinterpret_cast<long>(&aaco_request), sizeof aaco_request); break;
      case 21: read_time(); break;
      case 22: old_call(); break;
      case 23: strange_call(); break;
      case 24: raw(SIGALTSTACK, 0, 0); break;
      case 25: __builtin_trap(); break;
      case 26: aaco_reply = {aaco_request.nonce, 1, 0, 0, 0, 0, 0, 0}; aaco_turn(); break;
      case 27: aaco_reply = {aaco_request.nonce + 1, 1, 0, 0, 0, 0, 0, 0}; aaco_turn(); break;
      case 28: flush_to_zero(); aaco_reply = {aaco_request.nonce, 1, 0, 0, 0, 0, 0, 0}; aaco_turn(); break;
      case 29: aaco_wrote(); break;
      case 30: out[0] = static_cast<float>(calls++); return;
      case 31: backwards(); break;
      case 32: { volatile int nothing = 0; out[0] = static_cast<float>(n / nothing); break; }
      case 33: raw(PRCTL, 22, 0, 0); break;
      case 34: aaco_request.nonce = 0; break;
      case 35: *reinterpret_cast<volatile long*>(0x123) = 1; break;
      case 36: for (int at = 0; at < 64; ++at) aaco_request.value[at] = 0; break;
      case 37: {
        volatile float near = 0.0f;
        volatile float* far = &near - 30000;
        out[0] = *far;
        *far = 5.0f;
        return;
      }
      case 38: {
        volatile float* near_the_top = reinterpret_cast<volatile float*>(0xc00050000 - 3800);
        out[0] = *near_the_top;
        *near_the_top = 5.0f;
        return;
      }
      case 39: out[0] = kept_in_a_register(5.0f); return;
      case 40: out[0] = static_cast<float>(errno_of_the_library()); errno_of_the_library() = 5; return;
    }
  }
  if (item < n && mode != 30 && (mode < 37 || mode > 40)) out[item] = 2.0f * in[item];
}
