"""A model by its path: taken from a trusted folder as a copy in the lake, with its weights, or refused.

Scratch folders lie where nobody else may write.
"""

import json
import os
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.errors import AacoError, ModelError
from aaco_pipeline.lake.health import faults
from aaco_pipeline.lake.retention import UNFINISHED_STAYS
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.scratch import scratch
from aaco_pipeline.pipeline.trusted_models import register_trusted
from aaco_pipeline.resources.measure.runner import InferenceRunner
from aaco_pipeline.resources.project_settings import TRUSTED_FOLDERS_FILE
from benchmarks.reliability.hostile_paths import CASES, Place, handed_over, laid_out, made, was_run


@pytest.fixture
def place(tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("AACO_CACHE", str(cache_folder))
    return laid_out(tmp_path / "place", "model", tmp_path / "ran")


def registered(place: Place, model: str) -> MeasurementRequest:
    lake, runner = TraceLake(place.root / "lake"), InferenceRunner(configs=str(place.root / "configs"))
    session = register_trusted(lake, runner, MeasurementRequest(model=model))
    return MeasurementRequest.from_json(lake.requested(session) or "", session)


def with_weights(path: Path) -> Path:
    """A model that keeps its weights in the file `weights` beside it."""
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4]) for name in "xy")
    weights = onnx.numpy_helper.from_array(np.ones(4, np.float32), "w")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Add", ["x", "w"], ["y"])], "own", [x], [y], [weights])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    onnx.save(model, str(path), save_as_external_data=True, location="weights", size_threshold=0)
    return path


def test_a_model_is_measured_from_a_copy_that_nobody_swaps(place: Place) -> None:
    path = place.harmless()
    request = registered(place, path.name)
    path.write_bytes(place.outside)
    assert request.model == str(path)
    assert request.artefact is not None
    assert Path(request.artefact).is_relative_to(place.root / "lake")
    assert Path(request.artefact).read_bytes() == place.inside


def test_a_copy_stays_as_long_as_its_session_waits(place: Place) -> None:
    folder = Path(registered(place, str(place.harmless())).artefact or "").parent
    before = time.time() - 2 * UNFINISHED_STAYS.total_seconds()
    os.utime(folder, (before, before))
    lake = TraceLake(place.root / "lake")
    assert [one.path for one in faults(lake) if one.kind == "unnamed artefact"] == []
    (session,) = lake.requests()
    lake.withdraw(session)
    assert [one.path for one in faults(lake) if one.kind == "unnamed artefact"] == [folder]


def test_weights_beside_a_model_are_copied_and_a_link_among_them_is_refused(place: Place) -> None:
    path = with_weights(place.trusted / "own.onnx")
    request = registered(place, str(path))
    assert Path(request.artefact or "").with_name("weights").read_bytes() == (place.trusted / "weights").read_bytes()
    (place.trusted / "weights").rename(place.root / "weights")
    with pytest.raises(ModelError, match=r"weights: no such file; .*own.onnx keeps weights there"):
        registered(place, str(path))
    (place.trusted / "weights").symlink_to(place.root / "weights")
    with pytest.raises(AacoError, match="links are not followed"):
        registered(place, str(path))


def test_a_model_that_cannot_be_measured_is_named_by_its_own_path(place: Place) -> None:
    (empty := place.trusted / "empty.onnx").touch()
    with pytest.raises(ModelError, match=f"^{empty}: an empty file"):
        registered(place, str(empty))
    assert not (place.root / "lake").exists()


@pytest.mark.parametrize("name", ["absolute, elsewhere", "a linked folder at depth 2", "a file swapped by a thread"])
def test_a_run_takes_nothing_from_outside(name: str, place: Place, tmp_path: Path) -> None:
    with made(CASES[name], place) as path:
        took = handed_over(place, path)
    assert not was_run(place, tmp_path / "ran")
    assert not took or "swapped" in name


def test_a_run_takes_a_model_of_the_folder(place: Place, tmp_path: Path) -> None:
    assert handed_over(place, str(place.harmless()))
    (session,) = TraceLake(place.root / "lake").requests()
    asked = json.loads(TraceLake(place.root / "lake").requested(session) or "")
    assert Path(asked["artefact"]).read_bytes() == place.inside
    assert (place.root / "configs" / TRUSTED_FOLDERS_FILE).is_file()


def test_nothing_is_built_where_others_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setenv("AACO_CACHE", str(tmp_path / "open"))
    with scratch("anything") as folder:
        assert folder.is_dir()
        assert not folder.is_relative_to(tmp_path)
    assert not folder.exists()
