"""The face that every kind of raw capture has: its facts, its tables, its model, its evidence.

Which kinds there are says `aaco_pipeline.capture`, which opens them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, Protocol

if TYPE_CHECKING:
    import polars as pl

    from aaco_pipeline.capture.model import RecordedModel
    from aaco_pipeline.lake.evidence import Evidence

Kind = Literal["measured", "profiled", "ingested"]
#: What a statement of evidence is about; each is published by the stage that answers for it.
Subject = Literal["files", "host", "iterations", "trace", "telemetry"]
#: Frames of thread traces that `tables` gives beside the lake's tables; `analysis.instructions` says what is in them.
THREAD_TRACE: Final = (
    *("instruction_parts", "wait_executions", "wait_dependencies", "waves", "wave_starts", "sampled_stalls"),
)


@dataclass(frozen=True)
class Facts:
    """What kind of capture it is, as far as an analysis may care.

    `kernels_named_by`: whether names are a compiler's (a GPU's kernels) or the model's nodes. `ran_here`: whether this
    project measured it, so that the calibrations of its machine hold. `asked_to_trace`: kernels that a thread trace was
    asked for. `summary`: what the stage `capture` shows of it.
    """

    kind: Kind
    kernels_named_by: Literal["compiler", "model"]
    ran_here: bool
    asked_to_trace: tuple[str, ...] = ()
    summary: Mapping[str, str | int | None] = field(default_factory=dict)


class Capture(Protocol):
    """A raw capture, parsed when first asked and once."""

    def tables(self) -> Mapping[str, "pl.DataFrame"]:
        """Every table of the lake that a capture can state, by name, without the session key; empty where it does not.

        Beside them, where a thread trace was taken, the frames named in `THREAD_TRACE`. A table is read when it is
        taken from the mapping: CaptureError where its file is damaged.
        """
        ...

    def facts(self) -> Facts: ...

    def model(self) -> "RecordedModel | None":
        """The model that ran, with what the runtime left of it; None where the capture holds no model."""
        ...

    def evidence(self, subject: Subject) -> "tuple[Evidence, ...]":
        """What the capture has and lacks of one subject."""
        ...
