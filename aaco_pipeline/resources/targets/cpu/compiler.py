"""The C++ compiler of this machine, run under limits: which one it is, and what it makes of a file."""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import UsageError
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.resources.toolchains.installation import parts_of
from aaco_pipeline.resources.toolchains.limited import Limits, Reach, ending, run_limited

#: Ends only what waits for ever: what a compiler computes is limited in CPU time.
_WALL_SECONDS: Final = 3_600
_LIMITS: Final = Limits(memory_bytes=4 << 30, cpu_seconds=60, file_bytes=128 << 20)
_TOLD_LINES: Final = 6
_TOLD_LETTERS: Final = 1_000
_READ_BYTES: Final = 1 << 16
_NO_CACHE: Final = {"CCACHE_DISABLE": "1"}
#: The headers and sources of this target.
_OWN: Final = Path(__file__).parent
_CHOICES: Final = ("c++", "g++", "clang++")
HOW_TO_INSTALL: Final = "install g++ or clang++ (Debian, Ubuntu: apt-get install g++)"


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: where it is and the first line of what it says of itself."""

    path: str
    version: str

    @property
    def is_clang(self) -> bool:
        return "clang" in self.version


@cache
def find_compiler(name: str | None = None) -> Compiler:
    """The compiler of that name, else the first of c++, g++ and clang++. UsageError when there is none."""
    for choice in _CHOICES if name is None else (name,):
        if (path := shutil.which(choice)) is not None:
            return Compiler(path, _version(path))
    raise UsageError(f"no C++ compiler named {name or ', '.join(_CHOICES)} on PATH; {HOW_TO_INSTALL}")


def _version(path: str) -> str:
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"{path} --version does not answer: {error}; {HOW_TO_INSTALL}") from error
    return said.splitlines()[0] if said else path


def compile_confined(
    compiler: Compiler, arguments: Sequence[str], folder: Path, *, reads: Sequence[Path] = ()
) -> tuple[str, ...]:
    """Run the compiler in `folder`, with its temporary files there; its warnings.

    It gets at its own installation, that folder, this target's headers and the files `reads`, and at no others. Refused
    (guard `compile`) when it fails, or takes more than 60 s of CPU time, an hour or 4 GiB. All that it started has
    ended.
    """
    said = folder / "compiler.txt"
    # A cache of compilations would be read and written elsewhere.
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TMPDIR": str(folder)} | _NO_CACHE
    status = run_limited(
        [compiler.path, *arguments],
        folder,
        log=said,
        limit_seconds=_WALL_SECONDS,
        limits=_LIMITS,
        reach=Reach((*parts_of(compiler.path), _OWN, *reads)),
        environment=environment,
    )
    if status is None:
        raise Refused("compile", f"the compiler took more than {_WALL_SECONDS} s")
    with said.open("rb") as stream:
        text = stream.read(_READ_BYTES).decode(errors="replace")
    if status != 0:
        raise Refused(
            "compile", _shortened(text, folder) or f"the compiler ended with {ending(status)} and said nothing"
        )
    return tuple(line for line in _plain(text, folder).splitlines() if ": warning: " in line)[:_TOLD_LINES]


def _shortened(text: str, folder: Path) -> str:
    """The lines that say what is wrong, without those that say where a template came from."""
    lines = [line for line in _plain(text, folder).splitlines() if line.strip()]
    telling = [
        line for line in lines if re.search(r"\b(fatal error|error|undefined reference|Killed|terminated)\b", line)
    ]
    return "; ".join((telling or lines)[:_TOLD_LINES])[:_TOLD_LETTERS]


def _plain(text: str, folder: Path) -> str:
    return "".join(letter for letter in text if letter.isprintable() or letter == "\n").replace(f"{folder}/", "")
