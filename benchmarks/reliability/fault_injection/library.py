"""The preloaded library that counts and strikes file-system calls, and the comparison of its counts with strace."""

import ctypes
import mmap
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_SOURCE: Final = Path(__file__).with_name("faults.c")
_PATH_BYTES: Final = 4096
_NOTED: Final = 65536
STATE_FILE: Final = "AACO_FAULTS"
FOLDER: Final = "AACO_FAULTS_FOLDER"
#: In the order of the source's `enum kind`.
KINDS: Final = (
    *("open", "write", "sync", "rename", "link", "unlink", "mkdir", "truncate", "symlink", "allocate", "copy", "close"),
)


class State(ctypes.Structure):
    """Memory shared with the library, laid out as its `struct state`."""

    _fields_ = (
        ("strike", ctypes.c_int64),
        ("mode", ctypes.c_int64),
        ("error", ctypes.c_int64),
        ("calls", ctypes.c_int64),
        ("struck", ctypes.c_int64),
        ("folder", ctypes.c_char * _PATH_BYTES),
        ("path", ctypes.c_char * _PATH_BYTES),
        ("kinds", ctypes.c_uint8 * _NOTED),
    )

    strike: int
    mode: int
    error: int
    calls: int
    struck: int
    folder: bytes
    path: bytes

    def arm(self, strike: int, mode: int = 0, error: int = 0) -> None:
        """Begin to count from 0, and strike the call of this number; 0 strikes none."""
        self.mode, self.error, self.calls, self.struck, self.path = mode, error, 0, 0, b""
        self.strike = strike

    def disarm(self) -> None:
        """Count and strike nothing more."""
        self.strike = -1

    def noted(self) -> list[str]:
        """The kind of each call that was counted, in their order."""
        return [KINDS[kind] for kind in self.kinds[: self.calls]]

    def met(self) -> str:
        """The call that was struck, with its path in the folder; "" when none was."""
        if self.struck == 0:
            return ""
        return f"{self.noted()[self.struck - 1]} {os.path.relpath(self.path, self.folder).decode(errors='replace')}"


def build(folder: Path) -> Path | None:
    """The library, made in `folder`; None without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    library = folder / "faults.so"
    command = [
        compiler,
        "-shared",
        "-fPIC",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-o",
        str(library),
        str(_SOURCE),
        "-ldl",
    ]
    subprocess.run(command, check=True)
    return library


def environment(library: Path, folder: Path) -> dict[str, str]:
    """The environment of a process whose calls below `folder`/place are counted; the cache lies there, too."""
    place = folder / "place"
    file = folder / "state"
    file.write_bytes(bytes(State(strike=-1, folder=os.fsencode(place))))
    own = {"LD_PRELOAD": str(library), STATE_FILE: str(file), FOLDER: str(folder), "AACO_CACHE": str(place / "cache")}
    return {**os.environ, **own, "POLARS_MAX_THREADS": "1"}


def shared_state() -> State:
    """The state of this process, which its library has mapped as well."""
    with Path(os.environ[STATE_FILE]).open("r+b") as file:
        return State.from_buffer(mmap.mmap(file.fileno(), ctypes.sizeof(State)))


_KINDS: Final = {
    **dict.fromkeys(("open", "openat", "creat"), "open"),
    **dict.fromkeys(("write", "pwrite64", "writev", "pwritev", "pwritev2"), "write"),
    **dict.fromkeys(("fsync", "fdatasync", "syncfs"), "sync"),
    **dict.fromkeys(("rename", "renameat", "renameat2"), "rename"),
    **dict.fromkeys(("link", "linkat"), "link"),
    **dict.fromkeys(("unlink", "unlinkat", "rmdir"), "unlink"),
    **dict.fromkeys(("mkdir", "mkdirat"), "mkdir"),
    **dict.fromkeys(("truncate", "ftruncate"), "truncate"),
    **dict.fromkeys(("symlink", "symlinkat"), "symlink"),
    "fallocate": "allocate",
    **dict.fromkeys(("copy_file_range", "sendfile"), "copy"),
    "close": "close",
}
_BY_DESCRIPTOR: Final = ("write", "sync", "allocate", "close")
_LINE: Final = re.compile(r"(\d+) +(.*)")
_RESUMED: Final = re.compile(r"<\.\.\. \w+ resumed>(.*)")
_CALL: Final = re.compile(r"(\w+)\((.*)")
_DESCRIPTOR: Final = re.compile(r"(\d+)<([^>]*)>")
_PATH: Final = re.compile(r'(?:(?:AT_FDCWD|\d+)<([^>]*)>, )?"((?:[^"\\]|\\.)*)"')
_WRITES: Final = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC")
_OPENED: Final = re.compile(r"= (\d+)<([^>]*)>")


def has_strace() -> bool:
    """Say on standard error where there is none."""
    if shutil.which("strace") is None:
        print("skipped: there is no strace to compare with", file=sys.stderr)
        return False
    return True


def traced(work: Callable[[], object], place: Path, log: Path) -> Counter[str]:
    """Do `work` in a fork under strace; the calls below `place` that change files, by kind."""
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
        work()
        os._exit(0)
    os.waitpid(child, os.WUNTRACED)
    asked = ["-f", "-y", "-qq", "-s", "4096", "-e", f"trace={','.join(_KINDS)}", "-o", str(log)]
    with subprocess.Popen(["strace", *asked, "-p", str(child)]) as strace:
        while "TracerPid:\t0" in Path(f"/proc/{child}/status").read_text():
            time.sleep(0.01)
        os.kill(child, signal.SIGCONT)
        _, status = os.waitpid(child, 0)
        strace.wait()
    with suppress(ChildProcessError):
        while True:
            os.wait()
    if status != 0:
        raise RuntimeError(f"under strace it ended with status {status}")
    return Counter(_seen(_calls(log.read_text(errors="replace").splitlines()), f"{place}/"))


def _calls(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Each call's name, and its arguments with what it returned; what other threads interrupted is one again."""
    begun: dict[str, str] = {}
    for line in lines:
        numbered = _LINE.fullmatch(line)
        if numbered is None:
            continue
        thread, text = numbered.groups()
        if (resumed := _RESUMED.fullmatch(text)) is not None:
            text = begun.pop(thread) + resumed[1]
        elif text.endswith(" <unfinished ...>"):
            begun[thread] = text.removesuffix(" <unfinished ...>")
            continue
        if (call := _CALL.match(text)) is not None and call[1] in _KINDS:
            yield call[1], call[2]


def _seen(calls: Iterable[tuple[str, str]], place: str) -> Iterator[str]:
    """The kinds of the calls that change files below a place."""
    writable: set[tuple[str, str]] = set()
    for name, text in calls:
        kind, held = _KINDS[name], _DESCRIPTOR.match(text)
        if kind in _BY_DESCRIPTOR or name == "ftruncate":
            is_ours = held is not None and held[2].startswith(place)
            if is_ours and (kind != "close" or held is None or held.groups() in writable):
                yield kind
            continue
        if kind == "copy":
            to = _DESCRIPTOR.findall(text)[1 if name == "copy_file_range" else 0]
            if to[1].startswith(place):
                yield kind
            continue
        folder, path = _PATH.findall(text)[-1]
        whole = path if path.startswith("/") else f"{folder}/{path}"
        if kind == "open":
            opened, writes = _OPENED.search(text), _WRITES.search(text) is not None
            if opened is not None:
                (writable.add if writes else writable.discard)((opened[1], opened[2]))
            if not writes:
                continue
        if whole.startswith(place):
            yield kind
