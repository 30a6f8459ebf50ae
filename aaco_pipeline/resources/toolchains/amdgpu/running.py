"""Runs a toolchain's programs under limits, in one folder, without the user's environment."""

import os
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import UnavailableError
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.resources.toolchains.amdgpu.finding import Toolchain
from aaco_pipeline.resources.toolchains.installation import parts_of, prefix_parts
from aaco_pipeline.resources.toolchains.limited import Limits, Reach, ending, run_limited

_LIMITS: Final = Limits(memory_bytes=6 << 30, cpu_seconds=60, file_bytes=64 << 20)
#: Ends only what waits for ever: what a compiler computes is limited in CPU time.
_LIMIT_SECONDS: Final = 3_600.0
_TOLD_BYTES: Final = 64 << 10
_TOLD_LINES: Final = 3
#: Nothing of the user's environment, in which CPATH or CCC_OVERRIDE_OPTIONS would change what is compiled.
_ENVIRONMENT: Final = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C", "HIP_PLATFORM": "amd"}


class Runner:
    """Runs the programs of one toolchain in one folder; what they leave is there."""

    def __init__(self, toolchain: Toolchain, folder: Path) -> None:
        self.folder = folder
        self._environment = _ENVIRONMENT | {"HOME": str(folder), "TMPDIR": str(folder)}
        self._reach = Reach(_parts_of(toolchain))

    def step(self, command: Sequence[str]) -> None:
        """Run a command; Refused (`compile`) with what it says when it fails or takes more than its limits."""
        said = self._run(command)
        if said is not None:
            raise Refused("compile", said)

    def prepare(self, command: Sequence[str]) -> None:
        """Run a command that no source has a part in; UnavailableError when it fails."""
        said = self._run(command)
        if said is not None:
            raise UnavailableError(f"the compiler for AMD GPUs cannot be used: {said}")

    def printed(self) -> str:
        """What the last command printed, of its beginning."""
        with (self.folder / "log").open("rb") as stream:
            return stream.read(_TOLD_BYTES).decode(errors="replace")

    def _run(self, command: Sequence[str]) -> str | None:
        """None, or why it did not end well."""
        status = run_limited(
            command,
            self.folder,
            log=self.folder / "log",
            limit_seconds=_LIMIT_SECONDS,
            limits=_LIMITS,
            reach=self._reach,
            environment=self._environment,
        )
        name = Path(command[0]).name
        if status is None:
            return f"{name} took more than {_LIMIT_SECONDS:g} s"
        if status < 0:
            most = f"{_LIMITS.cpu_seconds} s of CPU time, {_LIMITS.memory_bytes >> 30} GiB of memory"
            return f"{name} ended with {ending(status)}; it may take {most}"
        return f"{name} ended with {ending(status)}: {self._told()}" if status else None

    def _told(self) -> str:
        lines = self.printed().splitlines()
        errors = [line for line in lines if "error:" in line] or [line for line in lines if line.strip()]
        said = "; ".join(line.strip()[:300] for line in errors[:_TOLD_LINES])
        return said.replace(f"{self.folder}{os.sep}", "") or "it says nothing"


@cache
def _parts_of(toolchain: Toolchain) -> tuple[Path, ...]:
    """All that the programs of a toolchain read or run; what is missing is passed over."""
    programs = [toolchain.compiler[0], toolchain.linker[0], *toolchain.tools.values()]
    named = [toolchain.device_libraries, *toolchain.headers, toolchain.resource_folder]
    parts = {path.resolve() for path in named if path is not None}
    for program in programs:
        parts |= {*parts_of(program)}
    if toolchain.kind == "packages":  # zig's own libraries lie beside it, in no prefix
        parts.add(Path(toolchain.compiler[0]).resolve().parent)
    elif toolchain.rocm is not None:
        parts |= {*prefix_parts(toolchain.rocm.resolve() / "bin" / "clang++")}
    return tuple(sorted(parts))


@cache
def compiler_version(toolchain: Toolchain) -> str:
    """The first line of what the compiler says of itself; UnavailableError when it says nothing."""
    with tempfile.TemporaryDirectory() as name:
        runner = Runner(toolchain, Path(name))
        runner.prepare([*toolchain.compiler, "--version"])
        lines = runner.printed().strip().splitlines()
    if not lines:
        raise UnavailableError(f"{' '.join(toolchain.compiler)} --version says nothing; install the compiler again")
    return lines[0]
