"""The page's timeline in a browser: what is drawn, told, found and summed up, by mouse, fingers and keyboard."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.html.page import render_html
from aaco_pipeline.report.session.document import session_document
from tests.report.html.browser import COMPLAINTS, Browser, browser_or_skip
from tests.report.made_up import EVIL, SESSION, rows_of

KERNELS: Final = (("a_long_name_of_a_product", "gemm", "gemm"), (EVIL, "relu", "elementwise"), ("x", "norm", "norm"))
KEY: Final = "document.querySelector('#strip').dispatchEvent(new KeyboardEvent('keydown', {{ key: '{}', {} }}))"
TOLD: Final = "document.querySelector('#spoken').textContent"
PICTURE: Final = "document.querySelector('#strip').toDataURL()"


def activities(count: int, seed: int = 3) -> dict[str, list[dict[str, Any]]]:
    """Kernels on two streams, some within others, copies, and a gap before every third; one thread launches them."""
    chance, at = random.Random(seed), 1000
    tables: dict[str, list[dict[str, Any]]] = {"dispatches": [], "memory_copies": [], "gaps": [], "api_calls": []}
    for number in range(count):
        took, stream, kernel = chance.randrange(50, 900), number % 2, chance.randrange(3)
        if number % 3 == 0:
            cause = chance.choice(("sync", "host_wait"))
            tables["gaps"].append({"start_ns": at, "end_ns": at + 200, "cause": cause})
            at += 200
        row = {"dispatch_id": 2 * number, "kernel_id": kernel, "stream_id": stream, "iteration": number // 10}
        tables["dispatches"].append({**row, "start_ns": at, "end_ns": at + took})
        end = at + took
        if number % 3 == 1:
            start = at + took // 2
            tables["dispatches"][-1]["end_ns"] = end = at + took + 300
            copy = {"copy_id": number, "direction": "device_to_host", "size_bytes": 4096}
            tables["memory_copies"].append({**copy, "start_ns": start, "end_ns": end + 10})
            end += 10
        elif number % 5 == 4:  # an operator that contains another
            inner = {"dispatch_id": 2 * number + 1, "kernel_id": (kernel + 1) % 3, "parent_dispatch_id": 2 * number}
            tables["dispatches"].append({**row, **inner, "start_ns": at + 10, "end_ns": at + took - 20})
        call = {"call_id": number, "thread_id": 5, "domain": "hip_runtime", "name": f"hipLaunchKernel {number % 4}"}
        tables["api_calls"].append({**call, "start_ns": at - 150, "end_ns": at - 10})
        at = end
    for name in ("dispatches", "memory_copies", "gaps"):
        tables[name] = [{"device_id": 0, **row} for row in tables[name]]
    return tables


def published(folder: Path, tables: dict[str, list[dict[str, Any]]]) -> str:
    """The page of a session with these activities, whose first fifth is set-up."""
    lake, run = TraceLake(folder / "lake"), tables["dispatches"]
    lake.publish(SESSION, "capture", {"sessions": rows_of("sessions", [{"source_kind": "capture"}])})
    named = [
        {"kernel_id": at, "name": name, "short_name": short, "family": family, "role": "main"}
        for at, (name, short, family) in enumerate(KERNELS)
    ]
    traced = {name: rows_of(name, tables[name]) for name in ("dispatches", "memory_copies", "api_calls")}
    lake.publish(SESSION, "kernel_trace", {**traced, "kernels": rows_of("kernels", named)})
    first, begin, last = run[0]["start_ns"], run[len(run) // 5]["start_ns"], run[-1]["end_ns"]
    parts = [
        {"device_id": 0, "part": "set_up", "start_ns": first, "end_ns": begin},
        {"device_id": 0, "part": "steady", "start_ns": begin, "end_ns": last},
    ]
    lake.publish(
        SESSION,
        "timeline",
        {"gaps": rows_of("gaps", tables["gaps"]), "session_parts": rows_of("session_parts", parts)},
    )
    answer = {"class": "device", "device_id": 0, "window_start_ns": begin, "window_end_ns": last}
    answer |= {"window_ns": last - begin, "busy_ratio": 0.5, "class_ratio": 0.5}
    lake.publish(SESSION, "classification", {"answers": rows_of("answers", [answer])})
    page = folder / "report.html"
    page.write_text(render_html(session_document(lake, SESSION), None))
    return page.as_uri()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    yield from browser_or_skip(tmp_path_factory.mktemp("profile"))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    return published(tmp_path_factory.mktemp("small"), activities(200))


@pytest.fixture(scope="module")
def great(tmp_path_factory: pytest.TempPathFactory) -> str:
    """More than is drawn one by one."""
    return published(tmp_path_factory.mktemp("great"), activities(9000))


def union(pieces: list[tuple[int, int]]) -> int:
    covered, until = 0, 0
    for start, end in sorted(pieces):
        covered += max(0, end - max(start, until))
        until = max(until, end)
    return covered


@pytest.mark.parametrize("count", [200, 9000])
def test_sums_of_any_range_are_exact(browser: Browser, request: pytest.FixtureRequest, count: int) -> None:
    tables, chance = activities(count), random.Random(8)
    browser.open(request.getfixturevalue("small" if count == 200 else "great"))
    origin, length = browser.run("[drawn.origin_ns, drawn.length]")
    wanted = [sorted(chance.sample(range(length), 2)) for _ in range(12)]
    for start, end in [[0, length], browser.run("[drawn.window.start, drawn.window.end]"), *wanted]:
        sums = browser.run(f"sumsOf(drawn, {start}, {end})")
        # Outside what is drawn one by one a range is widened to whole cells, and says so by its ends.
        assert sums["from"] <= start
        assert sums["to"] >= end
        assert count > 200 or (sums["from"], sums["to"]) == (start, end)
        first, last = sums["from"] + origin, sums["to"] + origin

        def inside(name: str, first: int = first, last: int = last) -> list[tuple[int, int]]:
            cut = [(max(row["start_ns"], first), min(row["end_ns"], last)) for row in tables[name]]
            return [(one, two) for one, two in cut if two > one]

        run = pl.DataFrame(tables["dispatches"]).with_columns(
            time=(pl.min_horizontal("end_ns", last) - pl.max_horizontal("start_ns", first)).clip(0),
            begun=pl.col("start_ns").is_between(first, last, closed="left"),
        )
        around = run.select("kernel_id", parent_dispatch_id="dispatch_id")
        within = run.drop("kernel_id").drop_nulls("parent_dispatch_id").join(around, on="parent_dispatch_id")
        within = within.select("kernel_id", time=-pl.col("time"), begun=pl.lit(False))
        own = pl.concat([run.select("kernel_id", "time", "begun"), within])
        expected = own.group_by("kernel_id").agg(pl.col("time").sum(), pl.col("begun").sum())
        shown = browser.run("drawn.names.map(one => one.label)")
        kernels = {shown[one["name"]]: (one["time"], one["count"]) for one in sums["kernels"]}
        there = {KERNELS[kernel][1]: tuple(held) for kernel, *held in expected.iter_rows() if any(held)}
        assert kernels == there
        assert dict(sums["devices"]) == {0: union(inside("dispatches") + inside("memory_copies"))}
        assert sum(one["time"] for one in sums["idle"]) == sum(two - one for one, two in inside("gaps"))
        by_lane = dict(zip(browser.run("drawn.lanes.map(one => one.label)"), sums["lanes"], strict=True))
        assert by_lane["Host thread 5"] == union(inside("api_calls"))
        assert by_lane["Device 0, copies"] == union(inside("memory_copies"))


def test_a_drag_sums_up_a_range_and_a_click_gives_it_up(browser: Browser, small: str) -> None:
    browser.open(small)
    x, y, width = place(browser, 0.3)
    drag(browser, x, x + width / 4, y)
    told = browser.run("document.querySelector('#range').innerText")
    assert "Range: " in told
    assert "Busy of the range" in told
    assert "Kernels by their own time" in told
    assert "sync: the host waited in a blocking call" in told
    first, last = browser.run("range")
    assert last - first == pytest.approx(browser.run("(view[1] - view[0]) / 4"), rel=0.02)
    assert "device 0 busy" in browser.run("document.querySelector('#range-said').textContent")
    browser.run(KEY.format("Escape", ""))
    assert browser.run("document.querySelector('#range').innerText") == ""
    browser.run(KEY.format("s", ""))
    seen = browser.run("range")
    browser.run(KEY.format("ArrowLeft", "shiftKey: true"))
    assert browser.run("range[1]") < seen[1]
    browser.run("document.querySelector('#strip-window').click()")
    assert "The judged window: " in browser.run("document.querySelector('#range').innerText")
    assert browser.run("range[0] === drawn.window.start && range[1] === drawn.window.end")
    browser.run("drawn.window.interrupted = true; document.querySelector('#strip-window').click()")
    assert "The judged window, with its interruptions: " in browser.run("document.querySelector('#range').innerText")
    assert browser.told(*COMPLAINTS) == []


def place(browser: Browser, across: float) -> tuple[float, float, float]:
    """A point of the timeline's first lane so far from its left, and its width."""
    browser.run("document.querySelector('#strip').scrollIntoView({ behavior: 'instant', block: 'center' })")
    browser.settle()
    left, top, width = browser.run(
        "(() => { const box = document.querySelector('#strip').getBoundingClientRect();"
        " return [box.left, box.top + placed[0].top + 5, box.width]; })()"
    )
    return left + width * across, top, width


