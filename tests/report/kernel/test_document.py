"""One kernel: how it is named, what its document holds, and how it is told on a terminal.

A kernel in sentences: its rate against its roof, its launch, and what would tell more.
"""

import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.providers import CPU_PROVIDER
from aaco_pipeline.report.kernel.document import (
    against_roof,
    find_kernel,
    kernel_answer,
    kernel_document,
    lacking_evidence,
    launch_in_words,
    listed,
    rate_text,
)
from aaco_pipeline.report.kernel.screen import print_kernel
from aaco_pipeline.report.session.sentences import Document, Row
from tests.report.made_up import SESSION, publish_limits, rows_of

NAMES: Sequence[tuple[str, str]] = (
    ("void gemm<float>(int)", "gemm"),
    ("void gemm_wide<float>(int)", "gemm_wide"),
    ("softmax", "softmax"),
    ("Softmax_other", "Softmax_other"),
    ("7", "7"),
)


def named(*names: tuple[str, str]) -> list[Row]:
    symbols = {"void gemm<float>(int)": "_Z4gemmIfEvi"}
    return [
        {"kernel_id": 10 + i, "name": name, "short_name": short, "symbol": symbols.get(name)}
        for i, (name, short) in enumerate(names)
    ]


@pytest.mark.parametrize(
    ("wanted", "kernel"),
    [
        ("void gemm<float>(int)", 10),
        ("gemm", 10),
        ("gemm_w", 11),
        ("GEMM_WIDE", 11),
        ("softmax", 12),
        ("wide<f", 11),
        ("other", 13),
        ("13", 13),
        ("7", 14),
        ("_Z4gemmIfEvi", 10),
        ("_Z4gemmIfEvi.kd", 10),
        ("_Z4gemm", 10),
    ],
)
def test_a_kernel_is_found_by_name_short_name_symbol_unique_beginning_or_part_or_number(
    wanted: str, kernel: int
) -> None:
    assert find_kernel(named(*NAMES), wanted) == kernel


def test_a_part_of_several_names_is_refused_and_lists_them_with_their_numbers() -> None:
    with pytest.raises(UsageError, match=r"'float' names 2 kernels: 10: void gemm<float>.*; 11: void gemm_wide.*"):
        find_kernel(named(*NAMES), "float")
    with pytest.raises(UsageError, match=r"names 30 kernels.*and 25 more"):
        find_kernel(named(*[(f"kernel {i}", "kernel") for i in range(30)]), "kern")


def test_equal_names_are_told_apart_by_their_number() -> None:
    twins = named(("same", "same"), ("same", "same"))
    with pytest.raises(UsageError, match="10: same; 11: same"):
        find_kernel(twins, "same")
    assert find_kernel(twins, "11") == 11


def test_an_unknown_name_is_refused_and_says_which_are_near() -> None:
    with pytest.raises(UsageError, match=r"no kernel 'sofmax'; near it: softmax"):
        find_kernel(named(*NAMES), "sofmax")
    with pytest.raises(UsageError, match=r"the longest: gemm, gemm_wide, softmax"):
        find_kernel(named(*NAMES), "zzzzzzzz")
    with pytest.raises(UsageError, match="the session has no kernels"):
        find_kernel([], "gemm")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> TraceLake:
    """A session of three kernels: of the first much is known, the second was traced, of the third nothing is known."""
    made = TraceLake(tmp_path_factory.mktemp("kernels") / "lake")
    made.publish(SESSION, "capture", {"sessions": rows_of("sessions", [{"source_kind": "capture"}])})
    loop = {"kernel_id": 0, "name": "loop<float>", "short_name": "loop", "role": "main", "family": "gemm"}
    loop |= {"family_source": "op", "dtype": "float32", "tile": "16x16", "library": "ck", "arch_vgprs": 136}
    rest = [{"kernel_id": i, "name": n, "short_name": n, "role": "main"} for i, n in ((1, "traced"), (2, "a\x1b[2Jb"))]
    dispatches = [
        {"dispatch_id": i, "kernel_id": 0, "start_ns": 10 * i, "end_ns": 10 * i + 5, "self_ns": 5} for i in range(2)
    ]
    tables = {"kernels": rows_of("kernels", [loop, *rest]), "dispatches": rows_of("dispatches", dispatches)}
    made.publish(SESSION, "kernel_trace", tables)
    stats = {"kernel_id": 0, "dispatch_count": 2, "total_ns": 1000, "mean_ns": 500, "share_ratio": 0.5}
    stats |= {"min_ns": 400, "max_ns": 600}
    made.publish(SESSION, "timeline", {"kernel_stats": rows_of("kernel_stats", [stats])})
    on_path = [
        {"activity_kind": "dispatch", "activity_id": i, "is_critical": i == 0, "criticality": 0.5} for i in range(2)
    ]
    saved = {"kernel_id": 0, "speedup_ratio": 2.0, "critical_ns": 5, "saved_ns": 2, "saved_ratio": 0.1}
    made.publish(
        SESSION,
        "critical_path",
        {"critical_path": rows_of("critical_path", on_path), "what_if": rows_of("what_if", [saved])},
    )
    done = {"kernel_id": 0, "dispatch_count": 2, "total_ns": 10, "match": "correlation", "operator": "aten::mm"}
    made.publish(SESSION, "model_graph", {"operator_kernels": rows_of("operator_kernels", [done])})
    publish_limits(made)
    return made


