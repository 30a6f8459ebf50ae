"""The interface of every kind of raw capture: its facts, tables, model and evidence.

The kinds are listed in `aaco_pipeline.capture`, which opens them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

if TYPE_CHECKING:
    import polars as pl

    from aaco_pipeline.lake.evidence import Evidence

#: `timed` is measured without a trace: a campaign takes many such sessions, and traces a few others.
Kind = Literal["measured", "profiled", "ingested", "timed", "program"]
#: Element type and sizes of a tensor, each None where unknown.
TensorType = tuple[str | None, tuple[int | None, ...] | None]
#: Subject of a statement of evidence; each is published by the stage responsible for it.
Subject = Literal["files", "host", "iterations", "trace", "telemetry", "kernel"]
#: Frames of thread traces that `tables` gives beside the lake's tables; described in `analysis.instructions`.
THREAD_TRACE: Final = (
    *("instruction_parts", "wait_executions", "wait_dependencies", "waves", "wave_starts", "sampled_stalls"),
)


@dataclass(frozen=True)
class Facts:
    """The kind of a capture, as far as an analysis may depend on it.

    `kernels_named_by`: names are a compiler's (a GPU's kernels) or the model's nodes. `ran_here`: this project measured
    it, so the calibrations of its machine hold. `asked_to_trace`: kernels for which a thread trace was requested.
    `summary`: shown by the stage `capture`.
    """

    kind: Kind
    kernels_named_by: Literal["compiler", "model"]
    ran_here: bool
    asked_to_trace: tuple[str, ...] = ()
    summary: Mapping[str, str | int | None] = field(default_factory=dict)


@dataclass(frozen=True)
class InferredTypes:
    """Types of a model's tensors by name, a one-line reason for missing ones, and its edges with those types."""

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
        """Return every table of the lake that a capture can state, by name, without the session key; else empty.

        With a thread trace, the frames named in `THREAD_TRACE` are included; for a session measured here also
        `kernel_throttling`, `kernel_probes` and `kernel_costs` (`formats.native.kernel_plane`). A table is read when it
        is taken from the mapping: CaptureError where its file is damaged.
        """
        ...

    def facts(self) -> Facts: ...

    def model(self) -> Model | None:
        """Return the model that ran, with what the runtime left of it; None where the capture holds no model."""
        ...

    def evidence(self, subject: Subject) -> "tuple[Evidence, ...]":
        """Report what the capture has and lacks of one subject."""
        ...


Source = Callable[[], "Mapping[str, pl.DataFrame]"]


class LazyTables(Mapping[str, "pl.DataFrame"]):
    """A mapping over `sources`, which read a table by name, possibly with its neighbours."""

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self._sources = sources
        self._read: dict[str, pl.DataFrame] = {}

    def __getitem__(self, name: str) -> "pl.DataFrame":
        if name not in self._read:
            self._read.update(self._sources[name]())
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)
