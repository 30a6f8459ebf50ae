"""The face that every kind of raw capture has: its facts, its tables, its model, its evidence.

Which kinds there are says `aaco_pipeline.capture`, which opens them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import polars as pl

if TYPE_CHECKING:
    import polars as pl

    from aaco_pipeline.lake.evidence import Evidence


#: `timed` is measured without a trace: a campaign takes many such sessions, and traces a few others.
Kind = Literal["measured", "profiled", "ingested", "timed", "program"]
#: Element type and sizes of a tensor, each None where it is not known.
TensorType = tuple[str | None, tuple[int | None, ...] | None]
#: What a statement of evidence is about; each is published by the stage that answers for it.
Subject = Literal["files", "host", "iterations", "trace", "telemetry", "kernel"]
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


@dataclass(frozen=True)
class InferredTypes:
    """Types of a model's tensors by name, in one line why some are missing, and its edges with those types."""

    types: Mapping[str, TensorType]
    reason: str | None
    edges: "pl.DataFrame"


class Graph(Protocol):
    """A model's graph: see `aaco_pipeline.formats.onnx.ModelGraph`."""

    @property
    def nodes(self) -> "pl.DataFrame": ...

    @property
    def weights(self) -> list[str]: ...

    @property
    def attributes(self) -> Mapping[int, Mapping[str, Any]]: ...


class Model(Protocol):
    """The model that a captured run executed: see `aaco_pipeline.capture.measured.RecordedModel`."""

    @property
    def file(self) -> Path: ...

    @property
    def kernel_shapes(self) -> "pl.DataFrame | None": ...

    @property
    def graph(self) -> Graph: ...

    @property
    def optimized(self) -> Graph | None: ...

    @property
    def partitions(self) -> dict[str, list[str]]: ...

    def inferred(self, seen: Mapping[str, TensorType]) -> InferredTypes: ...


class Capture(Protocol):
    """A raw capture, parsed when first asked and once."""

    def tables(self) -> Mapping[str, "pl.DataFrame"]:
        """Every table of the lake that a capture can state, by name, without the session key; empty where it does not.

        Beside them, where a thread trace was taken, the frames named in `THREAD_TRACE`; of a session measured here
        `kernel_throttling`, `kernel_probes` and `kernel_costs` (`formats.native.kernel_plane`). A table is read when it
        is taken from the mapping: CaptureError where its file is damaged.
        """
        ...

    def facts(self) -> Facts: ...

    def model(self) -> Model | None:
        """The model that ran, with what the runtime left of it; None where the capture holds no model."""
        ...

    def evidence(self, subject: Subject) -> "tuple[Evidence, ...]":
        """What the capture has and lacks of one subject."""
        ...


Source = Callable[[], Mapping[str, pl.DataFrame]]


class LazyTables(Mapping[str, pl.DataFrame]):
    """A mapping over `sources`: for each name the function that reads it, with its neighbours or alone."""

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self._sources = sources
        self._read: dict[str, pl.DataFrame] = {}

    def __getitem__(self, name: str) -> pl.DataFrame:
        if name not in self._read:
            self._read.update(self._sources[name]())
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)
