/* Marks that a program sets of itself, for `aaco record`: C99 and C++, this header alone, no library.
 *
 *     for (int step = 0; step < steps; step++) {
 *         aaco_iteration_begin();
 *         aaco_phase_begin("prefill");
 *         ...
 *         aaco_phase_end();
 *         aaco_iteration_end();
 *     }
 *
 * `aaco record` names a folder in the environment variable AACO_MARKS; each process that marks leaves one file there.
 * Without the variable a mark is a load and a branch. Threads may mark at once, and a forked child has a file of its
 * own. A name is at most 255 bytes of UTF-8; a process has at most 3,072 names, and further ones are marked without.
 * The file's layout is described in mark.py beside this header. Linux, GCC or Clang; with -std=c99 also -D_GNU_SOURCE.
 */
#ifndef AACO_MARK_H
#define AACO_MARK_H

#if defined(__STRICT_ANSI__) && !defined(_GNU_SOURCE)
#error "aaco_mark.h needs POSIX: compile with -std=gnu99, or with -D_GNU_SOURCE"
#endif
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "aaco_mark.h writes little endian alone"
#endif

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

#define AACO_MARK_STEP_BYTES_ 65536u /* the file grows by so much, 2,048 slots */
#define AACO_MARK_STEPS_ 32768u      /* at most 2 GiB, 67 million marks */
#define AACO_MARK_NAMES_ 4096u       /* places in the table of names, of which three quarters are used */
#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

struct aaco_mark_record_ {
    int64_t time_ns;
    uint32_t thread; /* of a name its length */
    uint16_t kind;
    uint16_t name;
    uint64_t zero[2];
};

struct aaco_mark_header_ {
    char magic[8];
    uint32_t version, process;
    int64_t monotonic_ns, realtime_ns;
    uint32_t error, zero[7];
};

struct aaco_mark_name_ {
    uint16_t number;
    char text[256];
};

/* It lies in memory that the kernel wipes in a forked child, where `process` is then 0. */
struct aaco_mark_file_ {
    uint32_t process, ended;
    uint64_t next;
    uint32_t names_taken;
    char path[PATH_MAX];
    struct aaco_mark_record_ *steps[AACO_MARK_STEPS_];
    struct aaco_mark_name_ *names[AACO_MARK_NAMES_];
};

/* One of the whole program or library, from however many files of it the header is included. */
__attribute__((weak, visibility("hidden"))) struct aaco_mark_file_ *aaco_mark_current_ = NULL;
__attribute__((weak, visibility("hidden"))) int aaco_mark_is_off_ = 0;
__attribute__((weak, visibility("hidden"))) int aaco_mark_is_not_wiped_ = 0;

