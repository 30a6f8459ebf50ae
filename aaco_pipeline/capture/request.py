"""Settings of a measurement: each is declared once, with its type, default, bounds, help and spelling.

This declaration generates the command's options (`aaco_pipeline.cli.options`), the launchpad's configuration
(`aaco_pipeline.automation.jobs`), the measured process's job (`aaco_pipeline.resources.measure.inference`), and the
text kept in the lake. `resources.measure.inference` checks whether the named model or backend exists.
"""

import json
import reprlib
import threading
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ModelWrapValidatorHandler, ValidationError, model_validator

from aaco_pipeline.errors import UsageError

#: Role of a session in its campaign. A canary never changes, so only the host affects it; a placebo is a fresh copy of
#: the baseline, so only its location on the host affects it.
Arm = Literal["candidate", "baseline", "canary", "placebo"]
Precision = Literal["model", "fp16", "bf16", "fp8", "int8"]
Optimization = Literal["none", "basic", "extended", "all"]
#: Readings are kept in memory until the end of a pass.
MOST_ITERATIONS: Final = 10_000_000
_MOST: Final = 2**31 - 1
DEFAULT_ITERATIONS: Final = 100
DEFAULT_WARMUP: Final = 10

Shape = list[Annotated[int, Field(ge=0)]]
_PLAIN_WORDS: Final = (
    ("Input should be ", "expected "),
    ("String should have ", "expected "),
    ("greater than or equal to", "at least"),
    ("less than or equal to", "at most"),
    ("greater than", "more than"),
    ("Field required", "it is required"),
    ("Extra inputs are not permitted", "there is no such key"),
)


def in_plain_words(message: str) -> str:
    """Rephrase pydantic's message about a value in this project's words: `expected at least 1`."""
    for said, plain in _PLAIN_WORDS:
        message = message.replace(said, plain)
    return message


