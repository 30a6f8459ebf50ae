"""AMD's rocprofv3 around a program's traced run, and around one more run for each group of counters.

Its command, release by release, is built by `aaco_pipeline.resources.rocprofv3.command`; the counters of a set are
grouped by `aaco_pipeline.resources.rocprofv3.counter_groups`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

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
        return rocprofv3_command(self.release, BASE_PASS, folder, program, self.tool)

    def environment(self, folder: Path) -> dict[str, str]:
        """Nothing: the command line has it all."""
        return {}

    def counting(
        self, sets: str, first: int | None, known: Callable[[], CounterSets], environment: Mapping[str, str]
    ) -> "tuple[Counting, ...]":
        """A run for each group of counters of the sets, on the GPUs of this host. AacoError when a set means none."""
        if first is not None:
            raise UsageError("count_first: rocprofv3 counts every launch, and runs none of them again; leave it out")
        groups = known().groups(sets, stated(gpu_architecture(0)))
        return tuple(Counting(self, one) for one in counter_passes(groups))


@dataclass(frozen=True)
class Counting:
    """One run that counts one group of counters; kernels run one after another in it."""

    profiler: Rocprofv3
    group: ProfilerPass
    name: ClassVar[str] = NAME

    @property
    def version(self) -> str:
        return self.profiler.version

    @property
    def counters(self) -> tuple[str, ...]:
        return self.group.counters

    def around(self, program: Sequence[str], folder: Path) -> tuple[str, ...]:
        """The command of the pass; writes the file of counters into the folder for releases that read one."""
        given = counter_input(self.profiler.release, self.group)
        if given is not None:
            (folder / given[0]).write_text(given[1])
        return rocprofv3_command(self.profiler.release, self.group, folder, program, self.profiler.tool)

    def environment(self, folder: Path) -> dict[str, str]:
        return {}

    def why_failed(self, folder: Path, said: str) -> str | None:
        """The output file that rocprofv3 did not leave, with the last line of its output; None when it left all."""
        expected = expected_outputs(self.profiler.release, self.group, None)
        missing = next((one for one in expected if next(folder.rglob(one), None) is None), None)
        if missing is None:
            return None
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        words = f"; the last words were: {lines[-1][:_LONGEST_WORDS]}" if lines else ""
        return f"counters: rocprofv3 left no {missing} of {', '.join(self.counters)}{words}"


def prepared(environment: Mapping[str, str], sys: Path = _SYS) -> Rocprofv3:
    """Find this host's tool and its version. UnavailableError without one, or without a GPU that it sees."""
    if not amd_cards(sys):
        raise UnavailableError(f"rocprofv3: this host has no AMD GPU (none in {sys}/class/drm)")
    tool = find_tool(environment)
    version, release = installed_release(tool)
    return Rocprofv3(tool, version, release)
