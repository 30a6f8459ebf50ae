"""The page of a session: its sections, what it runs and names, its size, and what its plots hold."""

import base64
import gzip
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.html.page import EMBEDDED_TRACE_BYTES, render_html
from aaco_pipeline.report.session.document import path_document, session_document
from aaco_pipeline.report.session.sentences import Document
from aaco_pipeline.report.session.statements import KERNEL_PAGES, RANKS
from aaco_pipeline.report.session.view import path_view
from tests.report.full_session import MODEL, publish_session
from tests.report.html.pages import SECTIONS, Page, plotted
from tests.report.made_up import EVIL, QUIET, SESSION, SPIKE, printed


def test_names_from_a_capture_are_text_everywhere(page: str) -> None:
    parsed = Page(page)
    assert len(parsed.texts["script"]) == 3
    assert not any(tag == "img" for tag, _ in parsed.elements)
    assert not any("onerror" in attributes for _, attributes in parsed.elements)
    assert EVIL in parsed.having("title")
    assert f"Conv: {EVIL}" in [name["label"] for name in plotted(page)["timeline"]["names"]]
    described = render_html(session_like(MODEL, title=EVIL), None)
    assert not any(tag == "img" for tag, _ in Page(described).elements)
    assert len(Page(described).texts["script"]) == 3


def session_like(model: str, *, title: str) -> Document:
    """A document of a session of which only a name is known."""
    names = ["metrics", "timeline", "top_kernels", "missing", "iterations", "kernels", "operators", "model_operators"]
    names += ["system_samples", "gpu_samples", "devices", "processes", "environment", "clock_domains", "evidence"]
    names += ["bottleneck", "optimization_priority", "limits", "ceilings", "instructions", "stall_reasons"]
    names += ["path_categories", "path_kernels", "savings", "gap_causes", "scaling"]
    names += ["operator_shapes", "collective_rates", "answers", "time_shares", "kinds_of_work", "session_parts"]
    names += [*KERNEL_PAGES, *RANKS]
    empty: Document = {name: [] for name in (*names, "moments", "published", "unpublished_stages")}
    empty["drawn_timeline"] = None
    known = {"session_id": SESSION, "model_name": title, "provider": model, "started_at": None, "host": title}
    rest = {"batch_size": None, "precision": None, "threads": None, "fingerprint": title, "trace": None}
    return {**empty, **known, **rest, "statements": {}, "written_by": title}


def test_page_runs_only_its_own_script_and_style(page: str) -> None:
    parsed = Page(page)
    policy = next(found for found in parsed.having("content") if found.startswith("default-src"))
    for text in (parsed.texts["script"][-1], parsed.texts["style"][0]):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_sections_with_nothing_to_show_are_neither_in_page_nor_in_navigation(document: Document) -> None:
    parsed = Page(render_html({**document, "iterations": [], "metrics": [], "drawn_timeline": None}, None))
    order = [attributes["id"] for tag, attributes in parsed.elements if tag == "section"]
    assert order == [name for name in SECTIONS if name not in ("latency", "distribution", "warmup", "timeline")]
    targets = [target[1:] for target in parsed.having("href") if target and target.startswith("#")]
    assert [name for name in targets if name in order and targets.count(name) == 1] == [
        name for name in order if name is not None and targets.count(name) == 1
    ]


def test_page_names_no_address_but_perfetto(page: str) -> None:
    assert set(re.findall(r"https?://[^\s'\"`<)]+", page)) == {"https://ui.perfetto.dev", "http://www.w3.org/2000/svg"}
    parsed = Page(page)
    assert parsed.having("src") == []
    assert {found[:1] for found in parsed.having("href") if found != "data:,"} == {"#"}


def test_page_has_its_sections_each_named_by_its_heading(page: str) -> None:
    parsed = Page(page)
    found = [attributes for tag, attributes in parsed.elements if tag == "section"]
    assert tuple(attributes["id"] for attributes in found) == SECTIONS
    ids = parsed.having("id")
    assert len(ids) == len(set(ids))
    assert {attributes["aria-labelledby"] for attributes in found} <= set(ids)
    assert {target[1:] for target in parsed.having("href") if target.startswith("#")} <= set(ids)


def test_sql_on_the_page_can_be_pasted_into_a_shell(page: str, document: Document) -> None:
    commands = [text for text in Page(page).texts["code"] if text.startswith("aaco sql ")]
    assert len(commands) > 9
    bash = shutil.which("bash")
    assert bash is not None
    for command in commands:
        script = f'aaco() {{ printf %s "$2"; }}; {command}'
        done = subprocess.run([bash, "-c", script], capture_output=True, text=True, check=True, timeout=10)
        assert done.stdout in document["statements"].values()


