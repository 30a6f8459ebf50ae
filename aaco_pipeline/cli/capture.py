"""`aaco capture --print`: the commands that profile any program with rocprofv3, for running by hand or in a batch job.

It runs nothing and needs no ROCm. Profiling a model is `aaco run --profile`; reading what the commands leave is
`aaco ingest`.
"""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from aaco_pipeline.cli.lake_option import new_lake_option
from aaco_pipeline.cli.output import say

if TYPE_CHECKING:
    from aaco_pipeline.resources.project import Project
    from aaco_pipeline.resources.rocprofv3.command import ProfilerPass, Release

#: Without a base pass to look at, the second execution is the first that is not a cold one.
_WARM_EXECUTION: Final = 2


@click.command()
@click.option("--print", "printing", is_flag=True, help="Print the commands; nothing is run.")
@click.option("--release", metavar="VERSION", help="ROCm release of the machine to run on (default: the newest known).")
@click.option("--counters", metavar="SET[,SET]", help="Sets of hardware counters: basic, memory, compute, occupancy.")
@click.option("--arch", metavar="GFX", help="With --counters: architecture of the GPU, such as gfx942; see rocminfo.")
@click.option("--thread-trace", metavar="KERNEL", help="Trace the instructions of one execution of this kernel.")
@click.option("--output", default="aaco-capture", show_default=True, metavar="FOLDER", help="Folder for their output.")
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
@new_lake_option
def capture(
    project: "Project",
    *,
    printing: bool,
    release: str | None,
    counters: str | None,
    arch: str | None,
    thread_trace: str | None,
    output: str,
    program: tuple[str, ...],
) -> int:
    """Print the rocprofv3 commands for any program, given after --, one for each pass."""
    from aaco_pipeline.resources.rocprofv3.command import RELEASES, check_thread_trace, known_release

    _check_usage(printing, counters, arch, thread_trace, program)
    known = known_release(release or RELEASES[-1].name)
    if thread_trace is not None:
        check_thread_trace(known)
    passes = _passes(project, counters, arch, thread_trace)
    for line in _lines(known, passes, output, program):
        say(line)
    return 0


def _check_usage(
    printing: bool, counters: str | None, arch: str | None, thread_trace: str | None, program: Sequence[str]
) -> None:
    from aaco_pipeline.errors import UsageError

    if not printing:
        raise UsageError(
            "capture: nothing to do without --print; profile a model with `aaco run --profile`, or print the commands "
            "for any other program with `aaco capture --print -- PROGRAM`"
        )
    if not program:
        raise UsageError("capture: no program; give it after --, as in `aaco capture --print -- python train.py`")
    if counters is not None and arch is None:
        raise UsageError(
            "counters: which of them fit into one run depends on the GPU; add --arch, such as --arch gfx942 (rocminfo "
            "prints it)"
        )
    if thread_trace == "auto":
        raise UsageError("thread trace: auto needs a trace to choose from; run the base pass first and name a kernel")


def _passes(
    project: "Project", counters: str | None, arch: str | None, thread_trace: str | None
) -> tuple["ProfilerPass", ...]:
    from aaco_pipeline.resources.rocprofv3.command import BASE_PASS, ProfilerPass, counter_passes
    from aaco_pipeline.resources.rocprofv3.counter_sets import COUNTER_SETS_FILE, load_counter_sets

    passes = [BASE_PASS]
    if counters is not None and arch is not None:
        passes += counter_passes(load_counter_sets(project.configs / COUNTER_SETS_FILE).groups(counters, arch))
    if thread_trace is not None:
        passes.append(ProfilerPass("thread_trace", "thread_trace", kernel=thread_trace, execution=_WARM_EXECUTION))
    return tuple(passes)


def _lines(release: "Release", passes: Sequence["ProfilerPass"], output: str, program: Sequence[str]) -> Iterator[str]:
    from aaco_pipeline.resources.rocprofv3.command import counter_input, folder_name, rocprofv3_command

    yield f"# rocprofv3 of ROCm {release.name}; every line runs the program once, from the same folder."
    yield "# Without a profiler: the time to compare the others with."
    yield shlex.join(program)
    for number, one in enumerate(passes, start=1):
        folder = Path(output) / folder_name(number)
        yield f"# {_purpose(one)}"
        command = shlex.join(rocprofv3_command(release, one, folder, program))
        given = counter_input(release, one)
        if given is None:
            yield command
            continue
        # This release makes a folder of its own below the one it is given; its files belong beside the others'.
        place, moved = shlex.quote(str(folder / given[0])), shlex.quote(str(folder))
        written = f"mkdir -p {moved} && printf '%s\\n' {shlex.quote(given[1].rstrip())} > {place}"
        yield f"{written} && {command} && mv {moved}/pmc_1/* {moved}/"
    yield "# When the folder is on the machine with the lake:"
    yield f"aaco ingest {shlex.quote(output)}"


def _purpose(one: "ProfilerPass") -> str:
    if one.kind == "base":
        return "Kernels, HIP calls, memory copies and markers: the only pass whose times count."
    if one.kind == "counters":
        return f"Counters, as many as fit into one run: {', '.join(one.counters)}."
    return (
        f"Instructions of one execution, number {one.execution}, of the kernel {' '.join((one.kernel or '').split())}."
    )