static inline int64_t aaco_mark_clock_(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline struct aaco_mark_record_ *aaco_mark_step_(struct aaco_mark_file_ *file, uint64_t number)
{
    struct aaco_mark_record_ *expected = NULL, *step;
    int descriptor, error;
    if (number >= AACO_MARK_STEPS_)
        error = EFBIG;
    else if ((step = __atomic_load_n(&file->steps[number], __ATOMIC_ACQUIRE)) != NULL)
        return step;
    else if ((descriptor = open(file->path, O_RDWR | O_CLOEXEC)) < 0) /* none is kept: a program may close them all */
        error = errno;
    else {
        off_t at = (off_t)number * AACO_MARK_STEP_BYTES_;
        void *mapped = MAP_FAILED;
        /* The place on the disk is taken at once: a full one would else be a SIGBUS. */
        error = posix_fallocate(descriptor, at, AACO_MARK_STEP_BYTES_);
        if (!error) {
            mapped = mmap(NULL, AACO_MARK_STEP_BYTES_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, at);
            error = mapped == MAP_FAILED ? errno : 0;
        }
        close(descriptor);
        if (!error) {
            step = (struct aaco_mark_record_ *)mapped;
            if (__atomic_compare_exchange_n(&file->steps[number], &expected, step, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
                return step;
            munmap(mapped, AACO_MARK_STEP_BYTES_); /* another thread was faster */
            return expected;
        }
    }
    __atomic_store_n(&file->ended, 1u, __ATOMIC_RELAXED);
    if (file->steps[0] != NULL)
        ((struct aaco_mark_header_ *)(void *)file->steps[0])->error = (uint32_t)error;
    return NULL;
}

/* The file of this process, made now; NULL where it cannot be: a program does not fail because it cannot be marked. */
static inline struct aaco_mark_file_ *aaco_mark_open_(struct aaco_mark_file_ *seen)
{
    const char *folder = getenv("AACO_MARKS");
    struct aaco_mark_file_ *file;
    struct aaco_mark_header_ *header;
    int64_t start;
    int descriptor;
    void *mapped = MAP_FAILED;
    if (folder != NULL && *folder != '\0')
        mapped = mmap(NULL, sizeof *file, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) {
        __atomic_store_n(&aaco_mark_is_off_, 1, __ATOMIC_RELAXED);
        return NULL;
    }
    file = (struct aaco_mark_file_ *)mapped;
    if (madvise(mapped, sizeof *file, MADV_WIPEONFORK) != 0)
        aaco_mark_is_not_wiped_ = 1; /* a kernel before 4.14: each mark asks for the process */
    file->next = 2;
    do { /* until no other thread begins in the same nanosecond */
        start = aaco_mark_clock_(CLOCK_MONOTONIC);
        descriptor = -1;
        errno = ENAMETOOLONG;
        if (snprintf(file->path, sizeof file->path, "%s/%ld-%lld.marks", folder, (long)getpid(), (long long)start) <
            (int)sizeof file->path)
            descriptor = open(file->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    } while (descriptor < 0 && errno == EEXIST);
    if (descriptor < 0 || close(descriptor) != 0 || aaco_mark_step_(file, 0) == NULL) {
        __atomic_store_n(&aaco_mark_is_off_, 1, __ATOMIC_RELAXED);
        munmap(mapped, sizeof *file);
        return NULL;
    }
    header = (struct aaco_mark_header_ *)(void *)file->steps[0];
    memcpy(header->magic, "AACOMARK", 8);
    header->version = 1;
    header->process = (uint32_t)getpid();
    header->monotonic_ns = start;
    header->realtime_ns = aaco_mark_clock_(CLOCK_REALTIME);
    file->process = header->process;
    if (__atomic_compare_exchange_n(&aaco_mark_current_, &seen, file, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return file;
    unlink(file->path); /* another thread was faster */
    munmap(file->steps[0], AACO_MARK_STEP_BYTES_);
    munmap(mapped, sizeof *file);
    return seen;
}

static inline struct aaco_mark_file_ *aaco_mark_file_(void)
{
    struct aaco_mark_file_ *file;
    if (__atomic_load_n(&aaco_mark_is_off_, __ATOMIC_RELAXED))
        return NULL;
    file = __atomic_load_n(&aaco_mark_current_, __ATOMIC_ACQUIRE);
    if (file == NULL || file->process == 0 || (aaco_mark_is_not_wiped_ && file->process != (uint32_t)getpid()))
        file = aaco_mark_open_(file);
    return file == NULL || __atomic_load_n(&file->ended, __ATOMIC_RELAXED) ? NULL : file;
}

static inline struct aaco_mark_record_ *aaco_mark_slot_(struct aaco_mark_file_ *file, uint64_t slot)
{
    struct aaco_mark_record_ *step = NULL;
    if (slot / 2048 < AACO_MARK_STEPS_)
        step = __atomic_load_n(&file->steps[slot / 2048], __ATOMIC_ACQUIRE);
    if (step == NULL)
        step = aaco_mark_step_(file, slot / 2048);
    return step == NULL ? NULL : step + slot % 2048;
}

/* Write a name's definition; its number, or 0 for none. */
static inline uint16_t aaco_mark_define_(struct aaco_mark_file_ *file, const char *text)
{
    size_t length = strlen(text), at;
    uint32_t taken = __atomic_fetch_add(&file->names_taken, 1u, __ATOMIC_RELAXED);
    uint64_t slot = __atomic_fetch_add(&file->next, (uint64_t)(1 + (length + 31) / 32), __ATOMIC_RELAXED);
    struct aaco_mark_record_ *record = aaco_mark_slot_(file, slot);
    if (record == NULL || taken >= 0xffffu)
        return 0;
    record->thread = (uint32_t)length;
    record->name = (uint16_t)(taken + 1);
    __atomic_store_n(&record->kind, (uint16_t)6, __ATOMIC_RELEASE); /* before the text, else that is taken for marks */
    for (at = 0; at < length; at += 32) {
        if ((record = aaco_mark_slot_(file, ++slot)) == NULL)
            return 0;
        memcpy((void *)record, text + at, length - at < 32 ? length - at : 32);
    }
    return (uint16_t)(taken + 1);
}

static inline uint16_t aaco_mark_name_(struct aaco_mark_file_ *file, const char *name)
{
    struct aaco_mark_name_ *known, *made, *expected;
    uint32_t hash = 2166136261u, place, tries;
    char text[256];
    size_t length = strnlen(name, 255), i;
    memcpy(text, name, length);
    text[length] = '\0';
    for (i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)text[i]) * 16777619u; /* FNV-1a */
    place = hash % AACO_MARK_NAMES_;
    for (tries = 0; tries < AACO_MARK_NAMES_; tries++, place = (place + 1) % AACO_MARK_NAMES_) {
        known = __atomic_load_n(&file->names[place], __ATOMIC_ACQUIRE);
        if (known == NULL) {
            if (__atomic_load_n(&file->names_taken, __ATOMIC_RELAXED) >= AACO_MARK_NAMES_ / 4 * 3 ||
                (made = (struct aaco_mark_name_ *)malloc(sizeof *made)) == NULL)
                return 0;
            memcpy(made->text, text, length + 1);
            made->number = aaco_mark_define_(file, text);
            expected = NULL;
            if (__atomic_compare_exchange_n(
                    &file->names[place], &expected, made, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
                return made->number;
            free(made);
            known = expected;
        }
        if (strcmp(known->text, text) == 0)
            return known->number;
    }
    return 0;
}

static inline void aaco_mark_set_(uint16_t kind, const char *name)
{
    static __thread struct aaco_mark_file_ *of;
    static __thread uint32_t thread;
    struct aaco_mark_file_ *file = aaco_mark_file_();
    struct aaco_mark_record_ *record;
    int64_t now = 0;
    uint16_t number;
    if (file == NULL)
        return;
    if (kind == 2 || kind == 4)
        now = aaco_mark_clock_(CLOCK_MONOTONIC); /* of an end first, of a beginning last */
    number = name == NULL ? (uint16_t)0 : aaco_mark_name_(file, name);
    if (of != file) { /* a forked child has another one */
        thread = (uint32_t)syscall(SYS_gettid);
        of = file;
    }
    record = aaco_mark_slot_(file, __atomic_fetch_add(&file->next, (uint64_t)1, __ATOMIC_RELAXED));
    if (record == NULL)
        return;
    record->thread = thread;
    record->name = number;
    record->time_ns = now ? now : aaco_mark_clock_(CLOCK_MONOTONIC);
    __atomic_store_n(&record->kind, kind, __ATOMIC_RELEASE); /* last: what a kill leaves half has none */
}

static inline void aaco_iteration_begin(void) { aaco_mark_set_(1, NULL); }
static inline void aaco_iteration_end(void) { aaco_mark_set_(2, NULL); }
static inline void aaco_phase_begin(const char *name) { aaco_mark_set_(3, name); }
static inline void aaco_phase_end(void) { aaco_mark_set_(4, NULL); }
static inline void aaco_mark(const char *name) { aaco_mark_set_(5, name); }

#ifdef __cplusplus
}
#endif
#endif
