"""The annotated listing: what comes first, what is folded, and that nothing a capture says becomes markup."""

import io
import re
from typing import Any
from xml.etree import ElementTree

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.lake.validation import empty_table, to_contract
from aaco_pipeline.report.html.page import templates
from aaco_pipeline.report.kernel.instructions import Fold, Line, Listing, listings, print_listing

HOSTILE = "<script>alert(1)</script>\"' & [bold]x[/bold] \x1b[2J\u202e"


def instructions(*rows: dict[str, Any], unit: str = "cycles", **same: Any) -> pl.DataFrame:
    traced = {"hits": 4, "stall_cycles": 0, "charged_stall_cycles": 0} if unit == "cycles" else {"samples": 0}
    listed = [
        {"line": at, "address": 4 * at, "instruction": "v_nop", "instruction_class": "valu", **traced}
        for at in range(len(rows))
    ]
    return to_contract(
        "att_instructions", pl.DataFrame([{**a, **same, **b} for a, b in zip(listed, rows, strict=True)])
    )


def listing_html(listing: Listing) -> str:
    return templates().get_template("listing.html.jinja").render(listing=listing)


def kernels(name: str = "scale") -> pl.DataFrame:
    return pl.DataFrame({"kernel_id": [1], "name": [name]}, schema_overrides={"kernel_id": pl.Int32})


def only(frame: pl.DataFrame, stalls: pl.DataFrame | None = None, **options: Any) -> Listing:
    (one,) = listings(frame, empty_table("att_stalls") if stalls is None else stalls, kernels(), **options)
    return one


def parsed(page: str) -> ElementTree.Element:
    """The fragment read strictly; only an attribute without a value is HTML and not XML."""
    return ElementTree.fromstring(f"<div>{page}</div>".replace("<details open>", '<details open="">'))


def text_of(listing: Listing) -> str:
    out = io.StringIO()
    print_listing(listing, out)
    return out.getvalue()


TAGS = {
    *("div", "h3", "p", "table", "thead", "tbody", "tr", "th", "td"),
    *("details", "summary", "code", "svg", "rect"),
}
BRANCH: dict[str, Any] = {"instruction": "s_cbranch_scc0 2", "instruction_class": "branch"}
BARRIER: dict[str, Any] = {"instruction": "s_barrier", "instruction_class": "barrier"}
#: Three regions of which the second lost most, and the third nothing.
PROGRAM: list[dict[str, Any]] = [
    {"stall_cycles": 10},
    {},
    BRANCH,
    {"instruction": "buffer_load_dword v0", "stall_cycles": 3, "charged_stall_cycles": 900, "source": "/src/a.cpp:7"},
    {},
    {},
    {},
    {},
    {},
    {"instruction": "s_waitcnt vmcnt(0)", "instruction_class": "wait", "stall_cycles": 900},
    {**BARRIER, "stall_cycles": 87},
    {},
    {"instruction": "s_endpgm", "instruction_class": "message"},
]


def test_the_hottest_region_comes_first_and_its_instructions_in_their_order() -> None:
    listing = only(instructions(*PROGRAM))
    assert [(region.first.number, region.last.number, region.lost) for region in listing.regions] == [
        (3, 10, 990),
        (0, 2, 10),
    ]
    assert listing.rest == Fold(2, 0, 0, 1)
    assert (listing.lost, listing.most, listing.unit) == (1000, 900, "cycles")
    rows = listing.regions[0].rows
    assert [row.number if isinstance(row, Line) else row.instructions for row in rows] == [3, 4, 3, 8, 9, 10]
    assert rows[2] == Fold(3, 0)


def test_an_instruction_that_others_wait_for_is_shown_though_it_never_stalls() -> None:
    cold: list[dict[str, Any]] = [{} for _ in range(9)]
    listing = only(instructions(*cold, {"charged_stall_cycles": 500}, *cold, {"stall_cycles": 500}))
    (region,) = listing.regions
    assert 9 in [row.number for row in region.rows if isinstance(row, Line)]


def test_at_most_so_many_regions_are_shown_and_the_rest_is_summed() -> None:
    listing = only(instructions(*PROGRAM), regions=1)
    assert len(listing.regions) == 1
    assert listing.rest == Fold(5, 10, 0, 2)
    assert "2 further regions folded: 5 instructions, 10 stalled cycles" in text_of(listing)


def test_a_branch_a_barrier_the_end_and_another_code_object_end_a_region() -> None:
    hot = {"stall_cycles": 1}
    end = {"instruction": "s_endpgm", "instruction_class": "message"}
    frame = instructions(hot, BRANCH, hot, BARRIER, hot, end, hot, {**hot, "code_object_id": 2})
    frame = frame.with_columns(pl.col("code_object_id").fill_null(1))
    firsts = [region.first.number for region in only(frame, regions=9).regions]
    assert firsts == [0, 2, 4, 6, 7]


def test_the_terminal_shows_counts_bars_and_reasons() -> None:
    stalls = to_contract(
        "att_stalls",
        pl.DataFrame(
            {"reason": ["barrier", "waiting for loads"], "stall_cycles": [87, 900], "share_ratio": [0.087, 0.9]}
        ),
    )
    told = text_of(only(instructions(*PROGRAM), stalls))
    assert told.index("waiting for loads") < told.index("barrier")
    assert "From line 3 to line 10: 990 stalled cycles, 99.0 %, 8 instructions" in told
    (load,) = [line for line in told.splitlines() if "buffer_load" in line]
    assert re.split(r"\s{2,}", load.strip()) == ["3", "4", "3", "900", "valu", "buffer_load_dword v0", "a.cpp:7"]
    (wait,) = [line for line in told.splitlines() if "s_waitcnt" in line]
    assert wait.count("█") == 12