@pytest.fixture(scope="module")
def document(lake: TraceLake) -> Document:
    return kernel_document(lake, SESSION, "loop")


def printed(document: Document) -> str:
    out = io.StringIO()
    print_kernel(document, out)
    return out.getvalue()


def test_the_document_holds_every_table_of_the_kernel_and_is_json(document: Document) -> None:
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["kernel"]["tile"] == "16x16"
    assert document["kernel"]["total_ns"] == 1000
    assert document["roofline"]["bound"] == "dram"
    assert document["occupancy"]["next_ratio"] == 0.625
    assert document["critical_path"] == {
        "dispatch_count": 2,
        "critical_count": 1,
        "critical_ns": 5,
        "criticality": 0.5,
    }
    assert [len(document[name]) for name in ("resource_bounds", "counter_metrics", "what_if", "operators")] == [
        4,
        4,
        1,
        1,
    ]
    assert [document[name] for name in ("instructions", "stall_reasons")] == [[], []]
    assert (document["bottleneck_class"], document["score"]) == ("memory_dram", 0.8)
    assert document["top_evidence"][0]["signal"] == "at_memory_dram"


def test_the_terminal_gives_the_answer_first_then_the_evidence(document: Document) -> None:
    text = printed(document)
    told = " ".join(text.split())
    assert "It takes 1 µs in 2 dispatches, 50.0 % of the kernel time. This kernel is limited by DRAM traffic" in told
    for part in (
        "gemm (by its operator)",
        "136 vector",
        "DRAM, 80.0 % of it reached",
        "25.0 % of 50.0 % by vector registers",
        "vector registers: 136 to 128 allows 62.5 %",
        "1 of 2 dispatches are on it, 5 ns",
        "the path is 2 ns shorter (10.0 % of the window)",
        "aten::mm",
        "500 GB/s",
        "2 of 3; all with --json",
        "400 … 600 GB/s",
        "20.0 … 30.0 %",
    ):
        assert part in told
    assert "obscure" not in text


def test_lower_bounds_have_both_ceilings_and_a_bar_as_long_as_their_part(document: Document) -> None:
    lines = {line.split()[0]: line for line in printed(document).splitlines() if line.split()[-1:] == ["counted"]}
    assert re.search(r"800 ns +500 ns +80\.0 %", lines["DRAM"])
    assert [lines[name].count("█") for name in ("DRAM", "L2", "vector")] == [19, 7, 1]
    assert "4.0 GiB" not in lines["DRAM"]
    assert "3.7 GiB" in lines["DRAM"]


def test_a_traced_kernel_has_its_instructions_with_their_stalls(lake: TraceLake) -> None:
    document = kernel_document(lake, SESSION, "traced")
    assert len(document["instructions"]) == 5
    text = printed(document)
    assert "15,000 stalled cycles" in text
    assert "load_5" in text
    assert "█" in text


def test_a_kernel_of_which_little_is_known_says_what_was_missing_and_moves_no_cursor(lake: TraceLake) -> None:
    document = kernel_document(lake, SESSION, "2")
    assert kernel_answer(document["kernel"], document["bottleneck"]) == (
        "What limits this kernel is not known: not measured: nearness to the nearest roof, scratch."
    )
    assert (document["roofline"], document["occupancy"], document["critical_path"]) == (None, None, None)
    assert "\x1b" not in printed(document)


def test_a_kernel_that_no_stage_judged_says_so(tmp_path: Path) -> None:
    lake = TraceLake(tmp_path / "lake")
    lake.publish(SESSION, "capture", {"sessions": rows_of("sessions", [{"source_kind": "capture"}])})
    only = {"kernel_id": 0, "name": "only", "short_name": "only", "role": "main"}
    lake.publish(SESSION, "kernel_trace", {"kernels": rows_of("kernels", [only])})
    alone = kernel_document(lake, SESSION, "only")
    assert kernel_answer(alone["kernel"], alone["bottleneck"]).startswith("What limits it was not judged")


DRAM: dict[str, Any] = {"resource": "dram", "dtype": None, "unit": "byte", "work": 4e9, "share_ratio": 0.8}
DRAM |= {"ceiling_source": "measured", "work_source": "counters"}
KERNEL: dict[str, Any] = {"bound": "dram", "efficiency_ratio": 0.8, "counted_ns": 4_000_000}


