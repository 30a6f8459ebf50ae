"""`aaco record` and `aaco capture`: record any program, or print the rocprofv3 commands that profile it.

`aaco_pipeline.recording` records; `aaco_pipeline.pipeline.ingestion` ingests the recording.
"""

import os
import shlex
import shutil
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from aaco_pipeline.cli.options import new_lake_option, open_lake, wait_option
from aaco_pipeline.cli.output import data_format, progress_bar, say

if TYPE_CHECKING:
    from collections.abc import Callable

    from aaco_pipeline.recording.recorder import Recorded
    from aaco_pipeline.recording.request import RecordRequest
    from aaco_pipeline.resources.project import Project
    from aaco_pipeline.resources.rocprofv3.command import ProfilerPass, Release
    from aaco_pipeline.resources.rocprofv3.counter_groups import CounterSets

#: Default without a base pass: the second execution is the first warm one.
_WARM_EXECUTION: Final = 2


def _tell(line: str) -> None:
    say(f"aaco: {line}", err=True)


class RecordCommand(click.Command):
    """Command with the settings of a recording as options, which are created on demand."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        from aaco_pipeline.recording.request import TRACES, kind_of, settings, spelling

        made: list[click.Parameter] = []
        for setting in settings():
            default, is_flag = setting.default, isinstance(setting.default, bool)
            made.append(
                click.Option(
                    [spelling(setting), setting.name],
                    type=bool if is_flag else click.Choice(TRACES) if setting.name == "trace" else kind_of(setting),
                    default=default,
                    show_default=default is not None and not is_flag,
                    is_flag=is_flag,
                    metavar=setting.metadata["metavar"],
                    help=setting.metadata["help"],
                )
            )
        return [*made, *super().get_params(ctx)]


@click.command(cls=RecordCommand)
@click.option("--output", type=click.Path(path_type=Path), metavar="FOLDER", help="Only record, to this new folder.")
@click.option(
    "--archive",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the recorder to one file, for use on other hosts.",
)
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
@wait_option(_tell)
@new_lake_option
@data_format
def record(
    project: "Project",
    *,
    program: tuple[str, ...],
    output: Path | None,
    archive: Path | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Record any program, given after --, in fresh processes: one session in the lake.

    The program's output goes to the terminal; its input is /dev/null. For a pipeline, use a shell: sh -c 'a | b'.
    """
    from aaco_pipeline.errors import ModelError
    from aaco_pipeline.recording.request import RecordRequest
    from aaco_pipeline.resources.configuration import COUNTER_SETS_FILE, load_counter_sets

    sets = partial(load_counter_sets, project.configs / COUNTER_SETS_FILE)
    if archive is not None:
        return _write_archive(archive, program, sets)
    request = RecordRequest(program, **options)
    if output is not None:
        recorded = _recorded(request, output, sets)
        say(f"{recorded.folder}: recorded; `aaco ingest {recorded.folder}` takes it in", err=as_json)
    else:
        recorded = _recorded(request, _place(project), sets)
        _take_in(project, recorded, request.name, as_json=as_json)
    if recorded.failure is not None:
        raise ModelError(f"{recorded.failure}; its partial recording is kept")
    return 0


def _recorded(request: "RecordRequest", folder: Path, sets: "Callable[[], CounterSets]") -> "Recorded":
    from aaco_pipeline.recording.recorder import record as record_into

    try:
        return record_into(request, folder, _tell, counter_sets=sets)
    except KeyboardInterrupt as error:
        error.add_note("nothing is recorded")
        raise


def _write_archive(file: Path, program: tuple[str, ...], sets: "Callable[[], CounterSets]") -> int:
    from aaco_pipeline.errors import UsageError
    from aaco_pipeline.recording.archive import write_archive
    from aaco_pipeline.report.formatting import size

    if program:
        raise UsageError("record: --archive only writes a file; leave the program out")
    written = write_archive(file, sets())
    say(f"{file}: {size(written)}; on another host: python3 {file.name} --output FOLDER -- PROGRAM")
    return 0


def _place(project: "Project") -> Path:
    """Choose a folder next to the lake, on the same disk, because profiler files can be large."""
    return project.lake.parent / f"aaco-recorded-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


def _take_in(project: "Project", recorded: "Recorded", name: str, *, as_json: bool) -> None:
    """Ingest a recording as a session and show it; on failure the recording is kept and its path printed."""
    from aaco_pipeline.cli.sessions import show_session
    from aaco_pipeline.pipeline.ingestion import discovered, ingest
    from aaco_pipeline.pipeline.session_stages import finish_session

    lake = open_lake(project)
    try:
        with progress_bar(as_json):
            found = discovered(lake, recorded.folder)
            taken = [*ingest(lake, found, name, finish=partial(finish_session, lake, configs=project.configs))]
        failed = next((one.error for one in taken if one.error is not None), None)
        if failed is not None:
            raise failed
    except BaseException as error:
        kept = f"{recorded.folder} is whole; `aaco ingest {recorded.folder}` takes it in again"
        if isinstance(error, KeyboardInterrupt):
            error.add_note(kept)
        else:
            _tell(kept)
        raise
    shutil.rmtree(recorded.folder, ignore_errors=True)
    for one in taken:
        if one.session is not None:
            show_session(lake, one.session, as_json=as_json)


@click.command()
@click.option("--print", "printing", is_flag=True, help="Print the commands; run nothing.")
@click.option("--release", metavar="VERSION", help="ROCm release on the target machine (default: the newest known).")
@click.option("--counters", metavar="SET[,SET]", help="Hardware counter sets: basic, memory, compute, occupancy.")
@click.option("--arch", metavar="GFX", help="With --counters: GPU architecture, such as gfx942 (see rocminfo).")
@click.option("--thread-trace", metavar="KERNEL", help="Trace the instructions of one execution of this kernel.")
@click.option(
    "--output", default="aaco-capture", show_default=True, metavar="FOLDER", help="Folder for the profiler output."
)
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
    """Print the rocprofv3 commands for any program, given after --, one per pass."""
    from aaco_pipeline.errors import UsageError
    from aaco_pipeline.resources.rocprofv3.command import RELEASES, check_thread_trace, known_release

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
    known = known_release(release or RELEASES[-1].name)
    if thread_trace is not None:
        check_thread_trace(known)
    for line in _lines(known, _passes(project, counters, arch, thread_trace), output, program):
        say(line)
    return 0


def _passes(
    project: "Project", counters: str | None, arch: str | None, thread_trace: str | None
) -> tuple["ProfilerPass", ...]:
    from aaco_pipeline.resources.configuration import COUNTER_SETS_FILE, load_counter_sets
    from aaco_pipeline.resources.rocprofv3.command import BASE_PASS, ProfilerPass, counter_passes

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
        # This release creates its own subfolder; its files are moved up to the others.
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
