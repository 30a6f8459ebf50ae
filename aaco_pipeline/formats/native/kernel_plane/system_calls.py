"""What a thread that blocks in a system call waits for, by the call's number: of x86-64, and of the common table.

The numbers are the kernel's: `arch/x86/entry/syscalls/syscall_64.tbl` and `scripts/syscall.tbl`, which arm64 uses.
"""

from collections.abc import Mapping
from typing import Final

#: By machine: the numbers of calls by their names.
_NUMBERS: Final[Mapping[str, Mapping[str, int]]] = {
    "x86_64": {
        **{"read": 0, "write": 1, "poll": 7, "pread64": 17, "pwrite64": 18, "readv": 19, "writev": 20, "select": 23},
        **{"nanosleep": 35, "sendto": 44, "recvfrom": 45, "sendmsg": 46, "recvmsg": 47, "wait4": 61, "fsync": 74},
        **{"fdatasync": 75, "sync": 162, "futex": 202, "clock_nanosleep": 230, "epoll_wait": 232, "ppoll": 271},
        **{"sync_file_range": 277, "epoll_pwait": 281, "preadv": 295, "pwritev": 296, "syncfs": 306, "ioctl": 16},
        **{"futex_waitv": 449, "msync": 26, "mmap": 9, "munmap": 11, "mprotect": 10, "madvise": 28, "brk": 12},
        **{"sched_yield": 24, "exit": 60, "exit_group": 231, "pselect6": 270, "io_uring_enter": 426},
    },
    "aarch64": {
        **{"ioctl": 29, "read": 63, "write": 64, "readv": 65, "writev": 66, "pread64": 67, "pwrite64": 68},
        **{"preadv": 69, "pwritev": 70, "pselect6": 72, "ppoll": 73, "sync": 81, "fsync": 82, "fdatasync": 83},
        **{"sync_file_range": 84, "exit": 93, "exit_group": 94, "futex": 98, "nanosleep": 101, "clock_nanosleep": 115},
        **{"sched_yield": 124, "sendto": 206, "recvfrom": 207, "sendmsg": 211, "recvmsg": 212, "brk": 214},
        **{"munmap": 215, "mmap": 222, "mprotect": 226, "msync": 227, "madvise": 233, "wait4": 260, "syncfs": 267},
        **{"epoll_pwait": 22, "futex_waitv": 449, "io_uring_enter": 426},
    },
}


def names_of(machine: str) -> Mapping[int, str]:
    """The names of calls by their numbers; empty for another machine, whose calls keep their numbers."""
    return {number: name for name, number in _NUMBERS.get(machine, {}).items()}