class MeasurementSettings(BaseModel):
    """Settings that the user chooses. None means the value registered for the model or backend, else the default.

    Field extras: `option` is the spelling on the command line if it differs from the name, and `metavar` is the
    placeholder for its value. The unit is in the metavar and in the field's name.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    model: str = Field(
        description="A built-in or registered model, or the path of an .onnx file.",
        json_schema_extra={"metavar": "NAME|PATH"},
    )
    backend: str = Field(
        default="cpu",
        description="Where the model runs: cpu, migraphx, rocm, cuda or a name from configs/backends.yaml; `aaco info` "
        "lists what works on this host.",
    )
    batch_size: int | None = Field(
        default=None,
        ge=1,
        le=_MOST,
        description="Batch size; the model's first dimension must be dynamic.",
        json_schema_extra={"option": "--batch"},
    )
    iterations: int | None = Field(
        default=None,
        ge=1,
        le=MOST_ITERATIONS,
        description=f"Measured iterations of each pass (default: as registered, else {DEFAULT_ITERATIONS}).",
    )
    warmup: int | None = Field(
        default=None,
        ge=0,
        le=MOST_ITERATIONS,
        description=f"Iterations before the measured ones, kept and excluded (default: as registered, else "
        f"{DEFAULT_WARMUP}).",
    )
    threads: int | None = Field(
        default=None, ge=1, le=_MOST, description="Intra-operator threads (default: as configured, else 1 on the CPU)."
    )
    precision: Precision = Field(
        default="model", description="Precision the provider converts the model to; model leaves it as in the file."
    )
    optimization: Optimization = Field(
        default="all",
        description="How far the runtime rewrites the graph; up to extended, kernels keep the names of the model's "
        "nodes.",
    )
    seed: int = Field(default=0, ge=0, le=2**63 - 1, description="Seed of the generated inputs.")
    timeout_seconds: float = Field(
        default=600.0,
        gt=0,
        le=threading.TIMEOUT_MAX,
        description="Time limit for all measured passes together, in seconds.",
        json_schema_extra={"option": "--timeout", "metavar": "SECONDS"},
    )
    input_shapes: Mapping[str, Shape] = Field(
        default={},
        description="Shapes of inputs with dynamic dimensions.",
        json_schema_extra={"option": "--shape", "metavar": "INPUT=1x3x224x224"},
    )
    provider_options: Mapping[str, str] = Field(
        default={},
        description="Options of the execution provider, over those of the backend.",
        json_schema_extra={"option": "--provider-option", "metavar": "KEY=VALUE"},
    )
    interpreter: str | None = Field(
        default=None,
        description="Python that runs the model, with NumPy and an onnxruntime of its own: to compare releases "
        "(default: the one that runs aaco).",
        json_schema_extra={"metavar": "PATH"},
    )
    allow_fallback: bool = Field(default=False, description="Measure even if the provider does not run every node.")
    prompt_tokens: int | None = Field(
        default=None,
        ge=1,
        le=_MOST,
        description="Prompt length of a language model that generates; goes with the number of output tokens.",
        json_schema_extra={"option": "--prompt", "metavar": "TOKENS"},
    )
    output_tokens: int | None = Field(
        default=None,
        ge=1,
        le=_MOST,
        description="Tokens to generate for each prompt; iterations then count requests.",
        json_schema_extra={"option": "--tokens", "metavar": "TOKENS"},
    )
    kernel_plane: bool = Field(
        default=False,
        description="Record what the kernel does with the measured threads (switches, wake-ups, faults, interrupts) "
        "through tracefs, else what perf or bpftrace see of it, and say why iterations took longer; see `aaco show "
        "--spikes`.",
    )
    profile: bool = Field(
        default=False, description="Trace kernels, copies and HIP calls with rocprofv3, in a pass of its own."
    )
    counters: str | None = Field(
        default=None,
        description="Read hardware counters with rocprofv3, in as many passes as they need: basic, memory, compute, "
        "occupancy or a set from configs/counter_sets.yaml; implies profile.",
        json_schema_extra={"metavar": "SET[,SET]"},
    )
    thread_trace: str | None = Field(
        default=None,
        description="Trace the instructions of one execution of this kernel with rocprofv3; auto takes the kernel with "
        "the most time on the critical path; implies profile.",
        json_schema_extra={"metavar": "KERNEL"},
    )


class MeasurementRequest(MeasurementSettings):
    """One measurement and its place in a campaign. Out-of-bounds values raise UsageError with one line."""

    campaign_id: str | None = None
    arm: Arm | None = None
    block: int | None = None
    #: Measured only for latency, without the pass profiled by the runtime.
    untraced: bool = False
    #: File to measure instead of the current file of `model`: a baseline's copy in the lake. The model's name and
    #: registration do not change.
    artefact: str | None = None

    @model_validator(mode="wrap")
    @classmethod
    def _checked(cls, given: Any, check: ModelWrapValidatorHandler[Self]) -> Self:
        """Set `profile` if counters or a thread trace are requested."""
        if isinstance(given, Mapping):
            asked = [name for name in ("counters", "thread_trace") if given.get(name) is not None]
            given = {**given, **({"profile": True} if asked else {})}
        try:
            request = check(given)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(map(str, first["loc"])) or "the request"
            given_value = "" if first["type"] == "missing" else f" is {reprlib.repr(first['input'])}"
            raise UsageError(f"{name}{given_value}; {in_plain_words(first['msg'])}") from error
        for name in asked:
            if not getattr(request, name).strip() or not getattr(request, name).isprintable():
                raise UsageError(f"{name} is {getattr(request, name)!r}; give a name, or leave it out")
        if (request.prompt_tokens is None) != (request.output_tokens is None):
            raise UsageError(
                "the prompt's length and the number of tokens go together: give both to generate, or neither"
            )
        return request

    def to_json(self) -> str:
        return json.dumps(self.model_dump(mode="json"), indent=1, sort_keys=True) + "\n"

    @staticmethod
    def from_json(text: str, source: str) -> "MeasurementRequest":
        """Parse the output of `to_json`; UsageError names `source` if the text is invalid.

        Fields missing from the text get their defaults: it was written before they existed. Scheduler events, formerly
        a separate setting, are part of the kernel plane.
        """
        try:
            given = json.loads(text)
            if isinstance(given, dict) and given.pop("scheduler", False):
                given["kernel_plane"] = True
            return MeasurementRequest.model_validate(given)
        except (ValueError, UsageError) as error:
            raise UsageError(f"{source}: not a measurement request ({error})") from error


def spelling_of(setting: str) -> str:
    """Return the command-line spelling of a setting: `--batch`."""
    extras = MeasurementSettings.model_fields[setting].json_schema_extra
    own = extras.get("option") if isinstance(extras, dict) else None
    return str(own or f"--{setting.replace('_', '-')}")


def as_options(settings: Mapping[str, Any]) -> list[str]:
    """Convert settings by name to arguments of `aaco run`; None and False give none."""
    words: list[str] = []
    for name, value in settings.items():
        spelling = spelling_of(name)
        if isinstance(value, Mapping):
            for key, one in value.items():
                words += [spelling, f"{key}={'x'.join(map(str, one)) if isinstance(one, list) else one}"]
        elif value is True:
            words.append(spelling)
        elif value not in (None, False):
            words += [spelling, str(value)]
    return words
