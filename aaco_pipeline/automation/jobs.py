"""The jobs: `start_session` begins a session, `ingest_capture` takes in a capture, `observe` runs a session's stages.

The first two only register; the sensor `start_observing` then requests `observe` for each session.
"""

from pathlib import Path

import dagster as dg
from pydantic import Field

from aaco_pipeline.automation.dead_runs import reap
from aaco_pipeline.automation.inbox import set_aside
from aaco_pipeline.automation.session_runs import SESSION_TAG
from aaco_pipeline.automation.sessions import add_partition, register
from aaco_pipeline.automation.stage_assets import expected_errors
from aaco_pipeline.capture.request import DEFAULT_TIMEOUT_SECONDS, OPTIMIZATIONS, PRECISIONS, MeasurementRequest
from aaco_pipeline.errors import CaptureError
from aaco_pipeline.resources.dagster_resources import InferenceRunner, LakeResource
from aaco_pipeline.resources.host.process_identity import process_tags

observe = dg.define_asset_job(
    "observe",
    selection=dg.AssetSelection.all(),
    executor_def=dg.in_process_executor,
    description="All stages of one session, from capture to analysis. A captured session is not measured again.",
)


class StartSession(dg.Config):
    """What to measure, as the launchpad shows it. Empty settings mean: as the model's registry entry says."""

    model: str = Field(
        "squeezenet", description="A built-in model, a name from configs/models.yaml, or the path of an .onnx file."
    )
    backend: str = Field("cpu", description="A backend from configs/backends.yaml: cpu, migraphx, rocm, cuda.")
    batch_size: int | None = Field(None, description="First dimension of every input; the model must leave it open.")
    iterations: int | None = Field(None, description="Measured iterations of each pass.")
    warmup: int | None = Field(None, description="Iterations before the measured ones; kept, and excluded.")
    threads: int | None = Field(None, description="Intra-operator threads of the runtime.")
    precision: str = Field("model", description=f"One of {', '.join(PRECISIONS)}; model means as in the file.")
    optimization: str = Field("all", description=f"How far the graph is rewritten: {', '.join(OPTIMIZATIONS)}.")
    seed: int = Field(0, description="Seed of the generated inputs.")
    timeout_seconds: float = Field(DEFAULT_TIMEOUT_SECONDS, description="Time limit of the measured passes together.")
    allow_fallback: bool = Field(False, description="Measure even if the provider does not run every node.")
    scheduler: bool = Field(False, description="Record scheduler events with bpftrace or perf, where allowed.")
    prompt_tokens: int | None = Field(None, description="Length of each prompt, for a language model that generates.")
    output_tokens: int | None = Field(None, description="Tokens to generate for each prompt; goes with prompt_tokens.")
    profile: bool = Field(False, description="Trace kernels, copies and HIP calls with rocprofv3, in a further pass.")
    counters: str | None = Field(
        None, description="Sets of hardware counters from configs/counter_sets.yaml, such as basic,memory."
    )
    thread_trace: str | None = Field(
        None,
        description="The kernel whose instructions rocprofv3 traces; auto: the one with most of the critical path.",
    )
    input_shapes: dict[str, list[int]] = Field({}, description="Shapes of inputs with dynamic dimensions.")

    def launch(self) -> MeasurementRequest:
        """The same settings as a checked Launch; UsageError when one is out of range."""
        values = {**self.model_dump(), "input_shapes": {name: tuple(s) for name, s in self.input_shapes.items()}}
        return MeasurementRequest(**values)


@dg.op(
    description="Check the settings, then register the session; its stages follow by themselves.",
    out=dg.Out(dg.Nothing),
)
def register_session(
    context: dg.OpExecutionContext, config: StartSession, lake: LakeResource, runner: InferenceRunner
) -> None:
    with expected_errors():
        launch = config.launch()
        runner.check(launch)
        for dead in reap(context.instance):
            context.log.warning(f"run {dead.run_id} was dead: {dead.reason}")
        session = register(lake.open(), context.instance, launch)
    context.instance.add_run_tags(context.run_id, {SESSION_TAG: session, **process_tags()})
    context.log.info(f"session {session} is registered; the sensor start_observing requests its stages")


class IngestCapture(dg.Config):
    """Which capture to take in."""

    path: str = Field(description="A file, or a folder of one or several runs, that this host can read.")
    workload: str | None = Field(None, description="What the capture is of; else the name of its folder.")
    from_inbox: bool = Field(False, description="Move the capture aside, with the reason, when it cannot be read.")


@dg.op(
    description="Take in every run of a capture minus secrets, and register a session for each that is new.",
    out=dg.Out(dg.Nothing),
)
def take_in_capture(context: dg.OpExecutionContext, config: IngestCapture, lake: LakeResource) -> None:
    from aaco_pipeline.automation.ingestion import ingest  # every reader: only where a capture is taken in
    from aaco_pipeline.capture.discovery import discover_runs

    path = Path(config.path)
    with expected_errors():
        try:
            results = list(ingest(lake.open(), discover_runs(path), config.workload))
            failed = [result for result in results if result.session is None]
            if len(failed) == len(results):
                reasons = "; ".join(result.reason or "" for result in failed) or "nothing in it is a known capture"
                raise CaptureError(f"{path}: {reasons}")
        except CaptureError as error:
            if config.from_inbox and path.exists():
                context.log.warning(f"moved aside to {set_aside(path, str(error))}")
            raise
    for result in failed:
        context.log.warning(f"not taken: {result.reason}")
    registered = [result.session for result in results if result.session is not None and result.is_new]
    if registered:
        add_partition(context.instance, *registered)
        context.instance.add_run_tags(context.run_id, {SESSION_TAG: ",".join(registered), **process_tags()})
    context.log.info(f"{len(registered)} new sessions; the sensor start_observing requests their stages")


@dg.job(
    description="Take in a capture made elsewhere: rocprofv3, PyTorch, rocprof-compute and others; one session a run.",
    executor_def=dg.in_process_executor,
)
def ingest_capture() -> None:
    take_in_capture()


@dg.job(
    description="Begin a new session of any model: fill in the launchpad and launch; observe then runs its stages.",
    executor_def=dg.in_process_executor,
)
def start_session() -> None:
    register_session()