def test_samples_are_called_samples_and_have_no_hits() -> None:
    listing = only(instructions({"samples": 3}, {"samples": 5, "source": "a.cpp:1"}, unit="samples"))
    told = text_of(listing)
    assert "8 program-counter samples; they count moments, not cycles" in told
    stalls = to_contract("att_stalls", pl.DataFrame({"reason": ["barrier"], "samples": [6], "share_ratio": [1.0]}))
    reasoned = only(instructions({"samples": 8}, unit="samples"), stalls)
    assert "8 program-counter samples, 6 of them stalled with a known reason; they" in text_of(reasoned)
    assert "Stalled samples</th>" in listing_html(reasoned)
    assert "hits" not in told and "waited for" not in told
    assert "cycles in which" not in listing_html(listing)


def test_what_was_not_recorded_is_a_dash_and_not_zero() -> None:
    told = text_of(only(instructions({"stall_cycles": 5, "hits": None, "charged_stall_cycles": None, "line": None})))
    (row,) = [line for line in told.splitlines() if "v_nop" in line]
    assert row.split()[:3] == ["–", "–", "5"]


def test_listings_are_told_apart_by_kernel_dispatch_and_kind_with_traced_ones_first() -> None:
    hot = {"stall_cycles": 7}
    frame = pl.concat(
        [
            instructions({"samples": 99}, unit="samples", kernel_id=1),
            instructions(hot, kernel_id=1, dispatch_id=3),
            instructions(hot, hot, kernel_id=None),
        ]
    )
    stalls = to_contract(
        "att_stalls", pl.DataFrame({"kernel_id": [1], "dispatch_id": [3], "reason": ["barrier"], "stall_cycles": [7]})
    )
    found = listings(frame, stalls, kernels())
    assert [(one.kernel, one.dispatch_id, one.unit, one.lost) for one in found] == [
        (None, None, "cycles", 14),
        ("scale", 3, "cycles", 7),
        ("scale", None, "samples", 99),
    ]
    assert [len(one.reasons) for one in found] == [0, 1, 0]
    assert "Code not matched to any kernel" in text_of(found[0])


def test_no_instructions_give_no_listing() -> None:
    assert listings(empty_table("att_instructions"), empty_table("att_stalls"), kernels()) == []
    assert listings(instructions({}), empty_table("att_stalls"), kernels())[0].regions == ()


def test_nothing_that_a_capture_says_becomes_markup_or_moves_the_cursor() -> None:
    frame = instructions(
        {"instruction": HOSTILE, "source": HOSTILE, "instruction_class": HOSTILE, "stall_cycles": 5}, kernel_id=1
    )
    stalls = to_contract("att_stalls", pl.DataFrame({"kernel_id": [1], "reason": [HOSTILE], "stall_cycles": [5]}))
    (listing,) = listings(frame, stalls, kernels(HOSTILE))
    page = listing_html(listing)
    root = parsed(page)
    assert {element.tag for element in root.iter()} <= TAGS
    shown = "".join(root.itertext())
    told = text_of(listing)
    for out in (shown, told):
        assert "<script>alert(1)" in out and "[bold]x[/bold]" in out
        assert "\x1b" not in out and "\u202e" not in out


def test_the_page_needs_no_style_or_script_of_its_own() -> None:
    page = listing_html(only(instructions(*PROGRAM)))
    root = parsed(page)
    assert not [
        element
        for element in root.iter()
        if "style" in element.attrib or any(a.startswith("on") for a in element.attrib)
    ]
    assert [element.get("open") is not None for element in root.iter("details")] == [True, False]
    bars = [rect.get("fill") for rect in root.iter("rect")]
    assert set(bars) == {"var(--accent)", "var(--second)"}
    assert max(float(rect.get("width", 0)) for rect in root.iter("rect")) == 80


@pytest.mark.parametrize("regions", [1, 3, 50])
@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 30), st.sampled_from(["valu", "branch", "barrier"])),
        min_size=1,
        max_size=40,
    )
)
def test_every_instruction_is_shown_or_folded_once(regions: int, given_rows: list[tuple[int, int, str]]) -> None:
    rows = [{"stall_cycles": a, "charged_stall_cycles": b, "instruction_class": kind} for a, b, kind in given_rows]
    listing = only(instructions(*rows), regions=regions)
    told: list[Line | Fold] = [row for region in listing.regions for row in region.rows]
    told += [listing.rest] if listing.rest else []
    assert sum(1 if isinstance(row, Line) else row.instructions for row in told) == len(rows)
    assert sum(row.lost or 0 for row in told) == sum(a for a, _, _ in given_rows) == listing.lost
    assert sum(row.charged or 0 for row in told) == sum(b for _, b, _ in given_rows)
    for region in listing.regions:
        numbers = [row.number for row in region.rows if isinstance(row, Line)]
        assert numbers == sorted(numbers)  # type: ignore[type-var]
    assert [region.lost for region in listing.regions] == sorted((r.lost for r in listing.regions), reverse=True)
