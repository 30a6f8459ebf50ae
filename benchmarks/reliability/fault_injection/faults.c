/* Counts the calls by which a process changes files below one folder, and lets one of them fail, write less, or be the
   last. What to do, and what was done, lies in a file that is mapped and shared with every child: see library.py, which
   has the same layout. The calls themselves are made raw, so that none is counted twice. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
#define PATH 4096
#define NOTED 65536

enum kind { OPEN, WRITE, SYNC, RENAME, LINK, UNLINK, MKDIR, TRUNCATE, SYMLINK, ALLOCATE, COPY, CLOSE, KINDS };
enum mode { PASS, FAIL, SHORT, KILL, TORN };

static struct state {
    int64_t strike; /* the number of the call to strike, from 1; 0 only counts, below 0 does nothing */
    int64_t mode, error;
    _Atomic int64_t calls;
    int64_t struck; /* the number of the call that was struck */
    char folder[PATH], path[PATH], kinds[NOTED]; /* of the first calls */
} *state;

static long first_call(long number, ...);
static long (*raw)(long, ...) = first_call;

/* Find libc's syscall when something is called for the first time, which may be before `begin`. */
static long first_call(long number, ...) {
    long a[6];
    va_list rest;
    va_start(rest, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(rest, long);
    va_end(rest);
    raw = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    return raw(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

__attribute__((constructor)) static void begin(void) {
    const char *file = getenv("AACO_FAULTS");
    int fd = file == NULL ? -1 : (int)raw(SYS_openat, AT_FDCWD, file, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0)
        return;
    void *mapped = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    raw(SYS_close, fd);
    state = mapped == MAP_FAILED ? NULL : mapped;
}

static int is_below(const char *path) {
    size_t length = strlen(state->folder);
    return strncmp(path, state->folder, length) == 0 && path[length] == '/';
}

static int descriptor_path(int fd, char *path) {
    char link[32] = "/proc/self/cwd";
    if (fd != AT_FDCWD)
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = raw(SYS_readlinkat, AT_FDCWD, link, path, PATH - 1);
    path[length < 0 ? 0 : length] = 0;
    return length > 0;
}

/* Count a call on a path that is ours, and say what becomes of it. */
static enum mode strike(enum kind kind, const char *path) {
    if (!is_below(path))
        return PASS;
    int64_t number = ++state->calls;
    if (number <= NOTED)
        state->kinds[number - 1] = (char)kind;
    if (number != state->strike)
        return PASS;
    state->struck = number;
    strncpy(state->path, path, PATH - 1);
    if (state->mode == KILL || (state->mode == TORN && kind != WRITE))
        raw(SYS_kill, (long)getpid(), SIGKILL);
    if (state->mode == SHORT && kind != WRITE)
        return PASS;
    errno = (int)state->error;
    return (enum mode)state->mode;
}

static int is_off(void) { return state == NULL || state->strike < 0; }

static enum mode on_descriptor(enum kind kind, int fd) {
    int before = errno;
    char path[PATH];
    enum mode mode = is_off() || !descriptor_path(fd, path) ? PASS : strike(kind, path);
    if (mode != FAIL)
        errno = before;
    return mode;
}

static enum mode on_path(enum kind kind, int folder, const char *path) {
    int before = errno;
    char whole[2 * PATH] = "";
    if (is_off() || path == NULL || strlen(path) >= PATH)
        return PASS;
    if (path[0] != '/' && descriptor_path(folder, whole))
        strcat(whole, "/");
    strcat(whole, path);
    whole[PATH - 1] = 0;
    enum mode mode = strike(kind, whole);
    if (mode != FAIL)
        errno = before;
    return mode;
}

static long on_descriptor_do(enum kind kind, long number, long fd, long a, long b, long c, long d, long e) {
    return on_descriptor(kind, (int)fd) == FAIL ? -1 : raw(number, fd, a, b, c, d, e);
}

static long do_open(long folder, const char *path, long flags, long mode) {
    int writes = (flags & (O_ACCMODE | O_CREAT | O_TRUNC)) != 0 && (flags & O_PATH) == 0;
    if (writes && on_path(OPEN, (int)folder, path) == FAIL)
        return -1;
    return raw(SYS_openat, folder, path, flags, mode);
}

static long do_write(long number, long fd, const void *bytes, size_t count, long at) {
    enum mode mode = on_descriptor(WRITE, (int)fd);
    if (mode == FAIL)
        return -1;
    long done = raw(number, fd, bytes, mode == PASS || count < 2 ? count : count / 2, at);
    if (mode == TORN)
        raw(SYS_kill, (long)getpid(), SIGKILL);
    return done;
}

static long do_writev(long number, long fd, const struct iovec *parts, long count, long at, long high, long flags) {
    enum mode mode = on_descriptor(WRITE, (int)fd);
    if (mode == FAIL)
        return -1;
    struct iovec half = count > 0 ? parts[0] : (struct iovec){0};
    half.iov_len = half.iov_len < 2 ? half.iov_len : half.iov_len / 2;
    long done = mode == PASS || count < 1 ? raw(number, fd, parts, count, at, high, flags)
                                          : raw(number, fd, &half, 1, at, high, flags);
    if (mode == TORN)
        raw(SYS_kill, (long)getpid(), SIGKILL);
    return done;
}

static long do_close(long fd) {
    long flags = is_off() ? O_RDONLY : raw(SYS_fcntl, fd, F_GETFL);
    int writes = flags >= 0 && (flags & O_ACCMODE) != O_RDONLY;
    enum mode mode = writes ? on_descriptor(CLOSE, (int)fd) : PASS;
    long done = raw(SYS_close, fd); /* a descriptor is gone, whatever its close says */
    if (mode != FAIL)
        return done;
    errno = (int)state->error;
    return -1;
}

static long do_two(enum kind kind, long number, long from, const char *old, long to, const char *new, long flags) {
    return on_path(kind, (int)to, new) == FAIL ? -1 : raw(number, from, old, to, new, flags);
}

static long do_at(enum kind kind, long number, long folder, const char *path, long argument) {
    return on_path(kind, (int)folder, path) == FAIL ? -1 : raw(number, folder, path, argument);
}

#define OPENED                                                                                                        \
    mode_t mode = 0;                                                                                                   \
    if (flags & (O_CREAT | O_TMPFILE)) {                                                                               \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode = va_arg(rest, mode_t);                                                                                   \
        va_end(rest);                                                                                                  \
    }

API int open(const char *path, int flags, ...) { OPENED return (int)do_open(AT_FDCWD, path, flags, mode); }
API int open64(const char *path, int flags, ...) { OPENED return (int)do_open(AT_FDCWD, path, flags, mode); }
API int openat(int folder, const char *path, int flags, ...) { OPENED return (int)do_open(folder, path, flags, mode); }
API int openat64(int folder, const char *path, int flags, ...) { OPENED return (int)do_open(folder, path, flags, mode); }
API int creat(const char *path, mode_t mode) {
    return (int)do_open(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}
API int creat64(const char *path, mode_t mode) { return creat(path, mode); }

API ssize_t write(int fd, const void *bytes, size_t count) { return do_write(SYS_write, fd, bytes, count, 0); }
API ssize_t pwrite(int fd, const void *bytes, size_t count, off_t at) {
    return do_write(SYS_pwrite64, fd, bytes, count, at);
}
API ssize_t pwrite64(int fd, const void *bytes, size_t count, off_t at) {
    return do_write(SYS_pwrite64, fd, bytes, count, at);
}
API ssize_t writev(int fd, const struct iovec *parts, int count) {
    return do_writev(SYS_writev, fd, parts, count, 0, 0, 0);
}
API ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) {
    return do_writev(SYS_pwritev, fd, parts, count, at, 0, 0);
}
API ssize_t pwritev64(int fd, const struct iovec *parts, int count, off_t at) {
    return do_writev(SYS_pwritev, fd, parts, count, at, 0, 0);
}
API ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t at, int flags) {
    return do_writev(SYS_pwritev2, fd, parts, count, at, 0, flags);
}

API int fsync(int fd) { return (int)on_descriptor_do(SYNC, SYS_fsync, fd, 0, 0, 0, 0, 0); }
API int fdatasync(int fd) { return (int)on_descriptor_do(SYNC, SYS_fdatasync, fd, 0, 0, 0, 0, 0); }
API int syncfs(int fd) { return (int)on_descriptor_do(SYNC, SYS_syncfs, fd, 0, 0, 0, 0, 0); }

API int rename(const char *old, const char *new) {
    return (int)do_two(RENAME, SYS_renameat2, AT_FDCWD, old, AT_FDCWD, new, 0);
}
API int renameat(int from, const char *old, int to, const char *new) {
    return (int)do_two(RENAME, SYS_renameat2, from, old, to, new, 0);
}
API int renameat2(int from, const char *old, int to, const char *new, unsigned flags) {
    return (int)do_two(RENAME, SYS_renameat2, from, old, to, new, flags);
}
API int link(const char *old, const char *new) {
    return (int)do_two(LINK, SYS_linkat, AT_FDCWD, old, AT_FDCWD, new, 0);
}
API int linkat(int from, const char *old, int to, const char *new, int flags) {
    return (int)do_two(LINK, SYS_linkat, from, old, to, new, flags);
}
API int symlink(const char *target, const char *path) { return symlinkat(target, AT_FDCWD, path); }
API int symlinkat(const char *target, int folder, const char *path) {
    return on_path(SYMLINK, folder, path) == FAIL ? -1 : (int)raw(SYS_symlinkat, target, folder, path);
}

API int unlink(const char *path) { return (int)do_at(UNLINK, SYS_unlinkat, AT_FDCWD, path, 0); }
API int rmdir(const char *path) { return (int)do_at(UNLINK, SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR); }
API int unlinkat(int folder, const char *path, int flags) {
    return (int)do_at(UNLINK, SYS_unlinkat, folder, path, flags);
}
API int mkdir(const char *path, mode_t mode) { return (int)do_at(MKDIR, SYS_mkdirat, AT_FDCWD, path, mode); }
API int mkdirat(int folder, const char *path, mode_t mode) {
    return (int)do_at(MKDIR, SYS_mkdirat, folder, path, mode);
}

API int ftruncate(int fd, off_t size) { return (int)on_descriptor_do(TRUNCATE, SYS_ftruncate, fd, size, 0, 0, 0, 0); }
API int ftruncate64(int fd, off_t size) { return ftruncate(fd, size); }
API int truncate(const char *path, off_t size) {
    return on_path(TRUNCATE, AT_FDCWD, path) == FAIL ? -1 : (int)raw(SYS_truncate, path, size);
}
API int truncate64(const char *path, off_t size) { return truncate(path, size); }

API int fallocate(int fd, int mode, off_t at, off_t size) {
    return (int)on_descriptor_do(ALLOCATE, SYS_fallocate, fd, mode, at, size, 0, 0);
}
API int fallocate64(int fd, int mode, off_t at, off_t size) { return fallocate(fd, mode, at, size); }
API int posix_fallocate(int fd, off_t at, off_t size) { return fallocate(fd, 0, at, size) == 0 ? 0 : errno; }
API int posix_fallocate64(int fd, off_t at, off_t size) { return posix_fallocate(fd, at, size); }

API ssize_t copy_file_range(int from, off_t *in, int to, off_t *out, size_t size, unsigned flags) {
    return on_descriptor(COPY, to) == FAIL ? -1 : raw(SYS_copy_file_range, from, in, to, out, size, flags);
}
API ssize_t sendfile(int to, int from, off_t *at, size_t size) {
    return on_descriptor(COPY, to) == FAIL ? -1 : raw(SYS_sendfile, to, from, at, size);
}
API ssize_t sendfile64(int to, int from, off_t *at, size_t size) { return sendfile(to, from, at, size); }

API int close(int fd) { return (int)do_close(fd); }

/* What is asked of the kernel without a name of its own. */
API long syscall(long number, ...) {
    long a[6];
    va_list rest;
    va_start(rest, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(rest, long);
    va_end(rest);
    switch (number) {
    case SYS_openat: return do_open(a[0], (const char *)a[1], a[2], a[3]);
    case SYS_write: case SYS_pwrite64: return do_write(number, a[0], (const void *)a[1], (size_t)a[2], a[3]);
    case SYS_writev: case SYS_pwritev: case SYS_pwritev2:
        return do_writev(number, a[0], (const struct iovec *)a[1], a[2], a[3], a[4], a[5]);
    case SYS_fsync: case SYS_fdatasync: case SYS_syncfs:
        return on_descriptor_do(SYNC, number, a[0], a[1], a[2], a[3], a[4], a[5]);
    case SYS_renameat2: return do_two(RENAME, number, a[0], (const char *)a[1], a[2], (const char *)a[3], a[4]);
    case SYS_linkat: return do_two(LINK, number, a[0], (const char *)a[1], a[2], (const char *)a[3], a[4]);
    case SYS_symlinkat: return symlinkat((const char *)a[0], (int)a[1], (const char *)a[2]);
    case SYS_unlinkat: return do_at(UNLINK, number, a[0], (const char *)a[1], a[2]);
    case SYS_mkdirat: return do_at(MKDIR, number, a[0], (const char *)a[1], a[2]);
    case SYS_ftruncate: return on_descriptor_do(TRUNCATE, number, a[0], a[1], 0, 0, 0, 0);
    case SYS_fallocate: return on_descriptor_do(ALLOCATE, number, a[0], a[1], a[2], a[3], 0, 0);
    case SYS_copy_file_range:
        return on_descriptor(COPY, (int)a[2]) == FAIL ? -1 : raw(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    case SYS_sendfile: return on_descriptor(COPY, (int)a[0]) == FAIL ? -1 : raw(number, a[0], a[1], a[2], a[3]);
    case SYS_close: return do_close(a[0]);
    default: return raw(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    }
}
