"""The reports of a session: what their document holds, what each form says, and what the page does in a browser.

All sessions here are made up and say so in their model's name; they are published into lakes of the tests' own.
"""

import base64
import gzip
import hashlib
import html.parser
import io
import json
import os
import re
import select
import shutil
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click.testing
import pytest

from aaco_pipeline.cli.report import report
from aaco_pipeline.lake.evidence import Evidence, evidence_frame
from aaco_pipeline.lake.health import faults
from aaco_pipeline.lake.sql import select_rows
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.document.session import path_document, session_document, session_summary
from aaco_pipeline.report.html.page import EMBEDDED_TRACE_BYTES, render_html
from aaco_pipeline.report.markdown import render_markdown
from aaco_pipeline.report.terminal.session import print_critical_path, print_evidence, print_session
from aaco_pipeline.report.words import units
from aaco_pipeline.report.words.session import Document, answer, facts, value
from aaco_pipeline.resources.report_server import loopback_server
from tests.report.made_up import EVIL, SESSION, publish_limits, rows_of

MODEL: Final = "made up for a test"
#: The sections of the full session's page: those that have something to show, the answer's first.
SECTIONS: Final = (
    *("where", "latency", "distribution", "warmup", "kernels", "limits", "timeline", "path"),
    *("operators", "instructions", "environment", "clocks", "evidence"),
)
CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


# ---- made-up sessions ------------------------------------------------------------------------------------------------


def latency_of(index: int) -> int:
    """A latency that wanders, with a slow iteration now and then."""
    return 4_000_000 + 7919 * (index * index % 97) + (9_000_000 if index % 211 == 210 else 0)


