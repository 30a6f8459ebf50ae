"""A baseline keeps all that reproduces it, the newest that is not retired counts, and what was changed is refused."""

from pathlib import Path

import numpy as np
import onnx
import polars as pl
import pytest
from onnx import TensorProto, helper, numpy_helper

from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.errors import AacoError, LakeError, ModelError, UsageError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.nightly.baselines import arm_of, baselines, current, pin, retire
from aaco_pipeline.resources.measure.models import model_digest
from tests.places import CONFIGS


def weighty(path: Path, value: float = 1.0) -> Path:
    """A model whose weights lie beside it."""
    weights = numpy_helper.from_array(np.full(512, value, np.float32), "w")
    shape = helper.make_tensor_value_info("x", TensorProto.FLOAT, [512])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [512])
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "graph", [shape], [out], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path, save_as_external_data=True, location=f"{path.stem}.bin", size_threshold=0)
    return path


@pytest.fixture
def request_(tmp_path: Path) -> MeasurementRequest:
    return MeasurementRequest(model=str(weighty(tmp_path / "models" / "adder.onnx")), threads=1)


def one_line(raised: pytest.ExceptionInfo[AacoError], code: int) -> str:
    assert (raised.value.exit_code, str(raised.value).count("\n")) == (code, 0)
    return str(raised.value)


def test_what_is_pinned_is_measured_from_its_copy_as_it_was_asked_for(
    empty_lake: TraceLake, request_: MeasurementRequest
) -> None:
    name = pin(empty_lake, request_, CONFIGS)
    row = current(empty_lake, "adder", "cpu")
    assert row is not None
    assert (row["campaign_id"], row["kind"], row["campaign"], row["is_retired"]) == (name, "pinned", None, False)
    weighty(Path(request_.model), 2.0)  # the file at its place is another from here on
    arm = arm_of(empty_lake, row)
    assert arm.artefact == empty_lake.path / row["artefact"]
    assert (arm.baseline, arm.artefact_sha256) == (name, model_digest(arm.artefact))
    assert arm.request == request_.model_copy(update={"artefact": str(arm.artefact)})
    kept = onnx.load(arm.artefact)
    assert numpy_helper.to_array(kept.graph.initializer[0])[0] == 1.0


def test_the_newest_that_is_not_retired_counts_for_its_model_backend_and_kind(
    empty_lake: TraceLake, request_: MeasurementRequest
) -> None:
    first, second = (pin(empty_lake, request_, CONFIGS) for _ in range(2))
    rolling = pin(empty_lake, request_, CONFIGS, kind="rolling", campaign="nightly-1")
    other = pin(empty_lake, MeasurementRequest(model="control_flow"), CONFIGS)
    rows = baselines(empty_lake)
    assert rows.get_column("campaign_id").to_list() == [other, rolling, second, first]
    assert rows.filter("is_current").get_column("campaign_id").to_list() == [other, rolling, second]
    for kind, expected in (("pinned", second), ("rolling", rolling)):
        found = current(empty_lake, "adder", "cpu", kind)  # type: ignore[arg-type]
        assert found is not None
        assert found["campaign_id"] == expected
    assert current(empty_lake, "adder", "migraphx") is None
    assert current(empty_lake, "squeezenet", "cpu") is None


def test_a_retired_one_makes_way_for_the_one_before_and_can_still_be_found(
    empty_lake: TraceLake, request_: MeasurementRequest
) -> None:
    first, second = (pin(empty_lake, request_, CONFIGS) for _ in range(2))
    retire(empty_lake, second)
    found = current(empty_lake, "adder", "cpu")
    assert found is not None
    assert found["campaign_id"] == first
    row = empty_lake.read("baselines", second).row(0, named=True)
    assert row["is_retired"]
    assert arm_of(empty_lake, row).baseline == second
    retire(empty_lake, first)
    assert current(empty_lake, "adder", "cpu") is None
    assert baselines(empty_lake).get_column("is_current").to_list() == [False, False]


def test_retiring_changes_nothing_else(empty_lake: TraceLake, request_: MeasurementRequest) -> None:
    name = pin(empty_lake, request_, CONFIGS)
    before = empty_lake.read("baselines", name)
    retire(empty_lake, name)
    assert empty_lake.read("baselines", name).equals(before.with_columns(is_retired=pl.lit(True)))


def test_retiring_what_is_none_is_refused_by_name(empty_lake: TraceLake) -> None:
    with pytest.raises(UsageError, match=r"no baseline 'nothing' in .*; `aaco baseline ls` lists them") as raised:
        retire(empty_lake, "nothing")
    one_line(raised, 2)


def test_without_any_there_is_none_and_no_lake_is_made(empty_lake: TraceLake) -> None:
    assert baselines(empty_lake).is_empty()
    assert current(empty_lake, "adder", "cpu") is None
    assert not empty_lake.path.exists()


@pytest.mark.parametrize("what", ["changed", "gone"])
@pytest.mark.parametrize("name", ["adder.onnx", "adder.bin"])
def test_a_kept_file_that_changed_or_went_is_refused_in_one_line(
    what: str, name: str, empty_lake: TraceLake, request_: MeasurementRequest
) -> None:
    row = empty_lake.read("baselines", pin(empty_lake, request_, CONFIGS)).row(0, named=True)
    model = empty_lake.path / row["artefact"]
    file = model.with_name(name)
    if what == "changed":
        file.write_bytes(file.read_bytes() + b"\0")
    else:
        file.unlink()
    with pytest.raises(LakeError) as raised:
        arm_of(empty_lake, row)
    reason = f"{model}: not what was pinned, or its weights"
    if what == "gone":
        reason = f"{file}: No such file or directory"
    assert one_line(raised, 8) == f"{reason}; pin the baseline again: `aaco baseline pin`"


def test_a_model_that_is_not_there_or_keeps_weights_elsewhere_is_not_pinned(
    empty_lake: TraceLake, request_: MeasurementRequest
) -> None:
    with pytest.raises(AacoError) as missing:
        pin(empty_lake, MeasurementRequest(model="/nowhere/m.onnx"), CONFIGS)
    assert "/nowhere/m.onnx" in one_line(missing, missing.value.exit_code)
    model = onnx.load(request_.model, load_external_data=False)
    model.graph.initializer[0].external_data[0].value = "../adder.bin"  # the location
    Path(request_.model).write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="keeps weights outside its folder") as outside:
        pin(empty_lake, request_, CONFIGS)
    one_line(outside, 3)
    assert not empty_lake.path.exists()
