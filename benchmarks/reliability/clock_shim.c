/* libfaketime 0.9.10 turns a sleep until a point of a clock that it does not fake into an invalid one. It goes straight
   to the kernel here; the shim is loaded before libfaketime. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left) {
    return syscall(SYS_clock_nanosleep, clock, flags, until, left) == 0 ? 0 : errno;
}
