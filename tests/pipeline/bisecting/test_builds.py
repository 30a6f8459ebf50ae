"""Builds that are there do the same work; one that is made is kept, and leaves nothing else behind."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.errors import AacoError, ModelError, UsageError
from aaco_pipeline.lake import health
from aaco_pipeline.lake.artefacts import ARTEFACTS, BUILDS
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.bisecting.builds import builds_there, from_revision, made, require_same_work
from aaco_pipeline.pipeline.bisecting.record import Build, Recipe
from tests.places import CONFIGS
from tests.resources.toolchains.test_revisions import git

#: Copies the model that lies in the work tree, and says which revision that is.
COPY = f"{sys.executable} -c \"import shutil, sys; shutil.copy('m.onnx', sys.argv[1])\" {{output}} {{revision}}"


def write_model(path: Path, width: int = 8, scale: float = 1.0) -> Path:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.full((width, width), scale, np.float32), "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def there(*models: Path, **options: Any) -> tuple[Build, ...]:
    return builds_there([(one.stem, MeasurementRequest(model=str(one), **options)) for one in models], CONFIGS)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One commit with a model in it."""
    place = tmp_path / "engine"
    place.mkdir()
    git(place, "init", "-q", "-b", "main")
    write_model(place / "m.onnx")
    git(place, "add", "m.onnx")
    git(place, "commit", "-q", "-m", "A model")
    return place


def recipe(repository: Path, command: str = COPY, **asked: Any) -> Recipe:
    return Recipe(repository, command, 60.0, MeasurementRequest(**{"model": "{output}", **asked}))


def made_in(lake: TraceLake, how: Recipe) -> Any:
    build = from_revision(git(how.repository, "rev-parse", "HEAD"), "A model")
    return made(lake.path, "bisection-1", 3, build, how, configs=CONFIGS, log=lambda line: None)


def test_builds_that_are_there_are_known_by_their_content(tmp_path: Path) -> None:
    models = [write_model(tmp_path / f"{name}.onnx", scale=name) for name in (1, 2)]
    builds = there(*models)
    assert [one.label for one in builds] == ["1", "2"]
    digests = {one.subject.artefact_sha256 for one in builds if one.subject is not None}
    assert len(digests) == 2


@pytest.mark.parametrize("number", [0, 1])
def test_fewer_than_two_are_no_search(number: int, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give two or more"):
        there(*[write_model(tmp_path / "m.onnx")] * number)


def test_builds_of_different_inputs_are_refused_by_name(tmp_path: Path) -> None:
    models = write_model(tmp_path / "narrow.onnx"), write_model(tmp_path / "wide.onnx", width=16)
    with pytest.raises(UsageError) as raised:
        there(*models)
    assert str(raised.value) == (
        "wide: takes x float32 [4, 16], and the first build x float32 [4, 8]; builds must do the same work to be "
        "compared"
    )


def test_a_build_that_generates_tokens_is_not_held_against_one_that_does_not(tmp_path: Path) -> None:
    plain = there(write_model(tmp_path / "m.onnx"), tmp_path / "m.onnx")
    generating = there(tmp_path / "m.onnx", tmp_path / "m.onnx", prompt_tokens=4, output_tokens=2)
    with pytest.raises(UsageError, match="do not do the same work"):
        require_same_work(plain[0], generating[0])


def test_a_model_that_is_made_is_kept_by_its_content_and_nothing_else_is(
    empty_lake: TraceLake, repository: Path
) -> None:
    subject = made_in(empty_lake, recipe(repository, threads=2))
    assert subject.artefact.parents[1] == empty_lake.path / ARTEFACTS
    assert subject.artefact.name == "engine.onnx"  # the workload's name
    assert (subject.request.model, subject.request.threads) == (str(subject.artefact), 2)
    assert subject.artefact.read_bytes() == (repository / "m.onnx").read_bytes()
    assert list((empty_lake.path / BUILDS).iterdir()) == []
    assert len(git(repository, "worktree", "list").splitlines()) == 1
    assert made_in(empty_lake, recipe(repository, threads=2)) == subject


def test_a_python_that_is_made_stays_where_it_was_made(empty_lake: TraceLake, repository: Path) -> None:
    script = (
        f"open(sys.argv[1], 'w').write('#!/bin/sh\\nexec {sys.executable} \\\"$@\\\"\\n'); os.chmod(sys.argv[1], 493)"
    )
    command = f'{sys.executable} -c "import os, sys; {script}" {{output}}'
    how = recipe(repository, command, model=str(repository / "m.onnx"), interpreter="{output}")
    subject = made_in(empty_lake, how)
    place = empty_lake.path / BUILDS / "bisection-1" / "3" / "bin" / "python"
    assert subject.request.interpreter == str(place)
    assert subprocess.run([place, "-c", "pass"], check=True).returncode == 0
    assert subject.artefact == repository / "m.onnx"
    assert health.leftovers(empty_lake) == []


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (f"{sys.executable} -c 'raise SystemExit(2)' {{output}}", "ended with status 2"),
        (f"{sys.executable} -c pass {{output}}", "left no file at {output}"),
        (f"{sys.executable} -c \"import sys; open(sys.argv[1], 'w')\" {{output}}", "an empty file"),
    ],
)
def test_what_cannot_be_made_or_measured_leaves_nothing(
    command: str, words: str, empty_lake: TraceLake, repository: Path
) -> None:
    with pytest.raises(ModelError, match=words):
        made_in(empty_lake, recipe(repository, command))
    assert list((empty_lake.path / BUILDS).iterdir()) == []
    assert len(git(repository, "worktree", "list").splitlines()) == 1


def test_a_file_that_is_no_python_is_refused(empty_lake: TraceLake, repository: Path) -> None:
    with pytest.raises(AacoError, match="does not answer as a Python"):
        made_in(empty_lake, recipe(repository, model=str(repository / "m.onnx"), interpreter="{output}"))
