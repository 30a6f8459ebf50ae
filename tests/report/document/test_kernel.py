"""One kernel: how it is named, what its document holds, and how it is told on a terminal."""

import io
import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.document.kernel import find_kernel, kernel_document
from aaco_pipeline.report.terminal.kernel import print_kernel
from aaco_pipeline.report.words.kernel import kernel_answer
from aaco_pipeline.report.words.session import Document, Row
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
