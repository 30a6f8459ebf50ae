"""Outputs are the same where half of their digits agree, and nothing else is."""

from typing import Any

import numpy as np
import pytest

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.correctness.model_outputs import compare_outputs, depend_on_inputs, joined


def outputs(*values: Any, dtype: str = "float32") -> dict[str, Any]:
    return {"y": np.array(values, dtype)}


@pytest.mark.parametrize(
    ("dtype", "off"), [("float32", 1e-4), ("float16", 1e-2), ("float64", 1e-9), ("float32", 0.0), ("int64", 0.0)]
)
def test_rounding_is_no_difference(dtype: str, off: float) -> None:
    facts = compare_outputs([outputs(100, 0, -3, dtype=dtype)], [outputs(100, 100 * off, -3, dtype=dtype)])
    assert facts["largest_error_ratio"] == pytest.approx(off, rel=0.01) and facts["runs"] == 1


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (outputs(1, 2), outputs(1, 2.01)),
        (outputs(1, 2, dtype="float64"), outputs(1, 2 + 1e-6, dtype="float64")),
        (outputs(0, 0), outputs(0, 1e-30)),
        (outputs(1, np.nan), outputs(1, 2)),
        (outputs(1, 2), outputs(1, np.inf)),
        (outputs(np.inf), outputs(-np.inf)),
        (outputs(1, 2, dtype="int64"), outputs(1, 3, dtype="int64")),
        (outputs(1, 2), outputs(1, 2, dtype="float64")),
        (outputs(1, 2), outputs(1)),
        (outputs(1), {"z": np.ones(1, np.float32)}),
    ],
)
def test_whatever_else_differs_is_refused(before: Any, after: Any) -> None:
    with pytest.raises(Refused) as refused:
        compare_outputs([outputs(0), before], [outputs(0), after])
    assert refused.value.guard == "outputs"


def test_one_nan_or_infinity_is_as_good_as_the_same() -> None:
    assert compare_outputs([outputs(np.nan, np.inf, 1)], [outputs(np.nan, np.inf, 1)])["largest_error_ratio"] == 0


def test_a_batch_is_held_against_its_items_one_after_the_other() -> None:
    runs = [{"y": np.full((1, 2), number, np.float32)} for number in range(4)]
    assert [one["y"][:, 0].tolist() for one in joined(runs, 2)] == [[0, 1], [2, 3]]
    assert joined(runs, 1) == runs
    with pytest.raises(Refused, match="no dimension"):
        joined([{"y": np.float32(1) * np.ones(())}] * 2, 2)


def test_outputs_that_never_change_are_told() -> None:
    assert depend_on_inputs([outputs(1), outputs(2)])
    assert not depend_on_inputs([outputs(1, np.nan), outputs(1, np.nan)])
