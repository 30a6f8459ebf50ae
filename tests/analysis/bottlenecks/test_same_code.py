"""From counted work to a label: one code at one speed gets one label, whatever it is called and ran beside.

Sessions here are made of counters and ceilings, so that the roofline's part of the decision is held to it, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.bottlenecks.classification import INPUTS, classify
from aaco_pipeline.analysis.roofline.placement import placement
from aaco_pipeline.analysis.thresholds import BALANCED, NOTHING_ELSE_NEEDS_LONGER, ROOF_UNCERTAINTY
from aaco_pipeline.assets.classification import BUILT_IN_RULES, load_bottleneck_rules
from aaco_pipeline.lake.contracts import polars_types

RULES: Final = load_bottleneck_rules(BUILT_IN_RULES)
#: 1 instruction, 64 operations and 10 bytes a nanosecond; no cache lies between L2 and DRAM.
CEILINGS: Final = (
    ("vector", "fp64", 64e9),
    ("vector_issue", None, 1e9),
    ("fabric", None, 10e9),
    ("dram", None, 10e9),
)
LENGTH: Final = 200_000


@dataclass(frozen=True)
class Kernel:
    """A kernel by the shares of `length` that its vector unit and DRAM need; None where nothing counted it."""

    name: str
    vector: float | None
    dram: float | None
    length: int = LENGTH


Labels = list[tuple[str | None, str | None]]


def labels(kernels: Sequence[Kernel], numbers: Sequence[int] | None = None) -> Labels:
    """Label and runner-up of each kernel of a session, by place."""
    ids = list(numbers or range(len(kernels)))
    work = pl.DataFrame(
        {
            "dispatch_id": ids,
            "kernel_id": ids,
            "device_id": 0,
            "duration_ns": [one.length for one in kernels],
            "flops_is_lower_bound": False,
            "quality_flags": [[]] * len(ids),
            "valu_fp64_flops": [None if one.vector is None else one.vector * LENGTH * 64 for one in kernels],
            "valu_instructions": [None if one.vector is None else one.vector * LENGTH for one in kernels],
            "fabric_read_bytes": [None if one.dram is None else one.dram * LENGTH * 10 for one in kernels],
            "fabric_write_bytes": [None if one.dram is None else 0.0 for one in kernels],
        },
        schema_overrides={
            **dict.fromkeys(("dispatch_id", "kernel_id", "device_id"), pl.Int32),
            **dict.fromkeys(("valu_fp64_flops", "valu_instructions"), pl.Float64),
            **dict.fromkeys(("fabric_read_bytes", "fabric_write_bytes"), pl.Float64),
            "quality_flags": pl.List(pl.String),
        },
    )
    roofs = [(0, resource, dtype, value, "", "measured", "") for resource, dtype, value in CEILINGS]
    made = placement(work, pl.DataFrame(roofs, schema=polars_types("ceilings"), orient="row"))
    rows: dict[str, list[dict[str, object]]] = {
        "kernels": [{"kernel_id": i, "name": one.name} for i, one in zip(ids, kernels, strict=True)],
        "kernel_stats": [
            {"kernel_id": i, "dispatch_count": 1, "total_ns": one.length, "p50_ns": one.length}
            for i, one in zip(ids, kernels, strict=True)
        ],
        "dispatches": [{"kernel_id": i, "grid_work_items": 4096, "workgroup_work_items": 256} for i in ids],
    }
    tables = {name: pl.DataFrame(rows.get(name, []), schema=polars_types(name)) for name in INPUTS}
    tables |= {"roofline": made.roofline, "resource_bounds": made.bounds}
    found = {
        row["kernel_id"]: (row["label"], row["runner_up"]) for row in classify(tables, RULES).iter_rows(named=True)
    }
    return [found[i] for i in ids]


#: Where a noise of 2 % could part two runs: at the thresholds, and where two roofs are equally near.
edges = st.one_of(
    st.tuples(st.floats(0.57, 0.63) | st.floats(0.88, 0.92), st.none() | st.floats(0.1, 0.5)),
    st.tuples(st.none() | st.floats(0.1, 0.5), st.floats(0.57, 0.63) | st.floats(0.88, 0.92)),
    st.floats(0.55, 1.0).map(lambda share: (share, share)),
    st.floats(0.55, 1.0).map(lambda share: (share, BALANCED * share)),
)
needs = st.none() | st.floats(0.02, 1.1)
codes = st.lists(st.tuples(needs, needs), min_size=1, max_size=5)
numbers = st.permutations(range(100, 110))


def named(needed: Sequence[tuple[float | None, float | None]], prefix: str = "k") -> list[Kernel]:
    return [Kernel(f"{prefix}{i}", vector, dram) for i, (vector, dram) in enumerate(needed)]


@given(codes, codes, st.permutations(range(10)), numbers)
def test_a_code_has_one_label_in_every_session(
    needed: list[tuple[float | None, float | None]],
    others: list[tuple[float | None, float | None]],
    order: list[int],
    ids: list[int],
) -> None:
    """Under other names and numbers, in another order, beside other kernels."""
    first = labels(named(needed))
    session = [*named(needed, "another_name_"), *named(others, "beside")]
    places = [place for place in order if place < len(session)]
    again = labels([session[place] for place in places], ids[: len(places)])
    assert [again[places.index(i)] for i in range(len(needed))] == first


@given(edges, st.lists(st.floats(-0.02, 0.02), min_size=6, max_size=6))
def test_runs_of_a_code_in_one_session_have_one_label(
    needed: tuple[float | None, float | None], noise: list[float]
) -> None:
    """Each a little faster or slower, and counted a little differently: no threshold parts them, nor which is first."""

    def counted(need: float | None, jitter: float) -> float | None:
        return None if need is None else need * (1 + jitter)

    def once(i: int) -> Kernel:
        length = round(LENGTH * (1 + noise[3 * i]))
        suffix = (" [clone .kd]", "")[i]
        vector, dram = needed
        return Kernel(f"k{suffix}", counted(vector, noise[3 * i + 1]), counted(dram, noise[3 * i + 2]), length)

    one, other = labels([once(0), once(1)])
    assert one == other


@given(st.floats(0.02, 1.0), st.floats(0.02, 1.0))
def test_where_less_was_counted_the_label_is_the_same_or_none(vector: float, dram: float) -> None:
    """What nothing can have needed longer than is named in both; of two within a tenth the one that was counted is."""
    whole = Kernel("k", vector, dram)
    (rich,) = labels([whole])
    less = ((replace(whole, dram=None), vector, "compute_vector"), (replace(whole, vector=None), dram, "memory_dram"))
    for counted, need, label in less:
        (poor,) = labels([counted])
        assert poor[0] in (None, *rich)
        assert poor[0] is None or need > NOTHING_ELSE_NEEDS_LONGER - 1e-9
        assert poor[0] == label or need < NOTHING_ELSE_NEEDS_LONGER + 1e-9


def test_a_run_that_was_not_counted_is_what_its_twin_of_the_same_length_is() -> None:
    counted, uncounted = Kernel("k", 0.3, 0.8), Kernel("k.kd", None, None)
    slower = replace(uncounted, length=round(LENGTH * (1 + 4 * ROOF_UNCERTAINTY)))
    assert labels([counted, uncounted]) == [("memory_dram", None)] * 2
    assert labels([counted, slower]) == [("memory_dram", None), (None, None)]
    assert labels([counted, replace(uncounted, name="j")]) == [("memory_dram", None), (None, None)]
