"""The common interface of all raw captures: facts, tables, model and evidence.

`aaco_pipeline.capture` lists the kinds and opens them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

if TYPE_CHECKING:
    import polars as pl

    from aaco_pipeline.lake.evidence import Evidence

#: A `timed` session has no trace: a campaign measures many of these and traces a few others.
Kind = Literal["measured", "profiled", "ingested", "timed", "program"]
#: Element type and dimensions of a tensor, each None if unknown.
TensorType = tuple[str | None, tuple[int | None, ...] | None]
#: Subject of a piece of evidence; each is published by the stage responsible for it.
Subject = Literal["files", "host", "iterations", "trace", "telemetry", "kernel"]
#: Thread-trace frames that `tables` adds to the lake's tables; described in `analysis.instructions`.
THREAD_TRACE: Final = (
    *("instruction_parts", "wait_executions", "wait_dependencies", "waves", "wave_starts", "sampled_stalls"),
)


@dataclass(frozen=True)
class Facts:
    """Properties of a capture that an analysis may depend on.

    `kernels_named_by`: kernel names come from a compiler (GPU kernels) or are the model's nodes. `ran_here`: this
    project measured it, so its machine's calibrations apply. `asked_to_trace`: kernels for which a thread trace was
    requested. `summary`: text that the stage `capture` shows.
    """

    kind: Kind
    kernels_named_by: Literal["compiler", "model"]
    ran_here: bool
    asked_to_trace: tuple[str, ...] = ()
    summary: Mapping[str, str | int | None] = field(default_factory=dict)


@dataclass(frozen=True)
class InferredTypes:
    """Types of a model's tensors by name, a one-line reason for missing types, and the edges with their types."""

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
    """A raw capture, parsed once, on first use."""

    def tables(self) -> Mapping[str, "pl.DataFrame"]:
        """Return every lake table that a capture can fill, by name, without the session key; empty if it has no rows.

        With a thread trace, the frames named in `THREAD_TRACE` are included, and for a session measured here also
        `kernel_throttling`, `kernel_probes` and `kernel_costs` (`formats.native.kernel_plane`). A table is read on
        access; CaptureError if its file is damaged.
        """
        ...

    def facts(self) -> Facts: ...

    def model(self) -> Model | None:
        """Return the model that ran and the runtime's files about it; None if the capture holds no model."""
        ...

    def evidence(self, subject: Subject) -> "tuple[Evidence, ...]":
        """Report what the capture has and lacks for one subject."""
        ...


Source = Callable[[], "Mapping[str, pl.DataFrame]"]


class LazyTables(Mapping[str, "pl.DataFrame"]):
    """Lazy mapping over `sources`; each source reads one table, possibly together with related ones."""

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
