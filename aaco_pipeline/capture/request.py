"""What a person asked to be measured, in one value that the command, the UI and a schedule all make alike.

Finding the model and running it is `aaco_pipeline.resources.measure.inference`; keeping the value until the run has
begun is `aaco_pipeline.automation.sessions`.
"""

import json
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Literal

from aaco_pipeline.errors import UsageError

Arm = Literal["candidate", "baseline", "canary"]
PRECISIONS: Final = ("model", "fp16", "bf16", "fp8", "int8")
OPTIMIZATIONS: Final = ("none", "basic", "extended", "all")
#: Readings are kept in memory until a pass is over.
MOST_ITERATIONS: Final = 10_000_000
_MOST: Final = 2**31 - 1
DEFAULT_ITERATIONS: Final = 100
DEFAULT_WARMUP: Final = 10
DEFAULT_TIMEOUT_SECONDS: Final = 600.0


@dataclass(frozen=True)
class MeasurementRequest:
    """One measurement. None means: as the model's registry entry says, else the default.

    `model` is a registry name, a built-in name or an absolute path. `precision` other than `model` is asked of the
    execution provider. `optimization` is how far the runtime rewrites the graph before it runs. `timeout_seconds`
    bounds the measured passes together. `threads` are intra-op threads. `scheduler` asks for scheduler events.
    With `prompt_tokens` and `output_tokens` a language model generates: `iterations` then counts requests, each of
    which continues a random prompt by so many tokens.
    `profile` asks for passes under rocprofv3 after the others; `counters` (names of sets, separated by commas) and
    `thread_trace` (a kernel's name, or auto) ask for further ones and imply it.
    """

    model: str
    backend: str = "cpu"
    batch_size: int | None = None
    iterations: int | None = None
    warmup: int | None = None
    threads: int | None = None
    precision: str = "model"
    optimization: str = "all"
    seed: int = 0
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    allow_fallback: bool = False
    scheduler: bool = False
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    profile: bool = False
    counters: str | None = None
    thread_trace: str | None = None
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    campaign_id: str | None = None
    arm: Arm | None = None
    block: int | None = None

    def __post_init__(self) -> None:
        if self.counters is not None or self.thread_trace is not None:
            object.__setattr__(self, "profile", True)
        for name, text in (("counters", self.counters), ("thread_trace", self.thread_trace)):
            if text is not None and not text.strip():
                raise UsageError(f"{name} is empty; give a name, or leave it out")
        bounds = {
            "batch_size": (self.batch_size, 1, _MOST),
            "iterations": (self.iterations, 1, MOST_ITERATIONS),
            "warmup": (self.warmup, 0, MOST_ITERATIONS),
            "threads": (self.threads, 1, _MOST),
            "seed": (self.seed, 0, 2**63 - 1),
            "prompt_tokens": (self.prompt_tokens, 1, _MOST),
            "output_tokens": (self.output_tokens, 1, _MOST),
        }
        for name, (value, least, most) in bounds.items():
            if value is not None and value < least:
                raise UsageError(f"{name} is {value}; expected {least} or more")
            if value is not None and value > most:
                raise UsageError(f"{name} is {value}; expected {most} or less")
        if not 0 < self.timeout_seconds <= threading.TIMEOUT_MAX:
            raise UsageError(
                f"timeout is {self.timeout_seconds:g} s; expected more than 0 and no more than a clock holds"
            )
        if (self.prompt_tokens is None) != (self.output_tokens is None):
            raise UsageError(
                "the prompt's length and the number of tokens go together: give both to generate, or neither"
            )
        if self.precision not in PRECISIONS:
            raise UsageError(f"precision is {self.precision!r}; expected one of {', '.join(PRECISIONS)}")
        if self.optimization not in OPTIMIZATIONS:
            raise UsageError(f"optimization is {self.optimization!r}; expected one of {', '.join(OPTIMIZATIONS)}")
        for name, shape in self.input_shapes.items():
            if any(dimension < 0 for dimension in shape):
                raise UsageError(f"shape of input {name!r} is {list(shape)}; no dimension is negative")

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    @staticmethod
    def from_json(text: str, source: str) -> "MeasurementRequest":
        """Read back `to_json`; UsageError naming `source` when the text is not one."""
        try:
            document: dict[str, Any] = json.loads(text)
            known = {f.name for f in fields(MeasurementRequest)}
            unknown = sorted(set(document) - known)
            if unknown:
                raise ValueError(f"unknown field {', '.join(unknown)}")
            document["input_shapes"] = {name: tuple(shape) for name, shape in document["input_shapes"].items()}
            return MeasurementRequest(**document)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{source}: not a launch request ({error})") from error
