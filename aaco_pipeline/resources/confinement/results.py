"""What a confined child read, as the face of a capture: tables that are loaded when they are taken.

The files of the results are opened when the child has ended and unlinked at once, so that nothing is left behind by a
program that is killed. What a child leaves is `work`.
"""

import io
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import polars as pl

from aaco_pipeline.capture.face import Facts, InferredTypes, Subject, TensorType
from aaco_pipeline.capture.lazy_tables import LazyTables
from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.parsing.regular_files import files_beneath, open_regular
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.on_disk import read_pieces
from aaco_pipeline.resources.confinement.bounds import Bounds
from aaco_pipeline.resources.confinement.server import answered, raise_told

CONFINEMENT: Final = "confinement"


@dataclass(frozen=True)
class Question:
    """What is asked of one raw folder: where it is, of which kind, and what reading it may take."""

    folder: Path
    is_ingested: bool
    bounds: Bounds

    def ask(self, work: str, **more: Any) -> "tuple[dict[str, Any], Frames]":
        """The answer, and its tables."""
        request = {"work": work, "folder": str(self.folder), "ingested": self.is_ingested, **more}
        with answered(request, self.folder, [self.folder], [], self.bounds) as (answer, results):
            return answer, Frames(results, self.folder)

    def value(self, told: Mapping[str, Any]) -> Any:
        """What the child gave; raises what it said was wrong instead."""
        if "error" in told:
            raise_told(told["error"], self.folder, self.bounds)
        return told["value"]


class Frames:
    """The tables in a folder of results, each loaded once, when it is taken; `about` is what they were read from."""

    def __init__(self, results: Path, about: Path) -> None:
        self._about = about
        files = [file for file in files_beneath(results)[0] if file.suffix == ".arrow"]
        self._unread: dict[str, io.BufferedReader] = {file.name: open_regular(file) for file in files}
        self._read: dict[str, pl.DataFrame] = {}
        weakref.finalize(self, _close, self._unread)

    def __getitem__(self, name: str) -> pl.DataFrame:
        if name not in self._read:
            try:
                with self._unread.pop(name) as stream:
                    self._read[name] = read_pieces(stream)
            except (KeyError, ValueError, pl.exceptions.PolarsError) as error:
                raise CaptureError(f"{self._about}: its reader left no such table, {name}; not read") from error
        return self._read[name]


def _close(files: Mapping[str, io.BufferedReader]) -> None:
    for file in files.values():
        file.close()


class ConfinedCapture:
    """A raw capture as a confined child read it, once: its answer, and the tables that it left."""

    def __init__(self, question: Question, answer: Mapping[str, Any], frames: Frames) -> None:
        self._question, self._answer, self._frames = question, answer, frames

    def tables(self) -> Mapping[str, pl.DataFrame]:
        told = self._answer["tables"]

        def source(name: str) -> dict[str, pl.DataFrame]:
            return {name: self._frames[self._question.value(told[name])]}

        return LazyTables({name: lambda name=name: source(name) for name in told})  # type: ignore[misc]

    def require_whole(self) -> None:
        """CaptureError with the first thing of it that could not be read."""
        for told in (self._answer["facts"], *self._answer["tables"].values(), *self._answer["evidence"].values()):
            self._question.value(told)

    def facts(self) -> Facts:
        stated = self._question.value(self._answer["facts"])
        return Facts(**{**stated, "asked_to_trace": tuple(stated["asked_to_trace"])})

    def evidence(self, subject: Subject) -> tuple[Evidence, ...]:
        own = tuple(Evidence(*one) for one in self._question.value(self._answer["evidence"][subject]))
        return (*own, self._confinement) if subject == "files" else own

    def row_accounts(self) -> list[dict[str, object]]:
        """For each record kind of each part: rows that the source has, rows taken, and why not all."""
        rows: list[dict[str, object]] = self._answer["rows"]
        return rows

    def model(self) -> "ConfinedModel | None":
        told = self._answer["model"]
        stated = None if told is None else self._question.value(told)
        if stated is None:
            return None
        shapes = stated["kernel_shapes"]
        return ConfinedModel(self._question, Path(stated["file"]), None if shapes is None else self._frames[shapes])

    @property
    def _confinement(self) -> Evidence:
        """What the readers were kept from, and what they could not be kept from."""
        missing = self._answer["unconfined"]
        return Evidence(CONFINEMENT, "partial" if missing else "present", "; ".join(missing) or None, "reader")


@dataclass(frozen=True)
class ConfinedGraph:
    """A model's graph as far as an analysis takes it: see `aaco_pipeline.formats.onnx.ModelGraph`."""

    nodes: pl.DataFrame
    edges: pl.DataFrame
    weights: list[str]
    attributes: Mapping[int, Mapping[str, Any]]


class ConfinedModel:
    """The model of a capture, read by a confined child when it is first looked into."""

    def __init__(self, question: Question, file: Path, kernel_shapes: pl.DataFrame | None) -> None:
        self._question = question
        self.file, self.kernel_shapes = file, kernel_shapes

    @property
    def graph(self) -> ConfinedGraph:
        return self._pieces[0]

    @property
    def optimized(self) -> ConfinedGraph | None:
        return self._pieces[1]

    @property
    def partitions(self) -> dict[str, list[str]]:
        return self._pieces[2]

    def inferred(self, seen: Mapping[str, TensorType]) -> InferredTypes:
        answer, frames = self._question.ask("infer", seen=dict(seen))
        types = {name: (dtype, _tuples(shape)) for name, (dtype, shape) in answer["types"].items()}
        return InferredTypes(types, answer["reason"], frames[answer["edges"]])

    @cached_property
    def _pieces(self) -> tuple[ConfinedGraph, ConfinedGraph | None, dict[str, list[str]]]:
        answer, frames = self._question.ask("model")
        sets = [{name: _tuples(value) for name, value in one.items()} for one in answer["attributes"]]
        attributes = {node: sets[place] for node, place in answer["attributes_of"]}
        optimized = answer["optimized"]
        return (
            _graph(answer["graph"], frames, attributes),
            None if optimized is None else _graph(optimized, frames, {}),
            answer["partitions"],
        )


def _graph(told: Mapping[str, Any], frames: Frames, attributes: Mapping[int, Mapping[str, Any]]) -> ConfinedGraph:
    return ConfinedGraph(frames[told["nodes"]], frames[told["edges"]], told["weights"], attributes)


def _tuples(value: Any) -> Any:
    """Lists as tuples again, at every depth."""
    return tuple(map(_tuples, value)) if isinstance(value, Sequence) and not isinstance(value, str) else value
