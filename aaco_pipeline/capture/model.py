"""The model that a captured run executed, with what the runtime left of it.

What its nodes cost and which kernel ran for which node is `aaco_pipeline.analysis.model`. Import this module only where
a model is read: importing onnx takes a noticeable part of a second.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import polars as pl

from aaco_pipeline.capture.face import InferredTypes, TensorType
from aaco_pipeline.formats import onnx
from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.formats.onnx import ModelGraph
from aaco_pipeline.formats.parsing.compression import read_decompressed
from aaco_pipeline.formats.parsing.regular_files import is_regular


@dataclass(frozen=True)
class RecordedModel:
    """The graph as it was handed to the runtime (`file`), and as it was executed (`optimized_file`, where left).

    `input_shapes` are those of the run. `kernel_shapes` has kernel_id and the shapes that the runtime's profile states
    for each kernel; None where it has none. `partition_files` are the parts that a runtime handed to a compiler.
    """

    file: Path
    optimized_file: Path
    input_shapes: Mapping[str, Sequence[int]]
    kernel_shapes: pl.DataFrame | None = None
    partition_files: tuple[Path, ...] = field(default=())

    @cached_property
    def graph(self) -> ModelGraph:
        return onnx.read(self._content, self.file.name)

    @cached_property
    def optimized(self) -> ModelGraph | None:
        """The graph that the runtime made of it; None where it did not leave it."""
        if not is_regular(self.optimized_file):
            return None
        return onnx.read(_content_of(self.optimized_file), self.optimized_file.name)

    @cached_property
    def partitions(self) -> dict[str, list[str]]:
        """Names of the nodes of each partition, by the partition's name."""
        graphs = ((file.stem, onnx.read(_content_of(file), file.name)) for file in self.partition_files)
        return {name: graph.nodes.get_column("name").drop_nulls().to_list() for name, graph in graphs}

    def inferred(self, seen: Mapping[str, TensorType]) -> InferredTypes:
        """Types of all tensors for the inputs of the run, given those that were seen at run time.

        The edges are the graph's with the types of their tensors, seen ones first, as the table `model_edges`.
        """
        found = onnx.inferred_shapes(self._content, self.input_shapes, seen)
        return InferredTypes(found.types, found.reason, onnx.typed_edges(self.graph.edges, {**found.types, **seen}))

    @cached_property
    def _content(self) -> bytes:
        return _content_of(self.file)


def _content_of(file: Path) -> bytes:
    """The bytes of a model without weights."""
    limits = Limits()
    return read_decompressed(file, replace(limits, whole_bytes=limits.document_bytes))