def drag(browser: Browser, start: float, end: float, y: float, **more: Any) -> None:
    moves = [("mouseMoved", (start + end) / 2), ("mouseMoved", end)]
    for kind, x in (("mousePressed", start), *moves, ("mouseReleased", end)):
        browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1, **more)


def test_wheel_fingers_and_keys_zoom_and_pan(browser: Browser, small: str) -> None:
    browser.open(small)
    x, y, _ = place(browser, 0.5)
    span = "view[1] - view[0]"
    whole, scrolled = browser.run(span), browser.run("scrollY")

    def turn_wheel(**more: Any) -> float:
        browser.call("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=-100, **more)
        browser.settle()
        seen: float = browser.run(span)
        return seen

    zoomed = turn_wheel(modifiers=2)
    assert zoomed < whole
    assert browser.run("scrollY") == scrolled
    assert turn_wheel() == zoomed  # without Ctrl the wheel is the page's

    x, y, _ = place(browser, 0.5)
    before = browser.run("view[0]")
    drag(browser, x, x - 60, y, modifiers=8)  # with Shift
    assert browser.run("view[0]") > before
    assert browser.run(span) == pytest.approx(zoomed)
    assert browser.run("range") is None
    for kind, apart in (("touchStart", 40), ("touchMove", 120), ("touchEnd", None)):
        fingers = [] if apart is None else [{"x": x - apart, "y": y, "id": 0}, {"x": x + apart, "y": y, "id": 1}]
        browser.call("Input.dispatchTouchEvent", type=kind, touchPoints=fingers)
    assert browser.run(span) < 0.6 * zoomed
    seen = [browser.run("view")]
    for key in ("+", "ArrowRight", "-"):
        browser.run(KEY.format(key, ""))
        seen.append(browser.run("view"))
    assert len({tuple(one) for one in seen}) == 4
    browser.run(KEY.format("0", ""))
    assert browser.run(span) == whole
    assert browser.told(*COMPLAINTS) == []


def test_threads_are_folded_until_they_are_opened(browser: Browser, small: str) -> None:
    browser.open(small)
    height = "document.querySelector('#strip').clientHeight"
    expanded = "document.querySelector('#strip-host').ariaExpanded"
    folded = browser.run(height)
    assert browser.run(expanded) == "false"
    browser.run("document.querySelector('#strip-host').click()")
    assert browser.run(expanded) == "true"
    assert browser.run(height) > folded
    browser.run(KEY.format("h", ""))
    assert browser.run(height) == folded
    x, _, _ = place(browser, 0.1)
    y = browser.run("document.querySelector('#strip').getBoundingClientRect().top + foldAt + 8")
    for kind in ("mousePressed", "mouseReleased"):
        browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)
    assert browser.run(expanded) == "true"