def test_the_rate_stands_against_the_roof_and_whose_figure_that_is() -> None:
    spec = {**DRAM, "share_ratio": 0.5, "ceiling_source": "spec"}
    said = "It reaches 1 TB/s at its nearest roof, DRAM: 80.0 % of the measured ceiling."
    assert against_roof(KERNEL, [spec, DRAM]) == said
    half = {**KERNEL, "efficiency_ratio": 0.5}
    assert (against_roof(half, [spec, DRAM]) or "").endswith("50.0 % of the published ceiling.")


def test_work_by_shapes_is_the_least_there_was() -> None:
    told = against_roof(KERNEL, [{**DRAM, "work_source": "model", "ceiling_source": "reported"}])
    assert (
        told
        == "It reaches at least 1 TB/s at its nearest roof, DRAM: 80.0 % of what such devices are reported to reach."
    )


def test_a_unit_that_counts_its_own_busy_cycles_needs_no_ceiling() -> None:
    busy = {**DRAM, "resource": "matrix", "unit": "ns", "ceiling_source": "busy"}
    told = against_roof({**KERNEL, "bound": "matrix"}, [busy])
    assert told == "Its nearest roof is that of matrix units: 80.0 % busy by its own count."


def test_another_ones_own_count_may_decide_for_a_roof_that_both_share() -> None:
    integer = {**DRAM, "resource": "vector_integer", "unit": "op", "share_ratio": 0.7, "ceiling_source": "spec"}
    issue = {**DRAM, "resource": "vector_issue", "unit": "ns", "ceiling_source": "busy"}
    told = against_roof({**KERNEL, "bound": "vector_integer"}, [integer, issue])
    assert told == "It reaches 1 TOP/s at its nearest roof, integer units: 80.0 % busy by its own count."


@pytest.mark.parametrize("change", [{"efficiency_ratio": None}, {"bound": None}, {"bound": "l2"}])
def test_without_a_roof_nothing_is_said_of_one(change: dict[str, Any]) -> None:
    assert against_roof({**KERNEL, **change}, [DRAM]) is None


def test_a_rate_needs_work_and_time() -> None:
    assert rate_text(5e8, "flop", 1000) == "500 TFLOP/s"
    assert (rate_text(None, "flop", 1000), rate_text(1.0, "flop", 0), rate_text(1.0, "flop", None)) == (
        None,
        None,
        None,
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, "304 workgroups of 256 work-items"),
        ({"grid_y": 6, "workgroup_y": 2}, "304 × 3 workgroups of 256 × 2 work-items"),
        ({"grid_x": 77_825}, "305 workgroups of 256 work-items"),
        ({"grid_x": None, "grid_work_items": 512, "workgroup_work_items": 256}, "2 workgroups of 256 work-items"),
        ({"workgroup_x": None, "grid_work_items": 512}, "512 work-items"),
        (
            {"lds_allocated_bytes": 2048, "scratch_bytes": 0},
            "304 workgroups of 256 work-items, LDS 2.0 KiB a workgroup",
        ),
    ],
)
def test_a_launch_in_words(change: dict[str, Any], told: str) -> None:
    launch = {f"{what}_{axis}": 1 for what in ("grid", "workgroup") for axis in "xyz"}
    launch |= {"grid_x": 77_824, "workgroup_x": 256, "lds_allocated_bytes": 1024, "scratch_bytes": 0}
    none: dict[str, Any] = {"grid_work_items": None, "workgroup_work_items": None}
    fixed = {"static_lds_bytes": 1024, "static_scratch_bytes": 0}
    assert launch_in_words({**launch, **none, **change}, fixed) == told


def test_what_lacks_is_named_with_the_command_that_records_it() -> None:
    everything = ("utilization", "occupancy", "levels", "stalls", "operators", "ceilings")
    on_amd: dict[str, Any] = {"provider": None, "devices": [{"vendor": "AMD"}]}
    told = lacking_evidence(on_amd, everything)
    assert told[0][0] == "utilization, the occupancy achieved and the bytes at every level of memory"
    assert ["--counters" in told[0][1], "--att" in told[1][1], "record_shapes" in told[2][1]] == [True] * 3
    assert lacking_evidence(on_amd, ["durations"])[0][1].startswith("rocprofv3 --kernel-trace")
    assert lacking_evidence(on_amd, ()) == []
    of_nvidia = lacking_evidence({"provider": None, "devices": [{"vendor": "NVIDIA"}]}, everything)
    assert [command for _, command in of_nvidia] == ["torch.profiler.profile(record_shapes=True)"]
    on_cpu = lacking_evidence({"provider": CPU_PROVIDER, "devices": []}, everything)
    assert [command for _, command in on_cpu] == ["aaco calibrate"]


def test_a_list_in_words() -> None:
    assert [listed(words) for words in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a and b", "a, b and c"]
