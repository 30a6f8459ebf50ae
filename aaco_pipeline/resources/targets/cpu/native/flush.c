/* Writes a range of memory back and out of all caches, of all cores: the lines are shared with the kernel's process. */
#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

__attribute__((target("clflushopt"))) static void flush_unordered(const char *at, const char *end) {
  for (; at < end; at += 64) _mm_clflushopt((void *)at);
}

/* 1 where it was done, 0 where this machine has no such instruction for programs. */
int aaco_flush(const char *start, size_t bytes) {
  static int unordered = -1;
  const char *at = (const char *)((uintptr_t)start & ~(uintptr_t)63), *end = start + bytes;
  if (unordered < 0) {
    unsigned a, b, c, d;
    unordered = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & (1u << 23)) != 0;
  }
  _mm_mfence();
  if (unordered)
    flush_unordered(at, end);
  else
    for (; at < end; at += 64) _mm_clflush(at);
  _mm_mfence();
  return 1;
}
#elif defined(__aarch64__)
int aaco_flush(const char *start, size_t bytes) {
  uint64_t type;
  __asm__ volatile("mrs %0, ctr_el0" : "=r"(type));
  const uintptr_t line = (uintptr_t)4 << ((type >> 16) & 15);
  for (uintptr_t at = (uintptr_t)start & ~(line - 1); at < (uintptr_t)start + bytes; at += line)
    __asm__ volatile("dc civac, %0" : : "r"(at) : "memory");
  __asm__ volatile("dsb ish" : : : "memory");
  return 1;
}
#else
int aaco_flush(const char *start, size_t bytes) {
  (void)start;
  (void)bytes;
  return 0;
}
#endif