def test_search_marks_counts_and_steps_through_what_it_finds(browser: Browser, small: str) -> None:
    browser.open(small)
    kernels = [row["kernel_id"] for row in activities(200)["dispatches"]]
    plain = browser.run(PICTURE)
    browser.run("document.querySelector('#strip-search').focus()")
    browser.call("Input.insertText", text="long_name_of")  # of the full name, not the short one
    found = "document.querySelector('#strip-found').textContent"
    count = kernels.count(0)
    assert browser.run(found) == f"{count} activities"
    assert browser.run(PICTURE) != plain
    press = "document.querySelector('[data-step=\"{}\"]').click()"
    browser.run(press.format(1))
    assert browser.run(found) == f"1 of {count} activities"
    assert browser.run(TOLD).startswith("gemm; took ")
    browser.run(press.format(-1))
    assert browser.run(found) == f"{count} of {count} activities"
    browser.run("search('hipLaunch')")
    browser.run(press.format(1))
    assert browser.run("document.querySelector('#strip-host').ariaExpanded") == "true"  # what is stepped to is seen
    browser.run("search('nothing is called so')")
    assert browser.run(found) == "none of what is drawn"
    assert browser.run("document.querySelector('[data-step=\"1\"]').disabled")


def test_an_activity_is_named_with_iteration_and_pause_and_in_full_on_demand(browser: Browser, small: str) -> None:
    browser.open(small)
    rows = activities(200)
    paused = {gap["end_ns"]: gap["cause"].replace("_", " ") for gap in rows["gaps"][8:]}
    row = next(row for row in rows["dispatches"] if row["kernel_id"] == 1 and row["start_ns"] in paused)
    cause = paused[row["start_ns"]]
    begin = row["start_ns"] - browser.run("drawn.origin_ns")
    browser.run(f"lookAt({begin} - 300, {begin} + 900)")
    _, y, width = place(browser, 0)
    left = browser.run("document.querySelector('#strip').getBoundingClientRect().left")
    first, last = browser.run("view")
    at = left + (begin + 20 - first) / (last - first) * width
    lane = f"drawn.lanes.findIndex(one => one.label.includes('stream {row['stream_id']}'))"
    y += browser.run(f"placed[{lane}].top - placed[0].top")
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=at, y=y)
    tip = browser.run("document.querySelector('#tip').hidden ? '' : document.querySelector('#tip').innerText")
    assert tip.startswith("relu\n")
    assert f"({row['end_ns'] - row['start_ns']:,} ns)" in tip
    assert f"in iteration {row['iteration']}" in tip
    assert f"idle for 200 ns: {cause}" in tip
    for kind in ("mousePressed", "mouseReleased"):
        browser.call("Input.dispatchMouseEvent", type=kind, x=at, y=y, button="left", buttons=1, clickCount=1)
    assert browser.run(TOLD).startswith("relu; took ")
    full = "(one => one.open ? one.querySelector('code').innerText : null)(document.querySelector('#strip-full'))"
    assert browser.run(full) is None
    browser.run(KEY.format("f", ""))
    assert browser.run(full) == EVIL


