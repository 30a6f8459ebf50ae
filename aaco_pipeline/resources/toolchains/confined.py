"""A compiler's own process before it becomes the compiler: limits, no new privileges, no network, few files.

Run by path with `python -I -S`, so that it starts fast and imports nothing of this package but one file by its path.
Arguments: seconds of CPU time, bytes of memory, bytes of a file, what it may reach as JSON, and the command. What the
machine does not grant (a network of its own, Landlock) is left; where it has Landlock, nothing runs without.
"""

import ctypes
import json
import os
import resource
import runpy
import sys

_SET_PDEATHSIG, _KILL = 1, 9
_SET_NO_NEW_PRIVS = 38
_NEW_USER, _NEW_NET = 0x10000000, 0x40000000
_MOST_PROCESSES = 4096


def main() -> None:
    """Shut this process in and become the command."""
    seconds, memory, file = (int(word) for word in sys.argv[1:4])
    libc = ctypes.CDLL(None)
    libc.prctl(_SET_PDEATHSIG, _KILL, 0, 0, 0)
    libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if libc.unshare(_NEW_NET) != 0:
        libc.unshare(_NEW_USER | _NEW_NET)
    reach = json.loads(sys.argv[4])
    if reach is not None:
        landlock = runpy.run_path(reach["landlock"])
        refused = landlock["only_beneath"](reach["readable"], reach["writable"], reach["runnable"])
        if refused is not None and landlock["lacking"]() is None:
            sys.exit(f"cannot be confined: {refused}")
    for what, most in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, file),
        (resource.RLIMIT_NPROC, _MOST_PROCESSES),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(what)[1]
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        # A second between the limits on CPU time: SIGXCPU, which says what it is, and not SIGKILL.
        beyond = least + 1 if what == resource.RLIMIT_CPU and least != hard else least
        resource.setrlimit(what, (least, beyond))
    os.execve(sys.argv[5], sys.argv[5:], dict(os.environ))


main()
