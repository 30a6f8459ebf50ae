"""`aaco record`: record any program as it runs, and take what was recorded into the lake.

Recording is `aaco_pipeline.recording`, which runs without this project, too; taking in is
`aaco_pipeline.pipeline.ingestion`.
"""

import os
import shutil
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aaco_pipeline.cli.lake_option import new_lake_option
from aaco_pipeline.cli.output import data_format, say
from aaco_pipeline.cli.wait_option import wait_option

if TYPE_CHECKING:
    from collections.abc import Callable

    from aaco_pipeline.recording.recorder import Recorded
    from aaco_pipeline.recording.request import RecordRequest
    from aaco_pipeline.resources.project import Project
    from aaco_pipeline.resources.rocprofv3.counter_groups import CounterSets


def _tell(line: str) -> None:
    say(f"aaco: {line}", err=True)


class RecordCommand(click.Command):
    """A command with the settings of a recording; they are made when they are needed."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        from aaco_pipeline.recording.request import TRACES, kind_of, settings, spelling

        made: list[click.Parameter] = []
        for setting in settings():
            default = setting.default
            kind = kind_of(setting)
            made.append(
                click.Option(
                    [spelling(setting), setting.name],
                    type=bool
                    if isinstance(default, bool)
                    else click.Choice(TRACES)
                    if setting.name == "trace"
                    else kind,
                    default=default,
                    show_default=default is not None and not isinstance(default, bool),
                    is_flag=isinstance(default, bool),
                    metavar=setting.metadata["metavar"],
                    help=setting.metadata["help"],
                )
            )
        return [*made, *super().get_params(ctx)]


@click.command(cls=RecordCommand)
@click.option("--output", type=click.Path(path_type=Path), metavar="FOLDER", help="Only record, into this new folder.")
@click.option(
    "--archive", type=click.Path(path_type=Path), metavar="FILE", help="Write the recorder as one file for other hosts."
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

    Its output goes to the terminal, and it reads from /dev/null. A pipeline is given to a shell: sh -c 'a | b'.
    """
    from aaco_pipeline.errors import ModelError
    from aaco_pipeline.recording.request import RecordRequest
    from aaco_pipeline.resources.rocprofv3.counter_sets import COUNTER_SETS_FILE, load_counter_sets

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
        raise ModelError(f"{recorded.failure}; what there is of it is kept")
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
    from aaco_pipeline.report.words.units import size

    if program:
        raise UsageError("record: --archive only writes a file; leave the program out")
    written = write_archive(file, sets())
    say(f"{file}: {size(written)}; on another host: python3 {file.name} --output FOLDER -- PROGRAM")
    return 0


def _place(project: "Project") -> Path:
    """A name beside the lake: on its disk, for what a profiler writes may be large."""
    return project.lake.parent / f"aaco-recorded-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


def _take_in(project: "Project", recorded: "Recorded", name: str, *, as_json: bool) -> None:
    """Make a session of it and show that; the recording goes once the lake has it, and else stays and is named."""
    from aaco_pipeline.cli.progress_bar import progress_bar
    from aaco_pipeline.cli.sessions import show_session
    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.pipeline.ingestion import discovered, ingest
    from aaco_pipeline.pipeline.session_stages import finish_session
    from aaco_pipeline.resources.progress import progress_listener

    lake = TraceLake(project.lake)
    try:
        with progress_bar(as_json) as show, progress_listener(show):
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
