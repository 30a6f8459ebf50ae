"""The preloaded library that counts calls to the file system: building it, and what it shares with its processes."""

import ctypes
import mmap
import os
import shutil
import subprocess
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
