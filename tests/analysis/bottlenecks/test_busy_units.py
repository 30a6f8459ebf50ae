"""From counters to the label, with counters made from their definitions: what units count themselves decides.

`SQ_ACTIVE_INST_VALU` counts quad-cycles in which a SIMD executes vector instructions, over the four SIMDs of every
compute unit; an instruction of one issue slot takes a wavefront of 64 lanes four cycles, one of two slots eight.
"""

from typing import Any, Final

import polars as pl
import pytest

from aaco_pipeline.analysis.bottlenecks.classification import Judgement, Signal, judge
from aaco_pipeline.analysis.bottlenecks.kernel_signals import KERNEL_SIGNALS, kernel_signals
from aaco_pipeline.analysis.roofline.counter_metrics import counted, metrics_of, work_of
from aaco_pipeline.analysis.roofline.placement import placement
from aaco_pipeline.assets.classification import BUILT_IN_RULES, load_bottleneck_rules
from aaco_pipeline.hardware.architecture_files import architecture
from aaco_pipeline.hardware.ceilings import reported_ceilings, spec_ceilings
from aaco_pipeline.lake.contracts import contract, polars_schema
from aaco_pipeline.lake.validation import empty_table, to_contract

RULES: Final = load_bottleneck_rules(BUILT_IN_RULES)
LENGTH: Final = 1_000_000
#: What the product's documents say: compute units and MHz.
DEVICES: Final = {"gfx908": ("AMD Instinct MI100", 120, 1502), "gfx90a": ("AMD Instinct MI210", 104, 1700)}


def judged(arch: str, counters: dict[str, float], length: int = LENGTH) -> tuple[dict[str, Any], Judgement]:
    """The row of the roofline and the verdict on a kernel that counted so much in one dispatch."""
    product, units, clock = DEVICES[arch]
    device = {"device_id": 0, "arch": arch, "product": product, "compute_units": units, "max_clock_mhz": float(clock)}
    devices = to_contract("devices", pl.DataFrame([device]))
    ran = {"dispatch_id": 0, "process_id": 0, "device_id": 0, "kernel_id": 0, "start_ns": 0, "end_ns": length}
    dispatches = to_contract("dispatches", pl.DataFrame([{**ran, "below_resolution": False}]))
    rows = [{"dispatch_id": 0, "counter": name, "value": value, "pass": "p"} for name, value in counters.items()]
    found = counted(to_contract("counters", pl.DataFrame(rows)), dispatches, devices)
    published = spec_ceilings(devices)
    ceilings = pl.concat([published, reported_ceilings(devices, published)])
    placed = placement(work_of(found), ceilings)
    tables = {name: empty_table(name) for name in ("occupancy", "att_stalls", "operator_kernels")}
    nodes = pl.DataFrame(schema=polars_schema(contract("model_nodes"))).drop("session_id")
    stats = {"kernel_id": 0, "dispatch_count": 1, "total_ns": length, "p50_ns": length}
    kernels = to_contract("kernels", pl.DataFrame([{"kernel_id": 0, "name": "k", "short_name": "k"} | KINDLESS]))
    signals = kernel_signals(
        tables
        | {"kernel_stats": pl.DataFrame([stats]).cast({"kernel_id": pl.Int32}), "kernels": kernels}
        | {"dispatches": dispatches, "model_nodes": nodes, "counter_metrics": metrics_of(found)}
        | {"roofline": placed.roofline, "resource_bounds": placed.bounds}
    ).row(0, named=True)
    verdict = judge({name: Signal(signals[name], "ratio", "t") for name in KERNEL_SIGNALS}, RULES, "kernel")
    row = placed.roofline.filter(pl.col("dispatch_id").is_null()).row(0, named=True)
    return row, verdict


KINDLESS: Final = {"role": "main", "family_source": "none"}


def vector_counters(arch: str, busy: float, slots: float, megabytes: float = 1.0) -> dict[str, float]:
    """Counters of a kernel whose SIMDs are busy for that share, with instructions of so many issue slots each."""
    _, units, clock = DEVICES[arch]
    cycles = LENGTH * clock / 1e3
    quads = busy * cycles * units
    return {
        "GRBM_GUI_ACTIVE": cycles,
        "SQ_ACTIVE_INST_VALU": quads,
        "SQ_THREAD_CYCLES_VALU": 64 * quads,
        "SQ_INSTS_VALU": quads / slots,
        "SQ_INSTS_MFMA": 0.0,
        "TCC_EA_RDREQ_sum": megabytes * 1e6 / 64,
        "TCC_EA_RDREQ_32B_sum": 0.0,
        "TCC_EA_WRREQ_sum": 0.0,
        "TCC_EA_WRREQ_64B_sum": 0.0,
    }


