"""AMD's rocprofv3 around a program's traced run, and around one more run for each group of counters.

How it is asked, release by release, is `aaco_pipeline.resources.rocprofv3.command`; which counters a set means, and
which of them fit into one run, is `aaco_pipeline.resources.rocprofv3.counter_groups`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import UnavailableError, UsageError
from aaco_pipeline.resources.rocprofv3.command import (
    BASE_PASS,
    ProfilerPass,
    Release,
    counter_input,
    counter_passes,
    expected_outputs,
    find_tool,
    gpu_architecture,
    installed_release,
    rocprofv3_command,
    stated,
)
from aaco_pipeline.resources.rocprofv3.counter_groups import CounterSets
from aaco_pipeline.resources.telemetry.gpu_metrics import amd_cards

NAME: Final = "rocprofv3"
_SYS: Final = Path("/sys")
_LONGEST_WORDS: Final = 300


@dataclass(frozen=True)
class Rocprofv3:
    """The rocprofv3 of this host."""

    tool: Path
    version: str
    release: Release

    def around(self, program: Sequence[str], folder: Path) -> tuple[str, ...]:
        """The command of the base pass over `program`: kernels, HIP calls, memory copies and markers."""
        return self.command(BASE_PASS, program, folder)

    def environment(self, folder: Path) -> dict[str, str]:
        """Nothing: all is said on the command line."""
        return {}

    def counting(self, sets: str, first: int | None, known: Callable[[], CounterSets]) -> "tuple[Counting, ...]":
        """A run for each group of counters of the sets, on the GPUs of this host. AacoError when a set means none."""
        if first is not None:
            raise UsageError("count_first: rocprofv3 counts every launch, and runs none of them again; leave it out")
        groups = known().groups(sets, stated(gpu_architecture(0)))
        return tuple(Counting(self, one) for one in counter_passes(groups))

    def command(self, one: ProfilerPass, program: Sequence[str], folder: Path) -> tuple[str, ...]:
        """The command of a pass with the path of this host's tool."""
        _, *arguments = rocprofv3_command(self.release, one, folder, program)
        return (str(self.tool), *arguments)


@dataclass(frozen=True)
class Counting:
    """One run that counts one group of counters; kernels run one after another in it."""

    profiler: Rocprofv3
    group: ProfilerPass

    @property
    def name(self) -> str:
        return NAME

    @property
    def version(self) -> str | None:
        return self.profiler.version

    @property
    def counters(self) -> tuple[str, ...]:
        return self.group.counters

    def around(self, program: Sequence[str], folder: Path) -> tuple[str, ...]:
        """The command of the pass; what it reads from its folder is put there, where the release wants that."""
        given = counter_input(self.profiler.release, self.group)
        if given is not None:
            (folder / given[0]).write_text(given[1])
        return self.profiler.command(self.group, program, folder)

    def environment(self, folder: Path) -> dict[str, str]:
        return {}

    def why_failed(self, folder: Path, said: str) -> str | None:
        """That rocprofv3 left nothing, with its or the program's last words; None when it left what it should."""
        expected = expected_outputs(self.profiler.release, self.group, None)
        missing = next((one for one in expected if next(folder.rglob(one), None) is None), None)
        if missing is None:
            return None
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        words = f"; the last words were: {lines[-1][:_LONGEST_WORDS]}" if lines else ""
        return f"counters: rocprofv3 left no {missing} of {', '.join(self.counters)}{words}"


def prepared(environment: Mapping[str, str], sys: Path = _SYS) -> Rocprofv3:
    """The tool of this host, asked for its version. UnavailableError without one, or without a GPU that it sees."""
    if not amd_cards(sys):
        raise UnavailableError(f"rocprofv3: this host has no AMD GPU (none in {sys}/class/drm)")
    tool = find_tool(environment)
    version, release = installed_release(tool)
    return Rocprofv3(tool, version, release)
