"""The options that say what to measure, the same for every command that measures, and the launch they mean.

What a launch is lives in `aaco_pipeline.capture.request`; batch size and prompt length are each command's own, because
some commands take one and some take several.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from aaco_pipeline.capture.request import MeasurementRequest


def launch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """All options of a measurement but `--batch` and `--prompt`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS = (
    click.option(
        "--model", required=True, metavar="NAME|PATH", help="A built-in or registered model, or an .onnx file."
    ),
    click.option("--backend", default="cpu", show_default=True, help="cpu, migraphx, rocm or cuda; see `aaco info`."),
    click.option(
        "--tokens",
        "output_tokens",
        type=click.IntRange(min=1),
        help="With --prompt: generate so many tokens for each request; iterations then count requests.",
    ),
    click.option("--iterations", type=click.IntRange(min=1), help="Measured iterations of each pass (default 100)."),
    click.option(
        "--warmup", type=click.IntRange(min=0), help="Iterations before them, kept and excluded (default 10)."
    ),
    click.option("--threads", type=click.IntRange(min=1), help="Intra-operator threads (default on the CPU: 1)."),
    click.option(
        "--precision",
        type=click.Choice(["model", "fp16", "bf16", "fp8", "int8"]),
        default="model",
        show_default=True,
        help="Precision asked of the provider; model means as in the file.",
    ),
    click.option(
        "--optimization",
        type=click.Choice(["none", "basic", "extended", "all"]),
        default="all",
        show_default=True,
        help="How far the runtime rewrites the graph; up to extended, kernels keep the names of the model's nodes.",
    ),
    click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the inputs."),
    click.option(
        "--timeout", type=float, default=600.0, show_default=True, help="Limit on the measured passes, seconds."
    ),
    click.option(
        "--shape",
        "shapes",
        multiple=True,
        metavar="INPUT=1x3x224x224",
        help="Shape of an input with dynamic dimensions; may be repeated.",
    ),
    click.option("--allow-fallback", is_flag=True, help="Measure even if the provider does not run every node."),
    click.option("--scheduler", is_flag=True, help="Record scheduler events with bpftrace or perf, where allowed."),
    click.option(
        "--profile", is_flag=True, help="Trace kernels, copies and HIP calls with rocprofv3, in a further pass."
    ),
    click.option(
        "--counters",
        metavar="SET[,SET]",
        help="Read hardware counters with rocprofv3, in as many further passes as they need: basic, memory, compute, "
        "occupancy or your own set from configs/counter_sets.yaml; implies --profile.",
    ),
    click.option(
        "--thread-trace",
        metavar="KERNEL",
        help="Trace the instructions of one execution of a kernel, or of the most important one (auto), with "
        "rocprofv3; implies --profile.",
    ),
)


def launch_of(options: dict[str, Any], **further: Any) -> "MeasurementRequest":
    """The launch that the options mean; `further` fields of it are the command's own."""
    from pathlib import Path

    from aaco_pipeline.capture.request import MeasurementRequest

    model = options["model"]
    if model.endswith(".onnx") or "/" in model:
        model = str(Path(model).absolute())
    return MeasurementRequest(
        model=model,
        backend=options["backend"],
        iterations=options["iterations"],
        warmup=options["warmup"],
        threads=options["threads"],
        precision=options["precision"],
        optimization=options["optimization"],
        seed=options["seed"],
        timeout_seconds=options["timeout"],
        allow_fallback=options["allow_fallback"],
        scheduler=options["scheduler"],
        output_tokens=options["output_tokens"],
        profile=options["profile"],
        counters=options["counters"],
        thread_trace=options["thread_trace"],
        input_shapes=dict(_shape(text) for text in options["shapes"]),
        **further,
    )


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    """`input=1x3x224x224` (or with commas) as a name and a shape; an empty shape is a scalar's."""
    name, separator, dimensions = text.rpartition("=")
    parts = dimensions.replace(",", "x").split("x") if dimensions else []
    if not separator or not name or not all(part.strip().isdigit() for part in parts):
        raise click.BadParameter(f"{text!r} is not a shape; expected INPUT=1x3x224x224", param_hint="--shape")
    return name, tuple(int(part) for part in parts)