@pytest.mark.parametrize(
    ("arch", "instruction"),
    [("gfx908", "fp64"), ("gfx908", "int32_multiply"), ("gfx908", "transcendental"), ("gfx90a", "fp64")],
)
def test_busy_vector_units_are_the_limit_whatever_an_instruction_costs(arch: str, instruction: str) -> None:
    known = architecture(arch)
    assert known is not None
    slots = known.issue_slots[instruction].value
    row, verdict = judged(arch, vector_counters(arch, 0.98, slots))
    assert verdict.rule is not None
    assert (verdict.rule.label, row["bound"]) == ("compute_vector", "vector_issue")
    assert row["efficiency_ratio"] == pytest.approx(0.98, abs=0.005)


def test_without_busy_cycles_instructions_of_two_slots_look_half_as_busy() -> None:
    known = architecture("gfx908")
    assert known is not None
    counters = vector_counters("gfx908", 0.98, known.issue_slots["fp64"].value)
    row, verdict = judged(
        "gfx908", {name: value for name, value in counters.items() if "CYCLES" not in name and "ACTIVE" not in name}
    )
    assert row["efficiency_ratio"] == pytest.approx(0.49, abs=0.005)
    assert verdict.rule is not None
    assert verdict.rule.label == "latency"


def test_a_formats_own_counters_tell_slots_without_busy_cycles() -> None:
    """Half of the instructions are transcendental and take four slots: 0.2 of the instructions' rate is half of it."""
    _, units, clock = DEVICES["gfx90a"]
    instructions = 0.2 * LENGTH * clock / 1e3 * units
    formats = [
        f"SQ_INSTS_VALU_{kind}_{size}" for kind in ("ADD", "MUL", "FMA", "TRANS") for size in ("F16", "F32", "F64")
    ]
    counters = dict.fromkeys((*formats, "SQ_INSTS_VALU_INT32", "SQ_INSTS_VALU_INT64", "SQ_INSTS_MFMA"), 0.0)
    counters |= {"SQ_INSTS_VALU": instructions, "SQ_INSTS_VALU_TRANS_F32": instructions / 2}
    memory = {
        "TCC_EA_RDREQ_sum": 1e3,
        "TCC_EA_RDREQ_32B_sum": 0.0,
        "TCC_EA_WRREQ_sum": 0.0,
        "TCC_EA_WRREQ_64B_sum": 0.0,
    }
    row, _ = judged("gfx90a", counters | memory)
    assert (row["bound"], row["efficiency_ratio"]) == ("vector_issue", pytest.approx(0.2 * (1 + 4) / 2))


@pytest.mark.parametrize(
    ("counter", "label"), [("SQ_ACTIVE_INST_SCA", "compute_scalar"), ("SQ_LDS_IDX_ACTIVE", "memory_lds")]
)
def test_the_scalar_unit_and_the_lds_limit_by_their_own_count(counter: str, label: str) -> None:
    _, units, clock = DEVICES["gfx90a"]
    counters = vector_counters("gfx90a", 0.2, 1.0) | {"SQ_LDS_BANK_CONFLICT": 0.0, "SQ_LDS_IDX_ACTIVE": 0.0}
    row, verdict = judged("gfx90a", counters | {counter: 0.9 * LENGTH * clock / 1e3 * units})
    assert verdict.rule is not None
    assert verdict.rule.label == label
    assert row["efficiency_ratio"] == pytest.approx(0.9, abs=0.005)


@pytest.mark.parametrize("counter", ["TA_TA_BUSY_sum", "TD_TD_BUSY_sum", "TCC_BUSY_sum"])
def test_a_memory_unit_that_only_waits_for_the_next_level_is_no_limit(counter: str) -> None:
    _, units, clock = DEVICES["gfx90a"]
    counters = vector_counters("gfx90a", 0.2, 1.0)
    _, verdict = judged("gfx90a", counters | {counter: 0.99 * LENGTH * clock / 1e3 * units})
    assert verdict.rule is not None
    assert verdict.rule.label == "latency"
    assert any(one.signal.endswith("_busy") and one.value > 0.9 for one in verdict.evidence)


@pytest.mark.parametrize("share", [0.645, 0.569])
def test_a_stencil_is_held_against_what_its_memory_delivers(share: float) -> None:
    """Shares of the published peak: less than 0.6 of it is more than 0.6 of what copies sustain."""
    _, verdict = judged("gfx90a", vector_counters("gfx90a", 0.2, 1.0, megabytes=share * 1638.4))
    assert verdict.rule is not None
    assert verdict.rule.label == "memory_dram"


def test_diverging_lanes_stand_second_to_busy_vector_units() -> None:
    counters = vector_counters("gfx908", 0.9, 1.0)
    _, verdict = judged("gfx908", counters | {"SQ_THREAD_CYCLES_VALU": 16 * counters["SQ_ACTIVE_INST_VALU"]})
    assert verdict.rule is not None
    assert (verdict.rule.label, verdict.runner_up) == ("compute_vector", "divergence")
    cost = next(one.value for one in verdict.evidence if one.signal == "cost_of_divergence")
    assert cost == pytest.approx(0.9 * 0.75, abs=0.01)