def test_a_great_recording_says_what_is_drawn_and_looks_there_first(browser: Browser, great: str) -> None:
    browser.open(great)
    said = browser.run("document.querySelector('#timeline .intro').innerText")
    assert "are drawn one by one" in said
    assert browser.run("view[0] <= drawn.windows[0][0] && view[1] >= drawn.windows[0][1]")
    browser.run("see(drawn.windows[0][1], drawn.windows[0][1] + 100000)")
    beyond = browser.run("sumsOf(drawn, drawn.windows[0][1] + 1, drawn.windows[0][1] + 2)")
    assert beyond["to"] - beyond["from"] > 1
    x, y, _ = place(browser, 0.5)
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    assert "single activities are not drawn here" in browser.run("document.querySelector('#tip').innerText")
    browser.run("search('gemm')")
    assert "where drawn in full" in browser.run("document.querySelector('#strip-found').textContent")
    assert browser.told(*COMPLAINTS) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_fits_a_telephone(browser: Browser, small: str, theme: str) -> None:
    browser.open(small, width=390, theme=theme)
    browser.run("fold(true); sumSeen()")
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert browser.told(*COMPLAINTS) == []


def test_the_page_says_where_no_part_is_judged_or_another_pass_is(small: str) -> None:
    document = session_document(TraceLake(Path(small.removeprefix("file://")).parent / "lake"), SESSION)
    timeline = document["drawn_timeline"]
    unsteady = {**timeline, "window": None, "parts": timeline["parts"][:1]}
    assert "No part of the recording is steady" in render_html({**document, "drawn_timeline": unsteady}, None)
    elsewhere = render_html({**document, "drawn_timeline": {**timeline, "window": None}}, None)
    assert "The judged window is of a pass without a profiler" in elsewhere
    page = render_html(document, None)
    assert "No part of the recording is steady" not in page
    assert "of a pass without a profiler" not in page
