"""Counters of kernels without a dispatch of their own: their means do not depend on the order of rows."""

import polars as pl

from aaco_pipeline.analysis.roofline.counter_table import _with_kernels
from aaco_pipeline.lake.contracts import polars_types

VALUES = [0.1, 0.2, 0.3, 1e16, -1e16, 3.3, 7.7]


def test_means_over_executions_are_the_same_to_the_last_digit_in_any_order() -> None:
    rows, types = len(VALUES), polars_types("counters")
    given = {
        "kernel_id": [0] * rows,
        "dispatch_id": [None] * rows,
        "counter": ["SQ_WAVES"] * rows,
        "pass": ["pass_1"] * rows,
        "value": VALUES,
        "pass_duration_ns": [1000] * rows,
    }
    counters = pl.DataFrame(given, schema={name: types[name] for name in given})
    identity = pl.Schema({"kernel_id": pl.Int32(), "device_id": pl.Int32()})
    dispatches = pl.DataFrame({"kernel_id": [0], "device_id": [0]}, schema=identity)
    means = {
        _with_kernels(counters.sample(fraction=1, shuffle=True, seed=seed), dispatches)[0].get_column("value").item()
        for seed in range(20)
    }
    assert len(means) == 1