def test_what_a_faster_kernel_would_save_is_reported_on_page_and_terminal(full: TraceLake) -> None:
    document = path_document(full, SESSION)
    name = next(row["name"] for row in session_document(full, SESSION)["kernels"] if row["kernel_id"] == 0)
    assert [(row["name"], row["saved_ns"]) for row in document["savings"]] == [(name, 25)]
    assert re.search(r"What a faster kernel would save.*25 ns +25", printed(path_view(document)), re.S)
    page = render_html(session_document(full, SESSION), None)
    assert re.search(r"If one kernel ran faster.*25 ns", page, re.S)


def test_shares_add_up_with_the_folded_ones_as_one_row(tmp_path: Path) -> None:
    lake = TraceLake(tmp_path / "lake")
    kernels = [(f"kernel {index}", f"kind {index % 3}") for index in range(40)]
    publish_session(lake, iterations=3, kernels=kernels, limits=False)
    page = render_html(session_document(lake, SESSION), None)
    table = page[page.index("<h3>By kernel</h3>") : page.index('<section id="timeline"')]
    rows = [[float(order) for order in re.findall(r'data-order="([^"]+)"', row)] for row in table.split("<tr")[2:]]
    folded = [row for row in table.split("<tr")[2:] if row.startswith(' class="more"')]
    assert len(folded) == 28
    assert "other (28 kernels)" in table
    shares = [row[0] for row in rows]
    assert sum(shares[:40]) == pytest.approx(1)
    assert sum(shares[:12]) + shares[40] == pytest.approx(1)
    assert shares[41] == pytest.approx(1)


def test_same_document_gives_the_same_page(document: Document, page: str) -> None:
    assert render_html(document, b"a trace") == page


def test_page_of_a_thousand_iterations_with_its_trace_is_below_two_megabytes(tmp_path: Path) -> None:
    lake = TraceLake(tmp_path / "lake")
    kernels = [(f"squeezenet0_conv{index}_fwd_nchwc", ("Conv", "Relu", "Concat")[index % 3]) for index in range(66)]
    publish_session(lake, iterations=1000, warmup=10, kernels=kernels)
    document = session_document(lake, SESSION)
    assert len(render_html(document, None)) < 600_000
    assert len(render_html(document, os.urandom(EMBEDDED_TRACE_BYTES))) < 2_000_000


def test_page_of_a_great_many_iterations_stays_small_and_keeps_the_slowest(document: Document) -> None:
    first = next(row for row in document["iterations"] if row["phase"] == "measure")
    many = [
        {**first, "iteration": index, "start_ns": index * 10_000_000, "latency_ns": 4_000_000 + index % 1009}
        for index in range(200_000)
    ]
    many[123_457]["latency_ns"] = 9_999_999
    page = render_html({**document, "iterations": many}, None)
    assert len(page) < 2_000_000
    drawn = plotted(page)["passes"][0]
    assert max(drawn["latency"]) == 9_999_999
    assert drawn["count"] == 200_000
    assert drawn["x"] == sorted(drawn["x"])
    assert sum(plotted(page)["histogram"]["counts"]["latency"]) == 200_000


def test_trace_travels_in_the_page_up_to_a_size_and_lies_beside_it_beyond(document: Document) -> None:
    small, large = gzip.compress(b"small"), b"x" * (EMBEDDED_TRACE_BYTES + 1)
    assert base64.b64decode(Page(render_html(document, small)).texts["script"][1]) == small
    beside = render_html(document, large)
    assert Page(beside).texts["script"][1] == ""
    assert plotted(beside)["trace"]["url"] == f"../../traces/session_id={SESSION}/trace.pftrace.gz"
    assert plotted(render_html(document, None))["trace"] is None


def test_how_quiet_the_machine_was_stands_at_the_top_and_leads_to_the_spikes(document: Document, page: str) -> None:
    nothing = dict.fromkeys(("spike_cause", "explained_ns", "occurrences", "evidence_grade", "by_name", "by_thread_id"))
    spike = {**SPIKE, **nothing, "grade": "disturbed", "disturbed_by": "preempted", "by_kind": None, "start_ns": 0}
    figure = {"cause": "preempted", "spikes": 0, "total_ns": 1, "variance_share_ratio": 0.9, "tail_share_ratio": 0.8}
    figure |= {"p99_without_ns": 5, "ci_low_ns": 4, "ci_high_ns": 6}
    seen = {"quietness": [QUIET], "spikes": [spike], "delay_causes": [figure]}
    told = render_html({**document, **seen}, None)
    head = told[: told.index("</header>")]
    assert "The machine disturbed 6.7\N{NO-BREAK SPACE}% of the iterations" in head
    assert '<a href="#spikes">' in head
    section = told[told.index('<section id="spikes"') :]
    cells = re.findall(r"<td[^>]*>(.*?)</td>", section[: section.index("</section>")], re.DOTALL)
    assert [re.sub(r"<[^>]*>", "", cell) for cell in cells[3:8]] == ["no single cause", "–", "–", "–", "–"]
    assert "The machine disturbed" not in page
