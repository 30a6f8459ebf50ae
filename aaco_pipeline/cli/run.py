"""`aaco run`: measure one session, run all its stages, and print the answer.

The stages are Dagster's job `observe`, run in this process against the same instance as the UI.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from aaco_pipeline.cli.lake_option import lake_option
from aaco_pipeline.cli.output import console, data_format

if TYPE_CHECKING:
    import dagster as dg

    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.resources.launch import Launch
    from aaco_pipeline.resources.project import Project

_SLOT_POLL_SECONDS: Final = 0.5
#: What a step fails with when a person stops the run; Dagster keeps only the class's name.
_INTERRUPTS: Final = ("DagsterExecutionInterruptedError", "KeyboardInterrupt")


@click.command()
@click.option("--model", required=True, metavar="NAME|PATH", help="A built-in or registered model, or an .onnx file.")
@click.option("--backend", default="cpu", show_default=True, help="cpu, migraphx, rocm or cuda; see `aaco info`.")
@click.option("--batch", type=click.IntRange(min=1), help="Batch size; the model's first dimension must be dynamic.")
@click.option("--iterations", type=click.IntRange(min=1), help="Measured iterations of each pass (default 100).")
@click.option("--warmup", type=click.IntRange(min=0), help="Iterations before them, kept and excluded (default 10).")
@click.option("--threads", type=click.IntRange(min=1), help="Intra-operator threads (default on the CPU: 1).")
@click.option(
    "--precision",
    type=click.Choice(["model", "fp16", "bf16", "fp8", "int8"]),
    default="model",
    show_default=True,
    help="Precision asked of the provider; model means as in the file.",
)
@click.option(
    "--optimization",
    type=click.Choice(["none", "basic", "extended", "all"]),
    default="all",
    show_default=True,
    help="How far the runtime rewrites the graph; up to extended, kernels keep the names of the model's nodes.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the inputs.")
@click.option("--timeout", type=float, default=600.0, show_default=True, help="Limit on the measured passes, seconds.")
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="INPUT=1x3x224x224",
    help="Shape of an input with dynamic dimensions; may be repeated.",
)
@click.option("--allow-fallback", is_flag=True, help="Measure even if the provider does not run every node.")
@click.option("--scheduler", is_flag=True, help="Record scheduler events with bpftrace or perf, where allowed.")
@lake_option
@data_format
def run(project: "Project", as_json: bool, **options: Any) -> int:
    """Measure a model in a fresh process and analyse it: one session in the lake."""
    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.resources.inference import plan

    launch = _launch(options)
    plan(launch, project.configs)  # a wrong name is told at once, before anything is begun
    project.require_root()
    session = _observe(project, TraceLake(project.lake), launch, quiet=as_json)
    from aaco_pipeline.cli.sessions import show_session

    show_session(TraceLake(project.lake), session, as_json=as_json)
    return 0


def _launch(options: dict[str, Any]) -> "Launch":
    from pathlib import Path

    from aaco_pipeline.resources.launch import Launch

    model = options["model"]
    if model.endswith(".onnx") or "/" in model:
        model = str(Path(model).absolute())
    return Launch(
        model=model,
        backend=options["backend"],
        batch_size=options["batch"],
        iterations=options["iterations"],
        warmup=options["warmup"],
        threads=options["threads"],
        precision=options["precision"],
        optimization=options["optimization"],
        seed=options["seed"],
        timeout_seconds=options["timeout"],
        allow_fallback=options["allow_fallback"],
        scheduler=options["scheduler"],
        input_shapes=dict(_shape(text) for text in options["shapes"]),
    )


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    """`input=1x3x224x224` (or with commas) as a name and a shape; an empty shape is a scalar's."""
    name, separator, dimensions = text.rpartition("=")
    parts = dimensions.replace(",", "x").split("x") if dimensions else []
    if not separator or not name or not all(part.strip().isdigit() for part in parts):
        raise click.BadParameter(f"{text!r} is not a shape; expected INPUT=1x3x224x224", param_hint="--shape")
    return name, tuple(int(part) for part in parts)


