"""Run a compiler or another program to its end or a limit: wall clock, CPU time, memory, file size, file access.

No shell is involved. At the end, a limit or an interrupt, the program and all processes that it started are ended.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from aaco_pipeline.resources.confinement import sandbox

#: Folders that the system's compilers, and most others, load from: they contain no user files and no settings.
SYSTEM: Final = tuple(
    map(Path, ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/ld.so.cache", "/etc/alternatives"))
)
#: Files about the machine that compilers read.
MACHINE: Final = tuple(map(Path, ("/dev/urandom", "/proc/cpuinfo", "/proc/meminfo")))
_OF_A_PREFIX: Final = ("bin", "include", "lib", "lib32", "lib64", "libexec", "nvvm", "targets", "share/gcc")
_TRIPLET: Final = "*-*-linux*"
_PROGRAMS: Final = ("cc1plus", "cc1", "collect2", "as", "ld", "lld", "lto1", "lto-wrapper")
_ASK_SECONDS: Final = 30
_LIBRARY: Final = re.compile(r"(?:=>\s+)?(/\S+)\s+\(0x")
_LISTED: Final = re.compile(r"^(?:install|programs|libraries): =?(.*)$", re.MULTILINE)
_INCLUDED: Final = re.compile(r"^ (/.*)$", re.MULTILINE)
_ITSELF: Final = re.compile(
    r"^(?:COLLECT_GCC=|InstalledDir: |Selected GCC installation: |#\$ _HERE_=)(/.*)$", re.MULTILINE
)


@cache
def parts_of(program: str) -> tuple[Path, ...]:
    """Return the files and folders, besides the system's, that a compiler reads or runs; link-free and sorted."""
    searched = _printed([program, "-print-search-dirs"])
    told = _printed([program, "-v", "-E", "-x", "c++", os.devnull])
    named = [_printed([program, f"-print-prog-name={name}"]).strip() for name in _PROGRAMS]
    folders = [one for line in _LISTED.findall(searched) for one in line.split(os.pathsep)]
    folders += [*_INCLUDED.findall(told), _printed([program, "-print-sysroot"]).strip()]
    programs = [program, *_everywhere(program), *_ITSELF.findall(told), *(one for one in named if one.startswith("/"))]
    found = {Path(one).resolve() for one in folders if one.startswith("/")}
    for one in programs:
        path = Path(one).resolve()
        found |= {path, *prefix_parts(path), *(library.resolve() for library in _libraries(path))}
    own = (one for one in found if not any(one.is_relative_to(folder) for folder in SYSTEM))
    return tuple(sorted(one for one in own if one.exists() and not _is_too_much(one)))


def prefix_parts(program: Path) -> Iterator[Path]:
    """Return the program, header and library folders of a program's installation prefix."""
    prefix = next((one.parent for one in (program, *program.parents) if one.name in ("bin", "lib", "libexec")), None)
    if prefix is None:
        return
    yield from (prefix / name for name in _OF_A_PREFIX)
    yield from prefix.glob(_TRIPLET)


def _everywhere(program: str) -> Iterator[str]:
    """Return every program of that name on PATH: a wrapper such as ccache calls the next one."""
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        if (found := shutil.which(Path(program).name, path=folder)) is not None:
            yield found


def _libraries(program: Path) -> Iterator[Path]:
    """Return the libraries that the loader would load for a program; they may be in other prefixes."""
    if program.is_file():
        listed = _printed([str(program)], {"LD_TRACE_LOADED_OBJECTS": "1"}) if _is_dynamic(program) else ""
        yield from (Path(one) for one in _LIBRARY.findall(listed))


def _is_dynamic(program: Path) -> bool:
    """Return whether the loader would start a file: listing the libraries of any other file would execute it."""
    with program.open("rb") as file:
        beginning = file.read(4096)
    return beginning[:4] == b"\x7fELF" and b"/ld-" in beginning


def _printed(command: Sequence[str], more: dict[str, str] | None = None) -> str:
    """Return a command's output; empty if it fails."""
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", **(more or {})}
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ASK_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return (done.stdout + done.stderr).decode(errors="replace")


def _is_too_much(path: Path) -> bool:
    """Return whether a folder contains a home, or a folder of homes or settings."""
    return any(Path(one).is_relative_to(path) for one in ("/etc", "/home", "/proc", "/root", "/var", Path.home()))


_WAIT_SECONDS: Final = 0.5
#: Becomes the program after setting the limits: a fresh process, because threads rule out code between fork and exec.
_CONFINED: Final = Path(__file__).with_name("confined.py")


@dataclass(frozen=True)
class Limits:
    """Limits of one process: address space, CPU time, and the largest file it may write."""

    memory_bytes: int
    cpu_seconds: int
    file_bytes: int


@dataclass(frozen=True)
class Reach:
    """Files, besides the system's, that a confined process may run or read, and files that it may write.

    The folder that it runs in is always writable.
    """

    runnable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()


def run_limited(
    command: Sequence[str],
    folder: Path,
    *,
    log: Path,
    limit_seconds: float,
    limits: Limits | None = None,
    reach: Reach | None = None,
    environment: Mapping[str, str] | None = None,
) -> int | None:
    """Return the exit status of a command that runs in `folder` and prints to `log`; None if it timed out.

    With `limits`, they apply to each of its processes, which gain no new privileges and, if the machine supports this,
    have no network; `command` must then name its program by an absolute path. With `reach` as well, they can access no
    other files if the kernel has Landlock (`sandbox.why_no_landlock`). Raises OSError if it cannot be started.
    """
    if limits is not None:
        stated = (limits.cpu_seconds, limits.memory_bytes, limits.file_bytes)
        rules = json.dumps(None if reach is None else _rules(reach, folder))
        command = [sys.executable, "-I", "-S", str(_CONFINED), sandbox.__file__, *map(str, stated), rules, *command]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=None if environment is None else dict(environment),
            start_new_session=True,
        )
        try:
            return _ended(process, limit_seconds)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def ending(status: int) -> str:
    """Describe a status that is not a success."""
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"


def _rules(reach: Reach, folder: Path) -> dict[str, list[str]]:
    return {
        "readable": [*map(str, MACHINE)],
        "writable": [str(folder), os.devnull, *map(str, reach.writable)],
        "runnable": [*map(str, (*SYSTEM, *reach.runnable))],
    }


def _ended(process: "subprocess.Popen[bytes]", limit_seconds: float) -> int | None:
    """Return the exit status; None at the limit. Waits are split up, because Polars blocks interrupts of waits."""
    left = limit_seconds
    while left > 0:
        try:
            return process.wait(min(left, _WAIT_SECONDS))
        except subprocess.TimeoutExpired:
            left -= _WAIT_SECONDS
    return None
