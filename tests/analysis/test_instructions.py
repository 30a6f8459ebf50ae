"""Stalls by reason, charges of waits and samples by instruction: real traces and samples, and small ones made here."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis import instructions
from aaco_pipeline.capture.merging.parts import matched_instructions
from aaco_pipeline.formats import rocprofv3_csv
from aaco_pipeline.formats import thread_trace as folders
from aaco_pipeline.formats.thread_trace import files
from aaco_pipeline.hardware.instruction_classes import INSTRUCTION_CLASSES, instruction_class
from aaco_pipeline.lake.validation import empty_table, to_contract
from tests.places import SHARED

GEMM = SHARED / "captures/mi300x_att_ck_batched_gemm"
#: Every decoded thread trace that is at hand; listings of program-counter samples have no wavefronts.
TRACES = sorted(
    path.parent for path in SHARED.glob("captures/**/filenames.json") if any(path.parent.glob("se*_wv*.json"))
)
LISTED = SHARED / "captures/mi300_pc_sampling_code_json"
STOCHASTIC = SHARED / "captures/documentation_csv/pc_sampling_stochastic_debug.csv"
TRAPPED = SHARED / "captures/documentation_csv/pc_sampling_host_trap.csv"
real = pytest.mark.skipif(not GEMM.is_dir(), reason="the captured thread traces are not at hand (AACO_SHARED)")
sampled = pytest.mark.skipif(not LISTED.is_dir(), reason="the captured samples are not at hand (AACO_SHARED)")
NO_DISPATCHES = empty_table("dispatches")
NOTHING = empty_table("att_instructions")


class Trace(NamedTuple):
    listed: pl.DataFrame
    executions: pl.DataFrame
    dependencies: pl.DataFrame

    def charged(self) -> pl.DataFrame:
        return instructions.charged(*self)

    def charges(self) -> list[tuple[Any, ...]]:
        return instructions.charges(*self).select("line", "producer_line", "stall_cycles").rows()

    def reasons(self) -> dict[str, int]:
        return dict(instructions.stalls(self.charged()).select("reason", "stall_cycles").iter_rows())


def trace_of(*paths: Path) -> Trace:
    """The real folders' instructions, executed waits and what these waited for, put together as a capture's parts."""
    keys = pl.DataFrame(schema={"dispatch_id": pl.Int32, "source_dispatch_id": pl.UInt64, "name": pl.String})
    read = [(path.name, folders.read(path)) for path in paths]
    found, details, _ = matched_instructions(read, keys, empty_table("dispatches"))
    placed = pl.concat([found, details["instruction_parts"]], how="horizontal")
    return Trace(placed, details["wait_executions"], details["wait_dependencies"])


def made(
    code: list[str | tuple[str, int]],
    executed: Sequence[tuple[int, int, int]] = (),
    waited: Sequence[tuple[int, int, int, list[int]]] = (),
    **columns: Any,
) -> Trace:
    """A small trace. `code`: instructions from line 1 on, each with its own stall where it is no wait.

    `executed`: wave, line and stall of each executed wait. `waited`: wave, number of the wait, its line, and the lines
    it waited for.
    """
    texts = [one if isinstance(one, str) else one[0] for one in code]
    own = [0 if isinstance(one, str) else one[1] for one in code]
    for _, line, stall in executed:
        own[line - 1] += stall
    rows = pl.DataFrame({"line": range(1, len(code) + 1), "instruction": texts, "stall_cycles": own, **columns})
    rows = rows.with_columns(
        instruction_class=instruction_class(pl.col("instruction")), hits=pl.lit(1), latency_cycles="stall_cycles"
    )
    listed = to_contract("att_instructions", rows).with_columns(part=pl.lit("a"))
    at = {"part": pl.String, "wave_index": pl.Int32}
    return Trace(
        listed,
        pl.DataFrame(
            [("a", *one) for one in executed], schema={**at, "line": pl.Int64, "stall": pl.Int64}, orient="row"
        ),
        pl.DataFrame(
            [
                ("a", wave, wait, line, one)
                for wave, wait, line, lines in waited
                for one in (*lines, *([] if lines else [None]))
            ],
            schema={**at, "wait": pl.Int64, "line": pl.Int64, "dependency_line": pl.Int64},
            orient="row",
        ),
    )


# --- Real traces ------------------------------------------------------------------------------------------------------


@real
def test_the_stalls_of_a_real_matrix_multiplication() -> None:
    charged = trace_of(GEMM / "ui_output_agent_5600_dispatch_2").charged()
    found = {
        (reason, mnemonic): cycles
        for reason, mnemonic, cycles in instructions.breakdown(charged)
        .select("reason", "mnemonic", "stall_cycles")
        .iter_rows()
    }
    assert found["matrix pipe busy", "v_mfma_f32_32x32x8_f16"] == 26_432
    assert found["vector memory load issue", "buffer_load_dwordx4"] == 18_800
    assert found["waiting for vector memory loads", "buffer_load_dwordx4"] == 16_484
    assert found["barrier", "s_barrier"] == 8_480
    assert found["LDS write issue", "ds_write_b16"] == 8_064
    assert found["waiting for LDS reads", "ds_read_b128"] == 7_136
    assert found["unattributed", None] == 192  # waits for which nothing was outstanding
    assert sum(found.values()) == 97_792
    reasons = instructions.stalls(charged)
    assert reasons.get_column("stall_cycles").sum() == 97_792
    assert reasons.get_column("share_ratio").sum() == pytest.approx(1)
    assert reasons.item(0, "reason") == "matrix pipe busy"


@real
def test_the_load_that_a_real_loop_waits_for_is_charged_with_all_its_waits() -> None:
    charged = trace_of(GEMM / "ui_output_agent_5600_dispatch_1").charged()
    (load,) = charged.filter(pl.col("charged_stall_cycles") > 0).rows(named=True)
    assert load["instruction"].startswith("s_load_dwordx4")
    assert (load["stall_cycles"], load["charged_stall_cycles"], load["hits"]) == (0, 10_596, 428)


@pytest.mark.parametrize("path", TRACES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_cycles_are_conserved_in_every_real_trace(path: Path) -> None:
    trace = trace_of(path)
    charged = trace.charged()
    stated = trace.listed.get_column("stall_cycles").sum()
    found = instructions.breakdown(charged)
    assert found.get_column("stall_cycles").sum() == stated
    assert found.get_column("stall_cycles").min() > 0  # type: ignore[operator]
    assert (charged.get_column("stall_cycles") <= charged.get_column("latency_cycles")).all()
    evidence = [item for item in folders.read(path).evidence if item.item == "sums recomputed from the wavefronts"]
    assert evidence[0].status == "present" and str(evidence[0].reason).startswith("0 of ")


@pytest.mark.parametrize("path", TRACES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_real_waits_list_what_they_waited_for_in_the_order_it_was_issued(path: Path) -> None:
    """The rule that the last listed operation ended the wait rests on it."""
    details = folders.read(path).details
    executed = details["wave_instructions"].with_row_index("at")
    occurrence = pl.int_range(pl.len()).over("wave_index", "line")
    listed = details["wait_dependencies"].with_row_index("listed")
    waits = listed.unique(["wave_index", "wait"], keep="first", maintain_order=True).with_columns(times=occurrence)
    placed = waits.join(
        executed.with_columns(times=occurrence).select("wave_index", "line", "times", waited_at="at"),
        on=["wave_index", "line", "times"],
    ).select("wave_index", "wait", "waited_at")
    issued = (
        listed.join(placed, on=["wave_index", "wait"])
        .join(
            executed.select("wave_index", dependency_line="line", issued_at="at"), on=["wave_index", "dependency_line"]
        )
        .filter(pl.col("issued_at") < pl.col("waited_at"))
        .group_by("wave_index", "wait", "listed")
        .agg(pl.col("issued_at").max())
        .sort("listed")
    )
    assert issued.height == listed.drop_nulls("dependency_line").height
    assert (issued.select(pl.col("issued_at").diff().over("wave_index", "wait")).to_series().drop_nulls() >= 0).all()


# --- Who is charged ---------------------------------------------------------------------------------------------------

LOAD, STORE, READ, SCALAR = "buffer_load_dwordx4 v0", "global_store_dword v0", "ds_read_b128 v0", "s_load_dword s0"
WAIT = "s_waitcnt vmcnt(0)"


@pytest.mark.parametrize(
    ("code", "stall", "wanted"),
    [
        ([LOAD, LOAD, LOAD, WAIT], 10, [(4, 3, 10)]),  # loads complete in order: the last of them ended the wait
        ([READ, READ, WAIT], 7, [(3, 2, 7)]),
        ([SCALAR, SCALAR, SCALAR, WAIT], 8, [(4, 1, 3), (4, 2, 3), (4, 3, 2)]),  # any of them may have
        (["flat_load_dword v0", "flat_load_dword v1", WAIT], 8, [(3, 1, 4), (3, 2, 4)]),
        ([LOAD, LOAD, READ, WAIT], 9, [(4, 2, 5), (4, 3, 4)]),  # kinds share alike
        ([LOAD, STORE, "s_waitcnt 0"], 8, [(3, 1, 4), (3, 2, 4)]),
        ([SCALAR, SCALAR, LOAD, WAIT], 8, [(4, 1, 2), (4, 2, 2), (4, 3, 4)]),
    ],
)
def test_a_wait_is_charged_to_its_operations(code: list[str | tuple[str, int]], stall: int, wanted: list[Any]) -> None:
    line = len(code)
    assert made(code, [(0, line, stall)], [(0, 0, line, list(range(1, line)))]).charges() == wanted


def test_each_execution_of_a_wait_is_charged_to_what_that_one_waited_for() -> None:
    trace = made(
        [LOAD, READ, WAIT], [(0, 3, 100), (1, 3, 5), (0, 3, 20)], [(0, 0, 3, [1]), (0, 1, 3, [2]), (1, 0, 3, [2])]
    )
    assert trace.charges() == [(3, 1, 100), (3, 2, 25)]
    assert trace.charged().get_column("charged_stall_cycles").to_list() == [100, 25, 0]


def test_executions_without_a_matching_listing_are_divided_among_the_listed_waits() -> None:
    trace = made([LOAD, READ, WAIT], [(0, 3, 4), (0, 3, 20), (0, 3, 11)], [(0, 0, 3, [1]), (0, 1, 3, [2])])
    assert trace.charges() == [(3, 1, 18), (3, 2, 17)]


def test_a_wait_for_nothing_known_is_unattributed() -> None:
    known = made([LOAD, WAIT], [(0, 2, 40), (0, 2, 4)], [(0, 0, 2, [1]), (0, 1, 2, [])])
    assert known.reasons() == {"waiting for vector memory loads": 40, "unattributed": 4}
    strange = made([LOAD, WAIT], [(0, 2, 40)], [(0, 0, 2, [99])])
    assert strange.reasons() == {"unattributed": 40}


def test_a_trace_that_says_nothing_of_its_waits_leaves_the_charge_null_and_not_zero() -> None:
    silent = made([LOAD, WAIT], [(0, 2, 40)])
    assert silent.charged().get_column("charged_stall_cycles").to_list() == [None, None]
    assert silent.reasons() == {"unattributed": 40}
    without_waits = made([LOAD, ("v_add_u32 v0", 3)])
    assert without_waits.charged().get_column("charged_stall_cycles").to_list() == [0, 0]


def test_nothing_is_charged_from_a_line_whose_executions_stalled_longer_than_the_listing_says() -> None:
    trace = made([LOAD, WAIT], [(0, 2, 40)], [(0, 0, 2, [1])])
    less = trace._replace(listed=trace.listed.with_columns(stall_cycles=pl.lit(39, pl.Int64)))
    assert less.charges() == []
    assert less.reasons() == {"unattributed": 39, "vector memory load issue": 39}
    more = trace._replace(listed=trace.listed.with_columns(stall_cycles=pl.lit(41, pl.Int64)))
    assert more.reasons() == {"waiting for vector memory loads": 40, "unattributed": 1, "vector memory load issue": 41}


def test_parts_of_a_capture_are_kept_apart() -> None:
    first, second = (
        made([LOAD, WAIT], [(0, 2, 40)], [(0, 0, 2, [1])]),
        made([READ, WAIT], [(0, 2, 5)], [(0, 0, 2, [1])]),
    )
    other = [frame.with_columns(part=pl.lit("b")) for frame in second]
    both = Trace(*(pl.concat(pair) for pair in zip(first, other, strict=True)))
    assert both.charged().get_column("charged_stall_cycles").to_list() == [40, 0, 5, 0]


# --- Reasons ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("instruction", "reason"),
    [
        ("v_mfma_f32_32x32x8_f16 a[0:15]", "matrix pipe busy"),
        ("v_add_u32_e32 v0", "vector ALU busy"),
        ("global_load_dword v0", "vector memory load issue"),
        ("flat_load_dword v0", "vector memory load issue"),
        ("buffer_store_dwordx4 v0", "vector memory store issue"),
        ("global_atomic_add v0", "vector memory atomic issue"),
        ("buffer_wbl2 sc1", "cache control issue"),
        ("ds_write_b16 v0", "LDS write issue"),
        ("ds_load_b128 v0", "LDS read issue"),
        ("ds_bpermute_b32 v0", "LDS operation issue"),
        ("s_barrier", "barrier"),
        ("s_nop 3", "programmed delay"),
        ("s_sleep 1", "programmed delay"),
        ("s_cbranch_scc0 2", "branch"),
        ("s_clause 0x3", "other instruction"),
        ("s_waitcnt lgkmcnt(0)", "unattributed"),
        ("s_wait_loadcnt 0x0", "unattributed"),
    ],
)
def test_the_reason_of_a_stall(instruction: str, reason: str) -> None:
    assert made([(f"  {instruction.upper()}", 12)]).reasons() == {reason: 12}


def test_every_class_of_instructions_has_a_reason_of_its_own() -> None:
    classes = [name for name in INSTRUCTION_CLASSES if name not in ("other", "wait")]
    rows = pl.DataFrame(
        {"instruction_class": classes, "instruction": ["x"] * len(classes), "stall_cycles": [1] * len(classes)}
    )
    reasons = instructions.breakdown(to_contract("att_instructions", rows)).get_column("reason").to_list()
    assert len(set(reasons)) == len(classes) - 1  # flat and other vector memory share one
    assert "other instruction" not in reasons


def test_an_instruction_that_was_not_decoded_stalls_for_a_reason_too() -> None:
    rows = to_contract("att_instructions", pl.DataFrame({"line": [1], "stall_cycles": [9]}))
    assert instructions.stalls(rows).select("reason", "stall_cycles").rows() == [("other instruction", 9)]


def test_no_instructions_give_no_reasons() -> None:
    assert instructions.stalls(NOTHING).schema == empty_table("att_stalls").schema
    assert instructions.stalls(NOTHING).is_empty()


def test_sampled_instructions_have_no_stalled_cycles() -> None:
    rows = to_contract("att_instructions", pl.DataFrame({"instruction": ["s_barrier"], "samples": [3]}))
    assert instructions.stalls(rows).is_empty()


def test_the_traced_share_is_of_the_engine_and_null_where_the_others_were_not_seen() -> None:
    waves = pl.DataFrame({"part": ["a", "a", "b"], "shader_engine": [0, 0, 1], "cu": [1, 1, 2]})
    starts = pl.DataFrame({"part": ["a"] * 2, "shader_engine": [0, 0], "cu": [1, 2], "waves": [2, 6]})
    assert instructions.traced_share(waves, starts).rows() == [
        ("a", 0, [1], 2, 8, 2, 0.25),
        ("b", 1, [2], 1, None, None, None),
    ]
    fewer = starts.with_columns(waves=pl.lit(0))
    assert instructions.traced_share(waves[:1], fewer).item(0, "traced_ratio") is None


# --- Program-counter samples ------------------------------------------------------------------------------------------


def samples(*rows: dict[str, Any]) -> pl.DataFrame:
    columns = ("dispatch_id", "address", "instruction", "wave_issued", "stall_reason")
    given = {name: [row.get(name) for row in rows] for name in columns}
    return to_contract("pc_samples", pl.DataFrame({"sample_id": range(len(rows)), **given}))


@sampled
def test_reasons_of_a_real_sampled_listing_are_its_stalled_samples() -> None:
    stalls = folders.read(LISTED).details["sampled_stalls"]
    keyed = stalls.with_columns(kernel_id=pl.lit(4, pl.Int32), dispatch_id=pl.lit(None, pl.Int32))
    keyed = keyed.with_columns(capture=pl.lit("a trace"))
    found = instructions.sampled_stalls(instructions.listed_reasons(keyed))
    assert found.schema == empty_table("att_stalls").schema
    assert found.get_column("samples").sum() == 3384 == stalls.get_column("stalled").sum()
    assert found.get_column("stall_cycles").null_count() == found.height == 7
    assert found.row(0) == (4, None, "execution unit busy", None, 777, 777 / 3384, "a trace")


@sampled
def test_only_real_stochastic_samples_without_an_issue_have_a_reason() -> None:
    taken = rocprofv3_csv.read(STOCHASTIC).tables["pc_samples"]
    reasons = instructions.sample_reasons(taken, NO_DISPATCHES)
    assert dict(reasons.select("reason", "samples").iter_rows()) == {
        "wait counter": 71,
        "result of an ALU instruction not ready": 5,
        "instruction fetch": 1,
    }
    found = instructions.sampled_instructions(taken, NO_DISPATCHES)
    assert found.get_column("samples").sum() == taken.height == 97  # those that issued count as well


@sampled
def test_real_host_trap_samples_have_no_reason() -> None:
    taken = rocprofv3_csv.read(TRAPPED).tables["pc_samples"]
    assert instructions.sample_reasons(taken, NO_DISPATCHES).is_empty()
    assert instructions.sampled_instructions(taken, NO_DISPATCHES).get_column("samples").sum() == 79


def test_a_reason_left_over_in_a_sample_that_issued_does_not_count() -> None:
    taken = samples(
        {"wave_issued": True, "stall_reason": "waitcnt"},
        {"wave_issued": False, "stall_reason": "waitcnt"},
        {"wave_issued": False, "stall_reason": None},
        {"wave_issued": None, "stall_reason": "waitcnt"},
        {"wave_issued": False, "stall_reason": "a reason to come"},
    )
    reasons = instructions.sample_reasons(taken, NO_DISPATCHES)
    assert dict(reasons.select("reason", "samples").iter_rows()) == {
        "wait counter": 1,
        "no reason given": 1,
        "a reason to come": 1,
    }


def test_samples_of_several_dispatches_of_a_kernel_are_summed_and_name_none_of_them() -> None:
    dispatches = pl.DataFrame(
        {"dispatch_id": [0, 1, 2], "kernel_id": [7, 7, 8]},
        schema_overrides=dict.fromkeys(("dispatch_id", "kernel_id"), pl.Int32),
    )
    taken = samples(
        {"dispatch_id": 0, "address": 16},
        {"dispatch_id": 1, "address": 16},
        {"dispatch_id": 2, "address": 16},
        {"dispatch_id": None, "address": 16},
    )
    found = instructions.sampled_instructions(taken, dispatches).select("kernel_id", "dispatch_id", "samples")
    assert found.rows() == [(7, None, 2), (8, 2, 1), (None, None, 1)]


def test_every_reason_that_the_readers_know_has_words() -> None:
    assert set(instructions.REASONS) == set(files.STALL_REASONS)
    assert len(set(instructions.REASONS.values())) == len(instructions.REASONS)


def test_no_samples_give_no_rows() -> None:
    none = empty_table("pc_samples")
    assert instructions.sampled_instructions(none, NO_DISPATCHES).is_empty()
    found = instructions.sampled_stalls(instructions.sample_reasons(none, NO_DISPATCHES))
    assert found.schema == empty_table("att_stalls").schema


# --- Against going through the records one by one ---------------------------------------------------------------------

CODE: list[str | tuple[str, int]] = [LOAD, LOAD, STORE, READ, SCALAR, SCALAR, WAIT, "s_waitcnt lgkmcnt(0)"]
ORDERED = {1: "load", 2: "load", 3: "store", 4: "read"}


def one_by_one(executed: list[tuple[int, int, int]], waited: list[tuple[int, int, int, list[int]]]) -> dict[int, int]:
    charged: dict[int, int] = defaultdict(int)
    stalls, entries = defaultdict(list), defaultdict(list)
    for wave, line, stall in executed:
        stalls[wave, line].append(stall)
    for wave, _, line, lines in waited:
        entries[wave, line].append(lines)
    for at, listed in entries.items():
        each = stalls[at]
        if len(each) != len(listed):
            each = shared(sum(each), len(listed)) if each else [0] * len(listed)
        for amount, lines in zip(each, listed, strict=True):
            kinds: dict[str, list[int]] = {}
            for line in lines:
                kind = ORDERED.get(line, "scalar")
                kinds[kind] = [line] if line in ORDERED else [*kinds.get(kind, []), line]
            # The order of kinds is that of the module: load after store, then LDS, then scalar.
            names = sorted(kinds, key=["store", "load", "read", "scalar"].index)
            for part, kind in zip(shared(amount, len(names)), names, strict=True) if names else ():
                for portion, line in zip(shared(part, len(kinds[kind])), kinds[kind], strict=True):
                    charged[line] += portion
    return {line: amount for line, amount in charged.items() if amount}


def shared(amount: int, among: int) -> list[int]:
    return [amount // among + (place < amount % among) for place in range(among)] if among else []


@given(
    st.lists(st.tuples(st.integers(0, 1), st.sampled_from([7, 8]), st.integers(0, 40)), max_size=8),
    st.lists(
        st.tuples(st.integers(0, 1), st.sampled_from([7, 8]), st.lists(st.integers(1, 6), unique=True, max_size=6)),
        max_size=8,
    ),
)
def test_charges_agree_with_going_through_the_waits_one_by_one_and_conserve_cycles(
    executed: list[tuple[int, int, int]], listed: list[tuple[int, int, list[int]]]
) -> None:
    waited = [(wave, wait, line, lines) for wait, (wave, line, lines) in enumerate(listed)]
    trace = made(CODE, executed, waited)
    found = trace.charged().filter(pl.col("charged_stall_cycles") > 0).select("line", "charged_stall_cycles")
    assert dict(found.iter_rows()) == one_by_one(executed, waited)
    reasons = trace.reasons()
    assert sum(reasons.values()) == sum(stall for _, _, stall in executed)
    assert all(cycles > 0 for cycles in reasons.values())