def publish_session(
    lake: TraceLake,
    *,
    iterations: int = 60,
    warmup: int = 5,
    kernels: Sequence[tuple[str, str]] = (("loop", "Loop"), (EVIL, "Conv"), ("relu", "Relu")),
    telemetry: bool = True,
    model: bool = True,
    limits: bool = True,
) -> None:
    """Publish a session with two passes; each traced iteration runs all kernels inside the first of them."""
    described = {"source_kind": "live", "model_name": MODEL, "provider": "CPUExecutionProvider", "batch_size": 1}
    described |= {"precision": "float32", "threads": 1, "host": "nowhere", "fingerprint": "0123456789abcdef"}
    started = {"started_at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)}
    lake.publish(SESSION, "capture", {"sessions": rows_of("sessions", [{**described, **started}])})
    facts = [{"category": "cpu", "key": "model", "value": "none", "in_fingerprint": True}]
    clocks = [{"domain": "monotonic", "offset_ns": -5, "uncertainty_ns": 0, "anchor": "defines the axis"}]
    lake.publish(
        SESSION,
        "session_environment",
        {
            "environment": rows_of("environment", facts),
            "devices": rows_of("devices", [{"device_id": 0, "vendor": "nobody"}]),
            "clock_domains": rows_of("clock_domains", clocks),
        },
    )

    passes = []
    for name, begin in (("latency", 0), ("trace", 60_000_000_000)):
        for index in range(warmup + iterations):
            start = begin + index * 15_000_000
            passes.append(
                {
                    "pass": name,
                    "iteration": index,
                    "phase": "warmup" if index < warmup else "measure",
                    "start_ns": start,
                    "end_ns": start + latency_of(index),
                    "latency_ns": latency_of(index),
                    "cpu_time_ns": latency_of(index) - 1000,
                    "run_delay_ns": index % 7 * 1000,
                }
            )
    ordered = sorted(latency_of(index) for index in range(warmup, warmup + iterations))
    median = float(ordered[len(ordered) // 2])
    figures = [
        {"metric": "latency_p50", "pass": name, "phase": "measure", "value": median, "unit": "ns", "n": iterations}
        | {"ci_low": median - 1e4, "ci_high": median + 1e4}
        for name in ("latency", "trace")
    ]
    figures += [
        {"metric": "latency_p99", "pass": "latency", "phase": "measure", "value": float(ordered[-1]), "unit": "ns"},
        {"metric": "throughput", "pass": "latency", "phase": "measure", "value": 212.5, "unit": "inference/s"},
        {"metric": "profiler_distortion", "phase": "measure", "value": 1.25, "unit": "ratio"},
    ]
    lake.publish(
        SESSION,
        "inference_run",
        {"iterations": rows_of("iterations", passes), "session_metrics": rows_of("session_metrics", figures)},
    )

    named = [{"kernel_id": i, "name": n, "short_name": s, "role": "main"} for i, (n, s) in enumerate(kernels)]
    traced = [row for row in passes if row["pass"] == "trace"]
    dispatches: list[dict[str, Any]] = []
    for row in traced:
        parent, each = len(dispatches), latency_of(int(str(row["iteration"]))) // (len(kernels) + 1)
        for kernel in range(len(kernels)):
            start = int(str(row["start_ns"])) + kernel * each + 1000
            end = start + each - 1000 if kernel else int(str(row["end_ns"])) - 1000
            dispatches.append(
                {
                    "dispatch_id": len(dispatches),
                    "thread_id": 7,
                    "kernel_id": kernel,
                    "start_ns": start,
                    "end_ns": end,
                    "self_ns": 1000 if kernel else 2000,
                    "iteration": row["iteration"],
                    "parent_dispatch_id": parent if kernel else None,
                    "below_resolution": kernel == 2,
                }
            )
    calls = [
        {"call_id": i, "thread_id": 7, "domain": "x", "name": "model_run"} | bounds(r) for i, r in enumerate(traced)
    ]
    missing = [Evidence("hardware counters", "absent", "nobody <b>counted</b>"), Evidence("events", "present", rows=3)]
    lake.publish(
        SESSION,
        "kernel_trace",
        {
            "kernels": rows_of("kernels", named),
            "dispatches": rows_of("dispatches", dispatches),
            "api_calls": rows_of("api_calls", calls),
            "evidence": evidence_frame("kernel_trace", missing),
        },
    )

    parts = [len(kernels) - index for index in range(len(kernels))]
    stats = [
        {"kernel_id": index, "dispatch_count": iterations, "total_ns": part * 1000 * iterations, "mean_ns": part * 1000}
        | {"share_ratio": part / sum(parts)}
        for index, part in enumerate(parts)
    ]
    whole = {"window_start_ns": 0, "window_end_ns": 100, "busy_ns": 90, "active_ratio": 0.9}
    whole["window_rule"] = "first_to_last_activity"  # type: ignore[assignment]
    lake.publish(
        SESSION, "timeline", {"kernel_stats": rows_of("kernel_stats", stats), "timeline": rows_of("timeline", [whole])}
    )
    path = {"scope": "session", "window_ns": 100, "path_ns": 90, "unexplained_ns": 10}
    categories = [{**path, "category": "compute", "category_ns": 90, "category_ratio": 1.0}]
    saving = {"kernel_id": 0, "speedup_ratio": 2.0, "critical_ns": 60, "saved_ns": 25, "saved_ratio": 0.25}
    path_tables: dict[str, list[dict[str, Any]]] = {"critical_path_summary": categories, "what_if": [saving]}
    lake.publish(SESSION, "critical_path", {name: rows_of(name, rows) for name, rows in path_tables.items()})
    if model:
        publish_model(lake, stats)
    if limits:
        publish_limits(lake)
    if telemetry:
        publish_telemetry(lake, int(str(traced[-1]["end_ns"])))


def bounds(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"start_ns": row["start_ns"], "end_ns": row["end_ns"]}


def publish_model(lake: TraceLake, stats: Sequence[Mapping[str, Any]]) -> None:
    """Operators for all kernels but the last, whose time stays unattributed; and one operator that no kernel ran."""
    nodes = [
        {"node_id": index, "name": f"node {index}", "op_type": "Conv", "domain": "ai.onnx"}
        | {"flops": 2e9, "read_bytes": 3 << 20, "written_bytes": 1 << 20, "shape_source": "made up"}
        for index in range(len(stats))
    ]
    matched = [
        {"kernel_id": row["kernel_id"], "dispatch_count": row["dispatch_count"], "total_ns": row["total_ns"]}
        | ({"node_id": index, "match": "name"} if index < len(stats) - 1 else {"match": "unattributed"})
        for index, row in enumerate(stats)
    ]
    tables = {"model_nodes": rows_of("model_nodes", nodes), "operator_kernels": rows_of("operator_kernels", matched)}
    lake.publish(SESSION, "model_graph", tables)


def publish_telemetry(lake: TraceLake, end: int) -> None:
    """Samples of a host that never was."""
    host = [
        {
            "time_ns": time,
            "cpu_ratio": index % 10 / 10 if index else None,
            "run_delay_ns": index * 1000,
            "rss_bytes": 400 << 20,
            "cpu_pressure_ratio": 0.1,
            "clock_mhz": 2400.0 + index % 5,
        }
        for index, time in enumerate(range(0, end, 100_000_000))
    ]
    device = [{"time_ns": row["time_ns"], "device_id": 0, "power_w": 300.0} for row in host]
    tables = {"system_samples": rows_of("system_samples", host), "gpu_samples": rows_of("gpu_samples", device)}
    lake.publish(SESSION, "telemetry", tables)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> TraceLake:
    """A lake with one session in which every stage has published. Look, do not touch."""
    lake = TraceLake(tmp_path_factory.mktemp("full") / "lake")
    publish_session(lake)
    return lake


@pytest.fixture(scope="module")
def document(full: TraceLake) -> Document:
    return session_document(full, SESSION)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> TraceLake:
    """The same without telemetry, model graph and limits."""
    lake = TraceLake(tmp_path_factory.mktemp("bare") / "lake")
    publish_session(lake, telemetry=False, model=False, limits=False)
    return lake


@pytest.fixture(scope="module")
def hollow(tmp_path_factory: pytest.TempPathFactory) -> TraceLake:
    """A lake with a session of which nothing but its existence is published."""
    lake = TraceLake(tmp_path_factory.mktemp("hollow") / "lake")
    lake.publish(SESSION, "capture", {"sessions": rows_of("sessions", [{"source_kind": "live"}])})
    return lake


# ---- the document ----------------------------------------------------------------------------------------------------


def test_document_has_every_part_and_is_json(document: Document) -> None:
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    parts = ["metrics", "timeline", "top_kernels", "missing", "iterations", "kernels", "operators", "model_operators"]
    parts += ["system_samples", "gpu_samples", "devices", "environment", "clock_domains", "evidence", "moments"]
    parts += ["bottleneck", "optimization_priority", "limits", "ceilings", "instructions", "stall_reasons"]
    assert [name for name in parts if not document[name]] == []
    assert document["unpublished_stages"] == []
    assert document["started_at"] == "2026-01-02T03:04:05+00:00"
    assert document["model_name"] == MODEL


def test_summary_is_the_head_of_the_document(full: TraceLake, document: Document) -> None:
    summary = session_summary(full, SESSION)
    assert {"metrics", "timeline", "top_kernels", "missing", "disk_bytes"} <= summary.keys()
    assert {name: document[name] for name in summary} == summary


def test_every_part_comes_from_the_statement_that_is_shown_for_it(full: TraceLake, document: Document) -> None:
    for name, statement in document["statements"].items():
        result = select_rows(full, statement)
        part = document["moments"][0][name] if name in document["moments"][0] else document.get(name)
        if part is not None:
            assert (name, [dict(zip(result.columns, row, strict=True)) for row in result.rows]) == (name, part)


def test_document_opens_no_other_session(full: TraceLake, tmp_path: Path) -> None:
    shutil.copytree(full.path, tmp_path / "lake")
    lake = TraceLake(tmp_path / "lake")
    other = "20260102T030405Z-ffffffff"
    entries = lake.publish(other, "capture", {"sessions": rows_of("sessions", [{"source_kind": "live"}])})
    (lake.path / entries[0].file).write_bytes(b"torn")
    assert session_document(lake, SESSION)["model_name"] == MODEL


def test_moments_are_the_median_the_slowest_and_the_first_measured_iteration(document: Document) -> None:
    traced = [row for row in document["iterations"] if row["pass"] == "trace" and row["phase"] == "measure"]
    median, slowest, first = document["moments"]
    assert [moment["roles"] for moment in document["moments"]] == [["median"], ["slowest"], ["first measured"]]
    assert median["latency_ns"] == value(document, "latency_p50", "trace")
    assert slowest["latency_ns"] == max(row["latency_ns"] for row in traced)
    assert first["iteration"] == 5
    for moment in document["moments"]:
        assert [len(moment[name]) for name in ("dispatches", "api_calls", "memory_copies")] == [3, 1, 0]


def test_an_iteration_with_several_roles_is_held_once(tmp_path: Path) -> None:
    lake = TraceLake(tmp_path / "lake")
    publish_session(lake, iterations=1)
    (moment,) = session_document(lake, SESSION)["moments"]
    assert moment["roles"] == ["median", "slowest", "first measured"]


def test_what_no_stage_published_is_an_empty_list_and_is_said(bare: TraceLake) -> None:
    document = session_document(bare, SESSION)
    assert [document[name] for name in ("model_operators", "system_samples", "gpu_samples")] == [[], [], []]
    assert [row["stage"] for row in document["unpublished_stages"]] == [
        "completeness",
        "model_graph",
        "roofline",
        "att_enrichment",
        "classification",
        "telemetry",
    ]
    assert document["trace"] is None


def test_time_that_no_operator_explains_is_a_row_of_its_own(document: Document) -> None:
    unattributed = [row for row in document["model_operators"] if row["match"] == "unattributed"]
    assert [(row["node_id"], row["total_ns"]) for row in unattributed] == [(None, 60_000)]
    assert sum(row["total_ns"] or 0 for row in document["model_operators"]) == sum(
        row["total_ns"] for row in document["kernels"]
    )
    unused = [row for row in document["model_operators"] if row["match"] is None]
    assert [(row["name"], row["total_ns"], row["flops"]) for row in unused] == [("node 2", None, 2e9)]


def test_a_figure_that_is_not_finite_is_null(tmp_path: Path) -> None:
    lake = TraceLake(tmp_path / "lake")
    endless = {"metric": "profiler_distortion", "phase": "measure", "value": float("inf"), "unit": "ratio"}
    lake.publish(SESSION, "inference_run", {"session_metrics": rows_of("session_metrics", [endless])})
    assert session_document(lake, SESSION)["metrics"][0]["value"] is None


def test_what_was_measured_is_told_and_nothing_else(document: Document, hollow: TraceLake) -> None:
    said = facts(document)
    assert said.startswith("The median inference takes 4.")
    assert "(95 % interval 4." in said
    assert "Profiling stretches the median by a factor of 1.25." in said
    assert said.endswith("Whether it ran steadily was not checked.")
    assert answer(session_document(hollow, SESSION)) == "Nothing was measured yet."
    judged = {"metric": "steady_state", "pass": "latency", "phase": "measure", "value": 1.0}
    level = {**document, "metrics": [*document["metrics"], judged]}
    assert facts({**level, "time_shares": []}).endswith(" It ran steadily.")
    assert facts(level).endswith(" Its level held, but other work took its CPUs 10.0 % of the time.")


def test_time_between_iterations_is_told_where_it_is_noticeable(document: Document) -> None:
    def said(ratio: float) -> str:
        gaps = {"pass": "latency", "phase": "measure"}
        figures = [{**gaps, "metric": "gap_ratio", "value": ratio}, {**gaps, "metric": "gap_longest", "value": 4.1e7}]
        return facts({**document, "metrics": [*document["metrics"], *figures]})

    told = "2.0 % of the measured time lies between iterations, in no latency (at most 41 ms at once). "
    assert told in said(0.02)
    assert said(0.0199) == facts(document)


def test_numbers_are_in_units_a_person_reads() -> None:
    assert [units.duration(value) for value in (None, 0, 999, 1500, 2.5e6, 12_345_678_900_000)] == [
        None,
        "0 ns",
        "999 ns",
        "1.5 µs",
        "2.5 ms",
        "12,346 s",
    ]
    assert [units.size(value) for value in (None, 5, 2048, 3 << 30)] == [None, "5 B", "2.0 KiB", "3.0 GiB"]
    assert [units.work(value) for value in (None, 12, 2e9)] == [None, "12 flop", "2 Gflop"]
    assert [units.share(value) for value in (None, 0, 0.125)] == [None, "0.0 %", "12.5 %"]


# ---- text ------------------------------------------------------------------------------------------------------------


def test_terminal_tells_the_answer_and_the_kernels(bare: TraceLake, document: Document) -> None:
    told = printed(print_session, session_document(bare, SESSION))
    lines = told.splitlines()
    assert lines[0].startswith(f"{SESSION}  {MODEL}, on CPUExecutionProvider")
    assert lines[1].startswith("The median inference takes ")
    assert "By kernel" in told
    unnamed = {**document["top_kernels"][1], "operator": None}
    told = " ".join(printed(print_session, {**document, "top_kernels": [unnamed]}).split())
    for text in (EVIL, "Where the time went", "By kind of work", answer(document), facts(document)):
        assert text in told


def test_terminal_tells_what_the_answer_rests_on_and_what_was_missing_when_asked(
    bare: TraceLake, document: Document
) -> None:
    told = printed(print_evidence, session_document(bare, SESSION))
    for text in ("nobody <b>counted</b>", "the stage telemetry has published nothing"):
        assert text in told
        assert text not in printed(print_session, session_document(bare, SESSION))
    assert "time that goes to the device's own work 50.0 % time_shares" in " ".join(
        printed(print_evidence, document).split()
    )


def printed(form: Callable[[Document, io.StringIO], None], document: Document) -> str:
    """What a form for terminals prints of a document."""
    out = io.StringIO()
    form(document, out)
    return out.getvalue()


def test_markdown_shows_names_as_text_in_tables_of_equal_width(document: Document) -> None:
    text = render_markdown(document)
    assert "<" not in re.sub(r"\\<", "", text)
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert len(tables) >= 6
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1, table


@pytest.mark.parametrize("which", ["bare", "hollow"])
def test_every_form_can_be_made_of_a_session_with_less(which: str, request: pytest.FixtureRequest) -> None:
    document = session_document(request.getfixturevalue(which), SESSION)
    for form in (print_session, print_evidence):
        assert SESSION in printed(form, document)
    assert SESSION in render_markdown(document)
    # A section without content is not there; what is missing is said in the last one.
    parsed = Page(render_html(document, None))
    shown = {str(attributes["id"]) for tag, attributes in parsed.elements if tag == "section"}
    assert "evidence" in shown
    assert shown < set(SECTIONS)
    assert not shown & {"where", "limits", "instructions", "operators"}
    assert "the stage model_graph has published nothing for this session" in " ".join(parsed.texts["td"])


# ---- the page --------------------------------------------------------------------------------------------------------


class Page(html.parser.HTMLParser):
    """What elements a page has, and the text of those that a test looks into."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._within: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        self._within.append(tag)
        self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        while self._within and self._within.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._within:
            self.texts[self._within[-1]][-1] += data

    def having(self, attribute: str) -> list[str]:
        return [found for _, attributes in self.elements if (found := attributes.get(attribute)) is not None]


@pytest.fixture(scope="module")
def page(document: Document) -> str:
    return render_html(document, b"a trace")


def plotted(page: str) -> Any:
    return json.loads(Page(page).texts["script"][0])


def test_names_from_a_capture_are_text_everywhere(page: str) -> None:
    parsed = Page(page)
    assert len(parsed.texts["script"]) == 3
    assert not any(tag == "img" for tag, _ in parsed.elements)
    assert not any("onerror" in attributes for _, attributes in parsed.elements)
    assert EVIL in parsed.having("title")
    assert f"Conv: {EVIL}" in plotted(page)["moments"][0]["names"]
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
    empty: Document = {name: [] for name in (*names, "moments", "published", "unpublished_stages")}
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
    parsed = Page(render_html({**document, "iterations": [], "metrics": [], "moments": []}, None))
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


def test_what_a_faster_kernel_would_save_is_told_on_page_and_terminal(full: TraceLake) -> None:
    document = path_document(full, SESSION)
    name = next(row["name"] for row in session_document(full, SESSION)["kernels"] if row["kernel_id"] == 0)
    assert [(row["name"], row["saved_ns"]) for row in document["savings"]] == [(name, 25)]
    screen = io.StringIO()
    print_critical_path(document, screen)
    assert re.search(r"What a faster kernel would save.*25 ns +25", screen.getvalue(), re.S)
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
    assert len(render_html(document, None)) < 500_000
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


def test_nested_and_simultaneous_activities_get_levels_of_their_own(document: Document) -> None:
    moment = document["moments"][0]
    together = {**moment["dispatches"][0], "dispatch_id": 10_000, "parent_dispatch_id": None}
    page = render_html({**document, "moments": [{**moment, "dispatches": [*moment["dispatches"], together]}]}, None)
    drawn = plotted(page)["moments"][0]
    kernels = [index for index, kind in enumerate(drawn["kind"]) if kind >= 0]
    spots = {(drawn["lane"][i], drawn["level"][i], drawn["start"][i]) for i in kernels}
    assert len(spots) == len(kernels) == 4
    parent, children = (
        min(kernels, key=lambda i: drawn["level"][i]),
        [i for i in kernels if drawn["took"][i] < 2_000_000],
    )
    assert all(drawn["level"][child] > drawn["level"][parent] for child in children)


def test_queues_of_a_device_are_lanes(document: Document) -> None:
    moment = document["moments"][0]
    queued = [{**row, "queue_id": index, "parent_dispatch_id": None} for index, row in enumerate(moment["dispatches"])]
    copy = {"copy_id": 0, "direction": "host_to_device", "size_bytes": 2048, "device_id": 0, "queue_id": None}
    copied = {**moment, "dispatches": queued, "memory_copies": [{**copy, "stream_id": None, **bounds(moment)}]}
    drawn = plotted(render_html({**document, "moments": [copied]}, None))["moments"][0]
    assert {lane["label"] for lane in drawn["lanes"]} == {
        "Host calls, thread 7",
        "Copies, device 0",
        *(f"Kernels, device 0, queue {index}" for index in range(3)),
    }
    assert "host_to_device, 2.0 KiB" in drawn["names"]


# ---- the command -----------------------------------------------------------------------------------------------------


def run_report(lake: TraceLake, *arguments: str) -> click.testing.Result:
    return click.testing.CliRunner().invoke(report, [*arguments, "--lake", str(lake.path)])


@pytest.fixture
def lake(full: TraceLake, tmp_path: Path) -> TraceLake:
    """A copy of the full lake, to do anything with."""
    shutil.copytree(full.path, tmp_path / "lake")
    return TraceLake(tmp_path / "lake")


def test_report_writes_the_page_into_the_lake_and_says_where(lake: TraceLake) -> None:
    trace = lake.trace(SESSION)
    trace.parent.mkdir(parents=True)
    trace.write_bytes(b"a trace")
    for _ in range(2):
        answer = run_report(lake)
        path = lake.report(SESSION)
        assert (answer.exit_code, answer.output) == (0, f"{path}\n")
        assert path == lake.path / "reports" / f"session_id={SESSION}" / "report.html"
        assert base64.b64encode(b"a trace") in path.read_bytes()
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]
    assert faults(lake) == []


@pytest.mark.parametrize("form", ["terminal", "markdown", "json", "html"])
def test_report_writes_any_form_to_a_file(lake: TraceLake, form: str, tmp_path: Path) -> None:
    file = tmp_path / "deep" / "report"
    answer = run_report(lake, SESSION[:8], "--format", form, "--output", str(file))
    assert (answer.exit_code, answer.output) == (0, f"{file}\n")
    assert SESSION in file.read_text()
    if form != "html":
        printed = run_report(lake, "--format", form)
        assert (printed.exit_code, printed.output) == (0, file.read_text())
    assert not lake.report(SESSION).exists()


def test_report_prints_the_document_as_json(lake: TraceLake) -> None:
    assert json.loads(run_report(lake, "--json").output) == session_document(lake, SESSION)


def test_report_refuses_to_open_what_is_no_page(lake: TraceLake) -> None:
    answer = run_report(lake, "--open", "--format", "json")
    assert answer.exit_code == 2
    assert "--format html" in answer.output


def test_report_opens_the_page_from_this_computer_until_interrupted(
    lake: TraceLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def interrupted(address: str) -> None:
        opened.append(address)
        raise KeyboardInterrupt

    monkeypatch.setattr("webbrowser.open", interrupted)
    answer = run_report(lake, "--open")
    assert answer.exit_code == 0
    assert re.fullmatch(rf"http://127\.0\.0\.1:\d+/reports/session_id={SESSION}/report\.html", opened[0])
    assert f"{opened[0]} — stop with Ctrl-C" in answer.output


@pytest.fixture
def served() -> Iterator[Callable[..., bytes]]:
    """The page and its trace, served; a function that fetches a path."""
    files = {f"/reports/session_id={SESSION}/report.html": b"report.html"}
    files[f"/traces/session_id={SESSION}/trace.pftrace.gz"] = b"trace.pftrace.gz"
    server = loopback_server(files.get)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()

    def fetch(path: str, **headers: str) -> bytes:
        asked = urllib.request.Request(f"http://127.0.0.1:{server.server_port}{path}", headers=headers)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked, timeout=10) as answer:
            content: bytes = answer.read()
            return content

    yield fetch
    server.shutdown()
    thread.join()
    server.server_close()


def test_server_gives_the_page_and_its_trace_and_nothing_else(served: Callable[..., bytes]) -> None:
    page = f"/reports/session_id={SESSION}/report.html"
    assert served(page) == b"report.html"
    assert served(f"/traces/session_id={SESSION}/trace.pftrace.gz") == b"trace.pftrace.gz"
    for path in ("/", "/manifests", f"/reports/session_id={SESSION}/", "/reports/../manifests/x", "//etc/passwd"):
        refused(served, path)
    refused(served, page, Host="elsewhere.example:80")


def refused(fetch: Callable[..., bytes], path: str, **headers: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as error:
        fetch(path, **headers)
    assert error.value.code == 404
    error.value.close()


# ---- the page in a browser -------------------------------------------------------------------------------------------


class Browser:
    """Headless Chromium with one tab, spoken to over its debugging pipe; `events` are what it told since `open`."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        read_by_it, self._write = os.pipe()
        self._read, written_by_it = os.pipe()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
        flags += ["--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe"]
        # Chromium reads from descriptor 3 and writes to 4.
        redirect = f'exec 3<&{read_by_it} 4>&{written_by_it}; exec "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", redirect, "bash", CHROMIUM, *flags, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(read_by_it, written_by_it),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_by_it)
        os.close(written_by_it)
        self._received, self._calls, self._tab = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._tab = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self._tab = ""
        self.call("Browser.close")
        try:
            self._process.wait(timeout=20)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._read)
            os.close(self._write)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._calls += 1
        message: dict[str, Any] = {"id": self._calls, "method": method, "params": parameters}
        if self._tab:
            message["sessionId"] = self._tab
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (heard := self._hear()).get("id") != self._calls:
            self.events.append(heard)
        assert "error" not in heard, (method, heard)
        result: dict[str, Any] = heard["result"]
        return result

    def open(self, address: str, *, width: int = 1280, height: int = 900, theme: str = "light") -> None:
        """Load a page and wait until it is drawn."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        # Without smooth scrolling, which would go on for a while after what caused it.
        features = {"prefers-color-scheme": theme, "prefers-reduced-motion": "reduce"}
        named = [{"name": name, "value": wanted} for name, wanted in features.items()]
        self.call("Emulation.setEmulatedMedia", features=named)
        self.events.clear()
        self.call("Page.navigate", url=address)
        while not self.told("Page.loadEventFired"):
            self.events.append(self._hear())
        self.settle()

    def settle(self) -> None:
        """Wait until what was begun is on the screen."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, script: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def told(self, *methods: str) -> list[dict[str, Any]]:
        return [event["params"] for event in self.events if event.get("method") in methods]

    def _hear(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._read], [], [], 30)
            assert ready, "Chromium said nothing for 30 seconds"
            part = os.read(self._read, 1 << 20)
            assert part, "Chromium ended"
            self._received += part
        message, _, self._received = self._received.partition(b"\0")
        heard: dict[str, Any] = json.loads(message)
        return heard


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on this host: what the page does in a browser is not tested")
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def address(page: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The full session's page as a file."""
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(page)
    return file.as_uri()


COMPLAINTS: Final = (
    "Runtime.exceptionThrown",
    "Log.entryAdded",
    "Runtime.consoleAPICalled",
    "Page.javascriptDialogOpening",
)
#: Every text's colour against what lies behind it, as WCAG measures it; the lowest ratio of each kind of element.
CONTRAST: Final = """(() => {
  const parts = colour => colour.match(/[0-9.]+/g).map(Number);
  const luminance = ([red, green, blue]) => [red, green, blue].map(value => value / 255)
    .map(value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
    .reduce((sum, value, index) => sum + value * [0.2126, 0.7152, 0.0722][index], 0);
  const behind = element => {
    for (; element; element = element.parentElement) {
      const found = parts(getComputedStyle(element).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const worst = {};
  for (const element of document.querySelectorAll('body *')) {
    if (![...element.childNodes].some(node => node.nodeType === 3 && node.data.trim())) continue;
    if (!element.checkVisibility() || element.closest('script, noscript, .skip, :disabled')) continue;
    const style = getComputedStyle(element), own = element.ownerSVGElement ? style.fill : style.color;
    const [one, two] = [luminance(parts(own)), luminance(behind(element))].sort((a, b) => b - a);
    const ratio = (one + 0.05) / (two + 0.05), kind = element.tagName + '.' + (element.getAttribute('class') ?? '');
    worst[kind] = Math.min(worst[kind] ?? 99, ratio);
  }
  return worst;
})()"""


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (1280, "dark"), (360, "light")])
def test_page_asks_for_nothing_and_complains_of_nothing(browser: Browser, address: str, width: int, theme: str) -> None:
    browser.open(address, width=width, theme=theme)
    assert [event["request"]["url"] for event in browser.told("Network.requestWillBeSent")] == [address]
    assert browser.told(*COMPLAINTS) == []
    assert browser.run("[...document.querySelectorAll('section')].map(one => one.id)") == list(SECTIONS)
    assert browser.run("document.querySelectorAll('.plot svg').length") == 4
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert browser.run("document.images.length") == 0


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_is_readable_on_its_background(browser: Browser, address: str, theme: str) -> None:
    browser.open(address, theme=theme)
    browser.run("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    worst = browser.run(CONTRAST)
    assert len(worst) > 15
    assert {kind: ratio for kind, ratio in worst.items() if ratio < 4.5} == {}


def test_page_follows_the_system_until_the_reader_chooses(browser: Browser, address: str) -> None:
    colours = "[document.body, document.querySelector('section')].map(one => getComputedStyle(one).backgroundColor)"
    browser.open(address, theme="dark")
    dark = browser.run(colours)
    browser.open(address, theme="light")
    light = browser.run(colours)
    assert not set(dark) & set(light)
    browser.run("document.querySelector('#theme').click()")
    assert browser.run(colours) == dark
    browser.open(address, theme="light")
    assert browser.run(colours) == dark  # remembered
    browser.run("document.querySelector('#theme').click(); localStorage.clear()")
    assert browser.run(colours) == light


def test_tables_sort_both_ways_with_what_is_unknown_last(browser: Browser, address: str) -> None:
    browser.open(address)
    column = "[...document.querySelectorAll('#operators tbody tr')].map(row => row.children[2].textContent)"
    press = "document.querySelectorAll('#operators th button')[2].click()"
    sort = "document.querySelectorAll('#operators th')[2].getAttribute('aria-sort')"
    orders = []
    for _ in range(2):
        browser.run(press)
        orders.append((browser.run(sort), browser.run(column)))
    assert orders[0] == ("descending", ["180 µs", "120 µs", "60 µs", "–"])
    assert orders[1] == ("ascending", ["60 µs", "120 µs", "180 µs", "–"])


def test_timeline_is_drawn_zoomed_and_told_by_keyboard(browser: Browser, address: str) -> None:
    browser.open(address)
    picture = "document.querySelector('#strip').toDataURL()"
    key = "document.querySelector('#strip').dispatchEvent(new KeyboardEvent('keydown', {{ key: '{}' }}))"
    whole = browser.run(picture)
    seen = [whole]
    for pressed in ("+", "+", "ArrowRight"):
        browser.run(key.format(pressed))
        seen.append(browser.run(picture))
    assert len(set(seen)) == 4
    browser.run(key.format("0"))
    assert browser.run(picture) == whole
    told = []
    for _ in range(4):
        browser.run(key.format("n"))
        told.append(browser.run("document.querySelector('#spoken').textContent"))
    assert any(f"Conv: {EVIL}" in text for text in told)
    assert any("Relu: relu; took " in text and "too short to be timed" in text for text in told)
    browser.run("document.querySelectorAll('[data-moment]')[1].click()")
    assert browser.run("[...document.querySelectorAll('[data-moment]')].map(one => one.ariaPressed)") == [
        "false",
        "true",
        "false",
    ]
    assert browser.run(picture) != whole
    assert browser.told(*COMPLAINTS) == []


def test_timeline_zooms_with_wheel_and_fingers_and_pans_when_dragged(browser: Browser, address: str) -> None:
    browser.open(address)
    browser.run("document.querySelector('#strip').scrollIntoView({ behavior: 'instant', block: 'center' })")
    browser.settle()
    x, y = browser.run(
        "(() => { const box = document.querySelector('#strip').getBoundingClientRect();"
        " return [box.left + box.width / 2, box.top + box.height - 15]; })()"
    )
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

    browser.run("document.querySelector('#strip').scrollIntoView({ behavior: 'instant', block: 'center' })")
    browser.settle()
    before = browser.run("view[0]")
    for kind, place in (("mousePressed", x), ("mouseMoved", x - 60), ("mouseReleased", x - 60)):
        browser.call("Input.dispatchMouseEvent", type=kind, x=place, y=y, button="left", buttons=1, clickCount=1)
    assert browser.run("view[0]") > before
    assert browser.run(span) == pytest.approx(zoomed)
    for kind, apart in (("touchStart", 40), ("touchMove", 120), ("touchEnd", None)):
        fingers = [] if apart is None else [{"x": x - apart, "y": y, "id": 0}, {"x": x + apart, "y": y, "id": 1}]
        browser.call("Input.dispatchTouchEvent", type=kind, touchPoints=fingers)
    assert browser.run(span) < 0.6 * zoomed
    assert browser.told(*COMPLAINTS) == []


def test_plots_tell_their_values_on_hover_and_by_keyboard(browser: Browser, address: str) -> None:
    browser.open(address)
    tip = "document.querySelector('#tip').hidden ? '' : document.querySelector('#tip').innerText"
    assert browser.run(tip) == ""
    for selector, expected in (("#latency svg", "Iteration "), ("#histogram svg", "iterations"), ("#strip", "took ")):
        browser.run(f"document.querySelector('{selector}').scrollIntoView({{ behavior: 'instant', block: 'center' }})")
        browser.settle()
        x, y = browser.run(
            f"(() => {{ const box = document.querySelector('{selector}').getBoundingClientRect();"
            " return [box.left + box.width * 0.4, box.top + box.height * 0.72]; })()"
        )
        browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        assert expected in browser.run(tip), selector
    browser.open(address)
    step = "document.querySelector('#latency svg').dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight' }))"
    browser.run("document.querySelector('#latency svg').focus()")
    browser.settle()
    browser.run(step)
    assert "latency 4.008 ms (4,007,919 ns)" in browser.run(tip)
    assert "Host CPUs busy" in browser.run(tip)


def test_from_a_file_the_way_to_perfetto_is_explained_and_nothing_is_contacted(browser: Browser, address: str) -> None:
    browser.open(address)
    browser.run("Object.defineProperty(navigator, 'onLine', { get: () => true }); window.open = () => { throw 1; };")
    browser.run("document.querySelector('#perfetto').click()")
    note = browser.run("document.querySelector('#perfetto-note').textContent")
    assert f"aaco report {SESSION} --open" in note
    assert "drag it onto ui.perfetto.dev" in note
    assert browser.run("document.querySelector('#perfetto-note a').download") == "trace.pftrace.gz"
    assert len(browser.told("Network.requestWillBeSent")) == 1


def test_offline_the_way_to_perfetto_says_so(browser: Browser, address: str) -> None:
    browser.open(address)
    browser.run("Object.defineProperty(navigator, 'onLine', { get: () => false })")
    browser.run("document.querySelector('#perfetto').click()")
    assert "This computer is offline" in browser.run("document.querySelector('#perfetto-note').textContent")


@pytest.mark.parametrize("embedded", [True, False])
def test_a_served_page_hands_its_trace_to_perfetto(
    browser: Browser, document: Document, tmp_path: Path, embedded: bool
) -> None:
    content = b"a trace" if embedded else b"x" * (EMBEDDED_TRACE_BYTES + 1)
    page, trace = tmp_path / "report.html", tmp_path / "trace.pftrace.gz"
    page.write_text(render_html(document, content))
    address = f"/reports/session_id={SESSION}/report.html"
    server = loopback_server({address: page.read_bytes(), f"/traces/session_id={SESSION}/{trace.name}": content}.get)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        browser.open(f"http://127.0.0.1:{server.server_port}{address}")
        requests = len(browser.told("Network.requestWillBeSent"))
        assert requests == 1
        # A window that answers as Perfetto does: PONG to a PING, and it keeps what it is handed.
        handed = browser.run(
            """new Promise(done => {
              Object.defineProperty(navigator, 'onLine', { get: () => true });
              const frame = document.createElement('iframe');
              document.body.append(frame);
              const ui = frame.contentWindow;
              let pings = 0;
              ui.postMessage = (message, origin) => {
                if (message === 'PING') {
                  if (++pings === 2) dispatchEvent(new MessageEvent('message', { data: 'PONG', origin, source: ui }));
                } else {
                  const { fileName, title, buffer } = message.perfetto;
                  done([origin, fileName, title, buffer.byteLength]);
                }
              };
              window.open = address => address === 'https://ui.perfetto.dev' ? ui : null;
              document.querySelector('#perfetto').click();
            })"""
        )
        assert handed == ["https://ui.perfetto.dev", "trace.pftrace.gz", f"{MODEL} {SESSION}", len(content)]
        assert browser.run("document.querySelector('#perfetto-note').textContent") == "Perfetto has the trace."
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
