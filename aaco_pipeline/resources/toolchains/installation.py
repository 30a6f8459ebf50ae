"""What belongs to a compiler that is installed here: its programs, headers and libraries, wherever they lie.

A compiler is asked itself, with no source of anybody's: one below a home folder, of conda or spack, or behind a wrapper
has its parts in folders that no list names. Of a prefix only the folders of programs, headers and libraries are taken.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final

#: What the system's compilers, and most others, load: nothing of a user's and no settings.
SYSTEM: Final = tuple(
    map(Path, ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/ld.so.cache", "/etc/alternatives"))
)
#: What compilers look at of the machine itself.
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
    """Files and folders that a compiler needs to read or run beside the system's, with no link in them; sorted."""
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
    return tuple(sorted(one for one in found if one.exists() and not _is_too_much(one) and not _is_of_system(one)))


def prefix_parts(program: Path) -> Iterator[Path]:
    """The folders of programs, headers and libraries of the prefix that a program is installed in."""
    prefix = next((one.parent for one in (program, *program.parents) if one.name in ("bin", "lib", "libexec")), None)
    if prefix is None:
        return
    yield from (prefix / name for name in _OF_A_PREFIX)
    yield from prefix.glob(_TRIPLET)


def _everywhere(program: str) -> Iterator[str]:
    """Every program of that name on PATH: a wrapper such as ccache calls the next one."""
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        if (found := shutil.which(Path(program).name, path=folder)) is not None:
            yield found


def _libraries(program: Path) -> Iterator[Path]:
    """What the loader would load for a program, which may lie in prefixes of their own."""
    if program.is_file():
        listed = _printed([str(program)], {"LD_TRACE_LOADED_OBJECTS": "1"}) if _is_dynamic(program) else ""
        yield from (Path(one) for one in _LIBRARY.findall(listed))


def _is_dynamic(program: Path) -> bool:
    """Whether a file is a program that the loader would start: asking another would run it."""
    with program.open("rb") as file:
        beginning = file.read(4096)
    return beginning[:4] == b"\x7fELF" and b"/ld-" in beginning


def _printed(command: Sequence[str], more: dict[str, str] | None = None) -> str:
    """What a command prints, nothing where it does not answer."""
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", **(more or {})}
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ASK_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return (done.stdout + done.stderr).decode(errors="replace")


def _is_too_much(path: Path) -> bool:
    """Whether a home, or what holds homes or settings, would be opened with a folder."""
    return any(Path(one).is_relative_to(path) for one in ("/etc", "/home", "/proc", "/root", "/var", Path.home()))


def _is_of_system(path: Path) -> bool:
    return any(path.is_relative_to(one) for one in SYSTEM)