def _observe(project: "Project", lake: "TraceLake", launch: "Launch", *, quiet: bool) -> str:
    """Register the session and run all its stages; raises the AacoError that a stage failed with."""
    from aaco_pipeline.automation.dead_runs import reap
    from aaco_pipeline.automation.instance import open_instance
    from aaco_pipeline.automation.jobs import SESSION_TAG
    from aaco_pipeline.automation.sessions import forget, register
    from aaco_pipeline.definitions import build_definitions
    from aaco_pipeline.resources.dagster_resources import InferenceRunner, LakeResource
    from aaco_pipeline.resources.process_identity import process_tags
    from aaco_pipeline.resources.progress import progress_listener

    with open_instance(project) as instance:
        for dead in reap(instance):
            click.echo(f"run {dead.run_id} was dead and is cleared away: {dead.reason}", err=True)
        with _progress(quiet) as show:
            _wait_for_slot(instance, show)
        session = register(lake, instance, launch)
        definitions = build_definitions(
            resource_overrides={
                "lake": LakeResource(path=str(lake.path)),
                "runner": InferenceRunner(configs=str(project.configs)),
            }
        )
        job = definitions.resolve_job_def("observe")
        try:
            with _progress(quiet) as show, progress_listener(show):
                result = job.execute_in_process(
                    instance=instance,
                    partition_key=session,
                    tags={SESSION_TAG: session, **process_tags()},
                    run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
                    raise_on_error=False,
                )
        except BaseException:
            if not lake.raw(session).is_dir():
                forget(lake, instance, session)
            raise
        if not result.success:
            if not lake.raw(session).is_dir():
                forget(lake, instance, session)
            raise _error_of(result, session)
    return session


def _wait_for_slot(instance: "dg.DagsterInstance", show: Callable[[str, int, int], None]) -> None:
    """Wait until no living run holds the measurement slot. The pool itself decides; this only keeps the wait short."""
    from aaco_pipeline.assets.capture import MEASUREMENT_POOL
    from aaco_pipeline.automation.dead_runs import reap, slot_holders

    while slot_holders(instance, MEASUREMENT_POOL):
        show("waiting for the measurement slot", 0, 0)
        reap(instance)
        time.sleep(_SLOT_POLL_SECONDS)


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on standard error for the passes; nothing when quiet or when nobody looks."""
    screen = console(stderr=True)
    if quiet or not screen.is_terminal:
        yield lambda doing, done, total: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Without automatic refresh: a thread that redraws would run beside what is measured.
    with Progress(*columns, console=screen, transient=True, auto_refresh=False) as bar:
        tasks: dict[str, Any] = {}

        def show(doing: str, done: int, total: int) -> None:
            if doing not in tasks:
                tasks[doing] = bar.add_task(doing, total=total or None)
            bar.update(tasks[doing], completed=done)
            bar.refresh()

        yield show


def _error_of(result: "dg.ExecuteInProcessResult", session: str) -> BaseException:
    """What ended the run: the expected error whose exit code the stage recorded, an interrupt, or a fault."""
    from aaco_pipeline import errors
    from aaco_pipeline.assets.stage import EXIT_CODE_KEY

    by_code = {
        kind.exit_code: kind
        for kind in (
            errors.UsageError,
            errors.ModelError,
            errors.UnavailableError,
            errors.CaptureError,
            errors.LakeError,
        )
    }
    for event in result.all_events:
        if not event.is_step_failure:
            continue
        data = event.step_failure_data
        failure = data.user_failure_data
        if failure is not None and EXIT_CODE_KEY in failure.metadata:
            code = failure.metadata[EXIT_CODE_KEY].value
            if isinstance(code, int) and code in by_code:
                return by_code[code](failure.description or "the stage gave no reason")
        if data.error is not None and data.error.cls_name in _INTERRUPTS:
            return KeyboardInterrupt()
        text = data.error.to_string() if data.error is not None else "no reason was recorded"
        return RuntimeError(f"stage {event.step_key} of session {session} failed: {text}")
    return RuntimeError(f"session {session} failed before any stage; see the run in `aaco ui`")
