"""The jobs: `start_session` registers a session, `ingest_capture` ingests a capture, `observe` runs a session's stages.

After either of the first two, the sensor `start_observing` requests `observe` for each session.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, Literal
from urllib.parse import quote

import dagster as dg
from pydantic import Field

from aaco_pipeline.automation.inbox_runs import INGEST_JOB, REFUSED_TAG, settle
from aaco_pipeline.automation.resources import Lake, Runner, add_partition
from aaco_pipeline.automation.runs import SESSION_TAG, reap
from aaco_pipeline.automation.stage_events import expected_errors
from aaco_pipeline.capture.request import MeasurementRequest, MeasurementSettings
from aaco_pipeline.errors import CaptureError, LakeError, SourceError, UsageError
from aaco_pipeline.pipeline.inbox import entry_of, inbox_of, says_done, set_aside
from aaco_pipeline.pipeline.trusted_models import register_trusted
from aaco_pipeline.report.formatting import in_a_line
from aaco_pipeline.resources.configuration import BUILT_IN_BACKENDS, load_backends
from aaco_pipeline.resources.host.kernel_files import process_tags
from aaco_pipeline.resources.project import find_project


def _backend_names() -> tuple[str, ...]:
    """List the backends for the launchpad, as known when the code location was loaded.

    If backends.yaml cannot be read, these are the built-in backends; registering a session then reports the error.
    """
    try:
        return tuple(load_backends(find_project(new=True).configs / "backends.yaml"))
    except UsageError:
        return tuple(BUILT_IN_BACKENDS)


#: Settings that name a program; runs started from Dagster must never set them.
_NEVER: Final = ("interpreter",)


class StartSession(MeasurementSettings, dg.Config):
    """Launchpad settings of a measurement request, with names as choices."""

    model: str = Field(default="squeezenet", description=MeasurementSettings.model_fields["model"].description)
    backend: Literal[_backend_names()] = Field(  # type: ignore[valid-type]
        "cpu", description=MeasurementSettings.model_fields["backend"].description
    )


@dg.op(
    description="Check the settings, then register the session; its stages follow by themselves.",
    # Plain types: Dagster would report out-of-range values over many lines, the request reports them in one.
    config_schema={name: field for name, field in StartSession.to_fields_dict().items() if name not in _NEVER},
    out=dg.Out(dg.Nothing),
)
def register_session(context: dg.OpExecutionContext, lake: Lake, runner: Runner) -> None:
    with expected_errors():
        request = MeasurementRequest.model_validate(context.op_config)
        for dead in reap(context.instance):
            context.log.warning(f"run {dead.run_id} was dead: {dead.reason}")
        session = register_trusted(lake.open(), runner, request)
        add_partition(context.instance, session)
    context.instance.add_run_tags(context.run_id, {SESSION_TAG: session, **process_tags()})
    # A sensor requests the run of the session's stages; the tag links to it before it exists.
    runs = f"/runs?q%5B0%5D={quote(f'tag:{SESSION_TAG}={session}')}"
    context.add_output_metadata({"its stages": dg.MetadataValue.url(runs)})
    context.log.info(f"session {session} is registered; its stages follow: {runs}")


class IngestCapture(dg.Config):
    """The capture to take in."""

    path: str = Field(description="A file, or a folder of one or several runs, that this host can read.")
    workload: str | None = Field(
        None, description="The workload that was captured; by default what the capture states."
    )
    from_inbox: bool = Field(False, description="Move the capture out of the inbox when it is taken or refused.")


@dg.op(
    description="Take in every run of a capture minus secrets, and register a session for each that is not whole yet.",
    out=dg.Out(dg.Nothing),
)
def take_in_capture(context: dg.OpExecutionContext, config: IngestCapture, lake: Lake) -> None:
    from aaco_pipeline.pipeline.ingestion import discovered, ingest  # imports every reader, so only on demand

    opened = lake.open()
    context.instance.add_run_tags(context.run_id, process_tags())  # identify a killed run by its process
    with expected_errors():
        path = entry_of(inbox_of(opened.path), Path(config.path)) if config.from_inbox else Path(config.path)
    unfinished: list[str] = []

    def register(session: str) -> None:
        add_partition(context.instance, session)
        unfinished.append(session)
        context.instance.add_run_tags(context.run_id, {SESSION_TAG: ",".join(unfinished)})

    refused: list[str] = []
    unread: list[str] = []
    with expected_errors():
        try:
            found = discovered(opened, path)
            place = path if config.from_inbox else None
            for one in ingest(opened, found, config.workload, finish=register, place=place):
                if one.session is None:
                    (refused if one.is_verdict else unread).append(str(one.error))
                    context.log.warning(in_a_line(f"not taken: {one.error}"))
                else:
                    add_partition(context.instance, one.session)  # needed even if another home ingested the capture
                    context.log.info(f"session {one.session}: {one.state}, attempt {one.attempt}")
            if unread:
                raise SourceError("; ".join(unread))
            if len(refused) == len(found.runs):
                raise CaptureError(f"{path}: {'; '.join(refused)}")
        except SourceError:
            raise
        except CaptureError as error:
            context.instance.add_run_tags(context.run_id, {REFUSED_TAG: "yes"})
            if config.from_inbox and path.exists():
                _moved(context, partial(set_aside, path, str(error)))
            raise
    if config.from_inbox and says_done(path):
        _moved(context, partial(settle, opened, path, refused))
    context.log.info(f"{len(unfinished)} sessions to finish; the sensor start_observing requests their stages")


def _moved(context: dg.OpExecutionContext, move: Callable[[], Path]) -> None:
    """Move a capture out of the inbox, or log why it cannot be moved."""
    try:
        context.log.info(in_a_line(f"moved to {move()}"))
    except LakeError as error:
        context.log.warning(in_a_line(f"stays in the inbox: {error}"))


@dg.job(
    name=INGEST_JOB,
    description="Take in a capture made elsewhere: rocprofv3, PyTorch, rocprof-compute and others; one session a run.",
    executor_def=dg.in_process_executor,
)
def ingest_capture() -> None:
    take_in_capture()


@dg.job(
    description="Begin a new session of any model with the settings given; observe then runs its stages.",
    executor_def=dg.in_process_executor,
    # Initial launchpad configuration; the one Dagster scaffolds from the schema omits every setting that is null.
    config={
        "ops": {
            "register_session": {
                "config": {name: f.default for name, f in StartSession.model_fields.items() if name not in _NEVER}
            }
        }
    },
)
def start_session() -> None:
    register_session()
