"""The page of each kernel: which kernels have one, what it shows, and what it leaves out.

A kernel's traffic by level of memory: widths, what is said beside each arrow, and what is left hollow.
"""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import escape

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.html.page import render_html, rendered_kernels
from aaco_pipeline.report.kernel.page import first_kernel, kernel_views, memory_levels, paged_kernels
from aaco_pipeline.report.session.document import session_document
from aaco_pipeline.report.session.sentences import Document
from aaco_pipeline.report.session.statements import PAGED_KERNELS
from tests.places import SHARED
from tests.report.made_up import EVIL, SESSION, publish_limits, rows_of
from tests.sessions import replayed, taken_in

COUNTED: dict[str, Any] = {"vl1d_traffic_bytes": 2**26, "l2_traffic_bytes": 2**25, "fabric_read_bytes": 2**24}
#: Kernel 0 took longest; dispatch 7 of it is far from the others.
TIMES = (1000, 1000, 1100, 1000, 1000, 1050, 1000, 20_000)


def publish_kernels(lake: TraceLake, count: int = 3) -> None:
    """Kernels of which the first has eight dispatches on two grids, all others one."""
    described = {"source_kind": "capture", "source_format": "made up"}
    lake.publish(SESSION, "capture", {"sessions": rows_of("sessions", [described])})
    named = [
        {"kernel_id": at, "name": f"void k{at}<{EVIL}>()", "short_name": f"k{at}", "role": "main", "arch_vgprs": 24}
        for at in range(count)
    ]
    launches = [(0, took) for took in TIMES] + [(at, 500 - at) for at in range(1, count)]
    dispatches, start = [], 0
    for at, (kernel, took) in enumerate(launches):
        grids = {"grid_x": 512 if at == 2 else 1024, "grid_y": 1, "grid_z": 1}
        groups = {"workgroup_x": 256, "workgroup_y": 1, "workgroup_z": 1}
        row = {"dispatch_id": at, "kernel_id": kernel, "start_ns": start, "end_ns": start + took, "self_ns": took}
        dispatches.append({**row, **grids, **groups})
        start += took + 10
    tables = {"kernels": rows_of("kernels", named), "dispatches": rows_of("dispatches", dispatches)}
    lake.publish(SESSION, "kernel_trace", tables)
    stats = []
    for kernel in range(count):
        own = sorted(took for at, took in launches if at == kernel)
        row = {
            "kernel_id": kernel,
            "dispatch_count": len(own),
            "total_ns": sum(own),
            "p50_ns": own[(len(own) - 1) // 2],
        }
        stats.append({**row, "min_ns": own[0], "max_ns": own[-1], "mean_ns": sum(own) // len(own)})
    outlier: dict[str, Any] = {"dispatch_id": 7, "kernel_id": 0, "duration_ns": 20_000, "warm_median_ns": 1000}
    outlier |= {"warm_dispatches": 7}
    outlier |= {"possible_causes": ["page faults"], "part": "steady"}
    tables = {"kernel_stats": rows_of("kernel_stats", stats)}
    lake.publish(SESSION, "timeline", {**tables, "outlier_dispatches": rows_of("outlier_dispatches", [outlier])})
    ran = {"kernel_id": 0, "dispatch_count": 8, "total_ns": 27_150, "match": "correlation", "operator": f"aten::{EVIL}"}
    lake.publish(SESSION, "model_graph", {"operator_kernels": rows_of("operator_kernels", [ran])})


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Document:
    lake = TraceLake(tmp_path_factory.mktemp("kernels") / "lake")
    publish_kernels(lake)
    publish_limits(lake)
    return session_document(lake, SESSION)


def view(document: Document, kernel: int) -> dict[str, Any]:
    return next(one for one in kernel_views(document) if one["kernel"]["kernel_id"] == kernel)


def text(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def test_the_heaviest_kernels_have_a_page_and_what_is_to_be_fixed_first_is_named(document: Document) -> None:
    assert [row["kernel_id"] for row in document["shown_kernels"]] == [0, 1, 2]
    assert paged_kernels(document) == {0, 1, 2}
    first = first_kernel(document)
    assert first is not None
    assert first["kernel_id"] == 1
    page = render_html(document, None)
    assert 'href="#kernel-1">Look first at k1' in page
    for kernel in range(3):
        assert page.count(f'id="kernel-{kernel}"') == 1
        # In the tables of kernels, and wherever else it is named.
        links = page.count(f'<a href="#kernel-{kernel}">k{kernel}</a></span>')
        assert links >= page.count(f'<td title="void k{kernel}') == 2


def test_there_are_no_more_pages_than_the_bound_and_the_first_to_fix_is_among_them(tmp_path: Path) -> None:
    lake = TraceLake(tmp_path / "lake")
    publish_kernels(lake, count=PAGED_KERNELS + 20)
    last = PAGED_KERNELS + 19
    kinds = [{"kind": "gemm", "kernel_id": last, "time_ns": 1, "share_ratio": 1.0, "dispatch_count": 1, "alone_ns": 1}]
    answer = {"class": "device", "kind": "gemm", "window_rule": "all"}
    tables = {"answers": rows_of("answers", [answer]), "kinds_of_work": rows_of("kinds_of_work", kinds)}
    lake.publish(SESSION, "classification", tables)
    document = session_document(lake, SESSION)
    assert paged_kernels(document) == {*range(PAGED_KERNELS - 1), last}
    page = render_html(document, None)
    assert f'href="#kernel-{PAGED_KERNELS}"' not in page
    assert {int(found) for found in re.findall(r'href="#kernel-(\d+)"', page)} == paged_kernels(document)


def test_a_page_of_a_counted_kernel_shows_what_there_is(document: Document) -> None:
    shown = view(document, 0)
    assert shown["sentence"].startswith("It takes 27.15 µs in 8 dispatches")
    assert "DRAM: 80.0 % of the measured ceiling" in shown["against_roof"]
    assert [(name, source) for name, _, source in shown["roofs"]] == [
        ("DRAM", "measured"),
        ("L2", "published"),
        ("vector units fp32", "measured"),
    ]
    assert shown["roofline"] is not None
    assert shown["occupancy"]["bars"] == [("Resources allow", 0.5), ("Achieved", 0.25)]
    assert "limited by vector registers" in shown["occupancy"]["told"]
    # A figure that could not be computed is not a bar of zero.
    assert shown["units"] == []
    assert [said for said, _ in shown["launches"]] == [
        "4 workgroups of 256 work-items",
        "2 workgroups of 256 work-items",
    ]


def test_durations_are_in_order_with_the_outlier_at_its_place(document: Document) -> None:
    shown = view(document, 0)["durations"]
    facts = dict(shown["facts"])
    assert (shown["count"], facts["Median"], facts["Longest"]) == (8, "1 µs", "20 µs")
    assert facts["Middle half"] == "1 µs … 1.05 µs"
    assert shown["outliers"].startswith("1 of 8 dispatches took far longer than the warm ones, whose median is 1 µs")
    assert "page faults" in shown["outliers"]
    assert shown["plot"]["foot"].endswith("(logarithmic)")
    tops = [float(top) for top in re.findall(r"V([\d.]+)", shown["plot"]["marks"])]
    assert len(tops) == 8
    assert tops.index(min(tops)) == 7
    assert view(document, 1)["durations"]["plot"] is None


def test_a_traced_kernel_has_its_stalls_and_hottest_instructions(document: Document) -> None:
    shown = view(document, 1)
    assert shown["stalls"] == [("waiting for loads", 1.0, 15_000)]
    assert shown["stall_unit"] == "stalled cycles"
    assert [row["line"] for row, _, _ in shown["instructions"]] == [5, 4, 3, 2, 1]
    assert shown["instructions"][0][2] == pytest.approx(1 / 3)
    assert view(document, 0)["instructions"] == []


def test_what_has_no_evidence_is_absent_and_named_with_its_command(document: Document) -> None:
    page = rendered_kernels(document)[2]
    headings = re.findall(r"<h3>([^<]+)</h3>", page)
    assert headings == ["Launch", "Dispatches"]
    said = text(page)
    assert "Not shown for lack of evidence: utilization" in said
    assert "--counters" in said
    assert "--att" in said


def test_memory_by_level_is_drawn_where_bytes_were_counted(document: Document) -> None:
    kernels = [{**row, **(COUNTED if row["kernel_id"] == 0 else {})} for row in document["shown_kernels"]]
    page = rendered_kernels({**document, "shown_kernels": kernels})[0]
    assert "Memory by level" in page
    assert page.count('class="flow hollow"') == 1  # the LDS
    assert "25.0 % hits" in page


def test_names_of_a_capture_are_text_and_stand_whole(document: Document) -> None:
    page = rendered_kernels(document)[0]
    assert "<img" not in page
    assert EVIL.replace("&amp;", "&") not in page
    assert str(escape(f"void k0<{EVIL}>()")) in page


@pytest.mark.parametrize(
    ("capture", "shows"),
    [
        ("counters/mixbench/MI200", ("Memory by level", "Utilization", "Roofs", "Roofline", "of the measured ceiling")),
        ("captures/mi300x_att_ck_batched_gemm", ("Stalls by reason", "Hottest instructions", "Occupancy")),
        ("captures/mi300_pc_sampling_code_json", ("Stalls by reason", "Hottest lines of the source")),
    ],
)
def test_pages_of_real_captures(capture: str, shows: tuple[str, ...], tmp_path: Path) -> None:
    lake = TraceLake(tmp_path / "lake")
    session = taken_in(lake, SHARED / capture)
    replayed(lake, session, "kernel_trace", "roofline", "att_enrichment", "timeline", "classification")
    document = session_document(lake, session)
    pages = rendered_kernels(document)
    assert 0 < len(pages) <= PAGED_KERNELS
    assert [part for part in shows if not any(part in page for page in pages)] == []
    assert max(len(page) for page in pages) < 30_000


MIB = 2**20
KERNEL: dict[str, Any] = {
    "lds_traffic_bytes": 0,
    "vl1d_traffic_bytes": 64 * MIB,
    "l2_traffic_bytes": 32 * MIB,
    "fabric_read_bytes": 12 * MIB,
    "fabric_write_bytes": 4 * MIB,
    "counted_ns": 10_000,
    "counted": 2,
    "quality_flags": [],
}
BOUNDS: list[dict[str, Any]] = [
    {"resource": resource, "unit": "byte", "work": work * MIB, "share_ratio": ratio, "ceiling_source": source}
    | {"work_source": "counters"}
    for resource, work, ratio, source in (
        *(("dram", 16, 0.5, "spec"), ("dram", 16, 0.6, "measured"), ("fabric", 16, 0.4, "spec")),
        *(("l2", 32, 0.2, "reported"), ("vl1d", 64, 0.1, "measured")),
    )
]


def by_key(kernel: dict[str, Any], metrics: dict[str, float] | None = None) -> dict[str, Any]:
    return {level.key: level for level in memory_levels(kernel, BOUNDS, metrics or {})}


def test_every_level_has_its_bytes_a_dispatch_its_rate_and_its_share_of_the_best_ceiling() -> None:
    levels = by_key(KERNEL, {"l2_hit_ratio": 0.75})
    assert [*levels] == ["lds", "vl1d", "l2", "fabric", "dram"]
    assert levels["vl1d"].said == ("32.0 MiB a dispatch", "6.71 TB/s", "10.0 % of measured")
    assert levels["l2"].said[-1] == "20.0 % of reported"
    assert levels["fabric"].said[-1] == "40.0 % of published"
    assert levels["fabric"].inside == ("6.0 MiB read, 2.0 MiB written",)
    assert levels["dram"].said == ("8.0 MiB a dispatch", "1.68 TB/s", "60.0 % of measured")
    assert (levels["l2"].inside, levels["vl1d"].inside) == (("75.0 % hits",), ())
    assert levels["lds"].said == ("nothing passed",)


def test_arrows_are_as_wide_as_the_bytes() -> None:
    levels = by_key(KERNEL)
    assert levels["vl1d"].width == pytest.approx(2 * levels["l2"].width) == pytest.approx(4 * levels["dram"].width)


@pytest.mark.parametrize("missing", ["lds_traffic_bytes", "vl1d_traffic_bytes", "l2_traffic_bytes"])
def test_what_was_not_counted_says_so_and_is_no_zero(missing: str) -> None:
    level = by_key({**KERNEL, missing: None})[missing.removesuffix("_traffic_bytes")]
    assert (level.bytes_, level.said) == (None, ("not counted",))


def test_one_direction_alone_is_named_as_such() -> None:
    assert by_key({**KERNEL, "fabric_write_bytes": None})["fabric"].inside == ("6.0 MiB read",)


def test_bytes_of_shapes_and_of_no_counter_give_no_chart() -> None:
    assert memory_levels({**KERNEL, "quality_flags": ["model_based"]}, BOUNDS, {}) == []
    nothing = dict.fromkeys(name for name in KERNEL if name.endswith("_bytes"))
    assert memory_levels({**KERNEL, **nothing}, [], {}) == []
    assert memory_levels({**KERNEL, **nothing}, [{**BOUNDS[0], "work_source": "model"}], {}) == []


def test_dram_behind_an_infinity_cache_is_an_assumption_that_is_said() -> None:
    cached = {**KERNEL, "quality_flags": ["infinity_cache_not_excluded"]}
    bounds = [*BOUNDS, {**BOUNDS[2], "resource": "infinity_cache"}]
    levels = {level.key: level for level in memory_levels(cached, bounds, {})}
    assert levels["fabric"].name == "Fabric and Infinity Cache"
    assert levels["dram"].inside == ("if the Infinity Cache served none",)


@given(st.lists(st.none() | st.integers(0, 2**50), min_size=4, max_size=4), st.integers(0, 5))
def test_no_arrow_is_wider_than_the_widest_and_none_without_bytes_has_figures(
    amounts: list[int | None], counted: int
) -> None:
    names = ("lds_traffic_bytes", "vl1d_traffic_bytes", "l2_traffic_bytes", "fabric_read_bytes")
    kernel = {**KERNEL, **dict(zip(names, amounts, strict=True)), "fabric_write_bytes": None, "counted": counted}
    levels = memory_levels(kernel, [], {})
    assert bool(levels) == any(amount is not None for amount in amounts)
    for level in levels:
        assert 2 <= level.width <= 40
        assert (level.said == ("not counted",)) == (level.bytes_ is None)
    known = [level.bytes_ for level in levels if level.bytes_ is not None]
    widths = [level.width for level in levels if level.bytes_ is not None]
    assert sorted(range(len(known)), key=known.__getitem__) == sorted(
        range(len(known)), key=lambda at: (widths[at], known[at])
    )
