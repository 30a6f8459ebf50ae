"""Kinds of work: time and shares of all kernels, and the time in which no other kind ran."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.answer.kinds import COMMUNICATION, GLUE, UNNAMED, kinds_of_work
from tests.analysis.answer.made_up import rows

FAMILIES = ("gemm", "elementwise", "copy/memset", None, "communication")
KERNELS = rows(
    "kernels",
    [{"kernel_id": i, "name": f"k{i}", "short_name": f"k{i}", "family": one} for i, one in enumerate(FAMILIES)],
)


def judged(*ran: tuple[int, int, int], copies: tuple[tuple[int, int], ...] = ()) -> dict[str, dict[str, Any]]:
    """Kinds by name of dispatches given as kernel, start and end."""
    dispatches = rows("dispatches", [{"kernel_id": k, "start_ns": start, "end_ns": end} for k, start, end in ran])
    moved = rows("memory_copies", [{"start_ns": start, "end_ns": end} for start, end in copies])
    tables = {"dispatches": dispatches, **{name: rows(name) for name in ("roofline", "operator_shapes", "ceilings")}}
    found = kinds_of_work(dispatches, moved, {**tables, "kernels": KERNELS})
    assert found.get_column("time_ns").is_sorted(descending=True)
    return {str(row["kind"]): row for row in found.rows(named=True)}


def test_without_work_there_are_no_kinds() -> None:
    assert judged() == {}


def test_elementwise_kernels_fills_and_copies_within_the_device_are_one_kind() -> None:
    found = judged((1, 0, 10), (2, 10, 25), copies=((30, 35),))
    assert list(found) == [GLUE]
    assert (found[GLUE]["time_ns"], found[GLUE]["dispatch_count"], found[GLUE]["kernel_id"]) == (30, 3, 2)


def test_shares_are_of_all_kernels_but_collectives_and_theirs_of_all() -> None:
    found = judged((0, 0, 30), (3, 30, 40), (4, 40, 100))
    shares = {name: row["share_ratio"] for name, row in found.items()}
    assert shares == {"gemm": pytest.approx(0.75), UNNAMED: pytest.approx(0.25), COMMUNICATION: pytest.approx(0.6)}


def test_alone_is_the_time_in_which_no_other_kind_ran() -> None:
    found = judged((0, 0, 100), (0, 20, 50), (1, 90, 130))
    assert (found["gemm"]["time_ns"], found["gemm"]["alone_ns"]) == (130, 90)
    assert (found[GLUE]["time_ns"], found[GLUE]["alone_ns"]) == (40, 30)


times = st.tuples(st.integers(0, len(FAMILIES) - 1), st.integers(0, 10**12), st.integers(0, 10**9))


@given(st.lists(times, max_size=12))
def test_times_add_up_and_no_kind_is_alone_for_longer_than_it_ran(drawn: list[tuple[int, int, int]]) -> None:
    ran = [(kernel, start, start + length) for kernel, start, length in drawn]
    found = judged(*ran)
    assert sum(row["time_ns"] for row in found.values()) == sum(end - start for _, start, end in ran)
    assert sum(row["dispatch_count"] for row in found.values()) == len(ran)
    assert all(0 <= row["alone_ns"] <= row["time_ns"] for row in found.values())
    own = [row["share_ratio"] for name, row in found.items() if name != COMMUNICATION]
    assert sum(own) in (0, pytest.approx(1))


@pytest.mark.parametrize(("sources", "source"), [(("measured", "measured"), "measured"), (("measured", "spec"), None)])
def test_a_kernel_without_a_number_format_has_the_source_that_all_its_roofs_have(
    sources: tuple[str, str], source: str | None
) -> None:
    """On the CPU no kernel states its number format; a measured roof must not be called a published one."""
    ceilings = [
        {"device_id": 0, "resource": "vector", "dtype": dtype, "value": 1e9, "unit": "flop/s", "source": source}
        for dtype, source in zip(("fp32", "fp64"), sources, strict=True)
    ]
    roof = {"kernel_id": 0, "duration_ns": 10, "bound": "vector", "efficiency_ratio": 0.9}
    reached = {"achieved_flops_per_s": 9e8, "achieved_bytes_per_s": None, "dispatch_id": None}
    tables = {"roofline": rows("roofline", [{**roof, **reached}]), "ceilings": rows("ceilings", ceilings)}
    tables |= {"operator_shapes": rows("operator_shapes"), "kernels": KERNELS}
    dispatches = rows("dispatches", [{"kernel_id": 0, "start_ns": 0, "end_ns": 10}])
    (row,) = kinds_of_work(dispatches, rows("memory_copies"), {**tables, "dispatches": dispatches}).rows(named=True)
    assert (row["roof"], row["roof_ratio"], row["roof_source"]) == ("vector", 0.9, source)


def test_one_small_operator_does_not_speak_for_its_kind() -> None:
    """An operator of known work in 1 of 100 ns of products gives no rate, no roof and no bound."""
    dispatches = rows("dispatches", [{"kernel_id": 0, "start_ns": 0, "end_ns": 100}])
    shape = {"device_id": 0, "operator": "aten::mm", "kernel_ns": 1, "copy_ns": 0, "flops": 10**6, "dtype": "bf16"}
    shape |= {"achieved_flops_per_s": 1e15, "bound": "matrix", "share_ratio": 0.9}
    tables = {"roofline": rows("roofline"), "ceilings": rows("ceilings"), "kernels": KERNELS, "dispatches": dispatches}

    def figures(kernel_ns: int) -> dict[str, Any]:
        shapes = rows("operator_shapes", [{**shape, "kernel_ns": kernel_ns}])
        (row,) = kinds_of_work(dispatches, rows("memory_copies"), {**tables, "operator_shapes": shapes}).rows(
            named=True
        )
        return {name: row[name] for name in ("operator", "rate", "roof_ratio", "reached_ratio")}

    assert figures(1) == dict.fromkeys(("operator", "rate", "roof_ratio", "reached_ratio"))
    assert figures(50) == {"operator": "aten::mm", "rate": 1e15, "roof_ratio": 0.9, "reached_ratio": 0.9}


def test_how_near_a_kind_is_to_its_roofs_is_weighted_by_time() -> None:
    dispatches = rows("dispatches", [{"kernel_id": 0, "start_ns": 0, "end_ns": 100}])
    shape = {"device_id": 0, "operator": "aten::mm", "copy_ns": 0, "flops": 10**6, "achieved_flops_per_s": 1e15}
    known = [{"shapes": "a", "kernel_ns": 60, "share_ratio": 0.9}, {"shapes": "b", "kernel_ns": 20, "share_ratio": 0.5}]
    shapes = rows("operator_shapes", [{**shape, **one} for one in known])
    tables = {"roofline": rows("roofline"), "ceilings": rows("ceilings"), "kernels": KERNELS, "dispatches": dispatches}
    (row,) = kinds_of_work(dispatches, rows("memory_copies"), {**tables, "operator_shapes": shapes}).rows(named=True)
    assert (row["roof_ratio"], row["reached_ratio"]) == (0.9, pytest.approx(0.8))


def test_no_roof_is_known_when_memory_may_limit_before_the_units() -> None:
    """Decoding multiplies few rows by all weights: 3 TB/s of 4 TB/s say more than 14 % of the matrix units' peak."""
    dispatches = rows("dispatches", [{"kernel_id": 0, "start_ns": 0, "end_ns": 100}])
    shape = {"device_id": 0, "operator": "aten::mm", "kernel_ns": 100, "copy_ns": 0, "flops": 10**6, "dtype": "bf16"}
    shape |= {"achieved_flops_per_s": 9.6e13, "achieved_bytes_per_s": 3e12, "bound": "matrix", "share_ratio": 0.14}
    dram = {"device_id": 0, "resource": "dram", "value": 4e12, "unit": "byte/s", "source": "reported"}
    tables = {"roofline": rows("roofline"), "kernels": KERNELS, "dispatches": dispatches}

    def figures(bandwidth: float) -> tuple[object, ...]:
        shapes, ceilings = rows("operator_shapes", [shape]), rows("ceilings", [{**dram, "value": bandwidth}])
        given = {**tables, "operator_shapes": shapes, "ceilings": ceilings}
        (row,) = kinds_of_work(dispatches, rows("memory_copies"), given).rows(named=True)
        return row["rate"], row["roof"], row["roof_ratio"], row["reached_ratio"]

    assert figures(4e12) == (9.6e13, None, None, None)
    assert figures(4e13) == (9.6e13, "matrix", 0.14, 0.14)


def test_a_kernels_rate_is_never_given_for_an_operator() -> None:
    """The operator that takes most is too small a part of its kind to be named; the heaviest kernel is another."""
    dispatches = rows("dispatches", [{"kernel_id": 1, "start_ns": 0, "end_ns": 1000}])
    small = {"device_id": 0, "operator": "aten::mul", "copy_ns": 0, "flops": 10, "achieved_bytes_per_s": 2e12}
    shapes = rows("operator_shapes", [{**small, "shapes": f"{i}", "kernel_ns": 60} for i in range(10)])
    roof = {"kernel_id": 1, "duration_ns": 10, "achieved_flops_per_s": 5e11, "achieved_bytes_per_s": None}
    tables = {"roofline": rows("roofline", [{**roof, "dispatch_id": None}]), "ceilings": rows("ceilings")}
    given = {**tables, "operator_shapes": shapes, "kernels": KERNELS, "dispatches": dispatches}
    (row,) = kinds_of_work(dispatches, rows("memory_copies"), given).rows(named=True)
    assert (row["operator"], row["rate"]) == ("aten::mul", None)
