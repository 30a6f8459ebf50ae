"""The two jobs: `start_session` begins a session from typed settings, `observe` runs all stages of one session.

`start_session` only registers; the sensor in `aaco_pipeline.automation.sensors` then requests `observe`.
"""

from typing import Final

import dagster as dg
from pydantic import Field

from aaco_pipeline.assets.stage import expected_errors
from aaco_pipeline.automation.dead_runs import reap
from aaco_pipeline.automation.sessions import register
from aaco_pipeline.resources.dagster_resources import InferenceRunner, LakeResource
from aaco_pipeline.resources.launch import DEFAULT_TIMEOUT_SECONDS, OPTIMIZATIONS, PRECISIONS, Launch
from aaco_pipeline.resources.process_identity import process_tags

SESSION_TAG: Final = "aaco/session"

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
    input_shapes: dict[str, list[int]] = Field({}, description="Shapes of inputs with dynamic dimensions.")

    def launch(self) -> Launch:
        """The same settings as a checked Launch; UsageError when one is out of range."""
        values = {**self.model_dump(), "input_shapes": {name: tuple(s) for name, s in self.input_shapes.items()}}
        return Launch(**values)


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


@dg.job(
    description="Begin a new session of any model: fill in the launchpad and launch; observe then runs its stages.",
    executor_def=dg.in_process_executor,
)
def start_session() -> None:
    register_session()
