"""Advice names the tool that made the recording: another one only where it says that it takes another one."""

import re
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Final, get_args

import pytest

from aaco_pipeline.analysis.answer.answer import INPUTS, sharpened
from aaco_pipeline.analysis.answer.window import COLD_START, INCOMPLETE
from aaco_pipeline.analysis.completeness.examination import examined
from aaco_pipeline.analysis.completeness.findings import ANOTHER, Tool, in_words, tool_of
from aaco_pipeline.analysis.timeline.activities import RECORDED_FROM, Recorded, everything
from aaco_pipeline.capture.discovery import discover_runs
from tests.analysis.answer.made_up import rows
from tests.analysis.completeness.recordings import Tables, frame, whole
from tests.analysis.completeness.test_twenty_losses import LOSSES
from tests.formats.examples import EXAMPLES

#: What in a text is a tool's own, and no other's.
OWN: Final[dict[Tool, str]] = {
    "rocprofv3": r"rocprofv3|--att|%rank%",
    "torch.profiler": r"torch\.profiler|ProfilerActivity|KINETO_CONFIG",
    "nsys": r"\bnsys\b|--cuda-graph-trace|--cuda-flush|cudaProfilerStart",
    "rocprof": r"\brocprof\b(?![-v])|roctracer",
    "rpd": r"runTracer|rpdTracer",
    "rocprof-compute": r"rocprof-compute",
    "onnxruntime": r"SessionOptions",
    "aaco": r"aaco run",
    "aaco record": r"aaco record",
}
FORMATS: Final[dict[str | None, Tool]] = {
    "rocpd": "rocprofv3",
    "rocprofv3-json": "rocprofv3",
    "rocprofv3-csv": "rocprofv3",
    "rocprofv3-thread-trace": "rocprofv3",
    "kineto": "torch.profiler",
    "kineto+gpu-series": "torch.profiler",
    "amdgpu-gpu-metrics+rocpd": "rocprofv3",
    "nsys": "nsys",
    "rocprof-csv": "rocprof",
    "rocprof-database": "rocprof",
    "rpd": "rpd",
    "rocprof-compute": "rocprof-compute",
    "onnxruntime-profile": "onnxruntime",
    "cupti": "aaco record",
    "ncu-csv": "aaco record",
    "aaco-program": "aaco record",
    None: "aaco",
}


#: A format of each tool: advice depends on the tool alone.
FORMAT_OF: Final = {tool: form for form, tool in FORMATS.items()}


def session(form: str | None) -> dict[str, Any]:
    return {"source_kind": "live" if form is None else "capture", "source_format": form}


def foreign(text: str, tool: Tool) -> list[str]:
    """The tools whose commands a text names, other than `tool`, where it does not say that it means another one."""
    own_advice = re.sub(rf"{ANOTHER}.*", "", text)
    return [other for other, own in OWN.items() if other != tool and re.search(own, own_advice)]


@pytest.mark.parametrize("form", FORMATS)
def test_the_format_tells_the_tool(form: str | None) -> None:
    assert tool_of(frame("sessions", [session(form)])) == FORMATS[form]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_format_of_every_reader_is_of_a_tool_or_of_sensors(name: str, tmp_path: Path) -> None:
    EXAMPLES[name](tmp_path)
    read = {part.format for run in discover_runs(tmp_path).runs for part in run.parts}
    assert read
    assert read <= {one for form in FORMATS if form for one in form.split("+")}


def test_every_tool_has_a_format() -> None:
    assert set(FORMATS.values()) == set(get_args(Tool)) == set(OWN)


@cache
def lost(name: str) -> tuple[Tables, Recorded]:
    """A recording with a loss, and what ran in it: of whatever format it is, that is the same."""
    tables = whole(LOSSES[name].tables())
    return tables, everything(tables)


@pytest.mark.nightly
@pytest.mark.parametrize("form", FORMAT_OF.values())
def test_no_finding_advises_another_tool(form: str | None) -> None:
    assert "sessions" not in RECORDED_FROM
    for name, loss in LOSSES.items():
        tables, run = lost(name)
        of_form = {**tables, "sessions": frame("sessions", [{**session(form), "provider": None}])}
        for one in examined(of_form, run, loss.evidence).findings.iter_rows(named=True):
            # Thread traces are rocprofv3's, whatever is recorded beside them.
            if not one["finding"].startswith("thread_trace"):
                assert foreign(one["mend"], FORMATS[form]) == [], (name, one["mend"])
            assert "{" not in one["mend"].replace("{rank}", "").replace("{RANK}", "")


@pytest.mark.parametrize("form", FORMAT_OF.values())
def test_nothing_that_sharpens_an_answer_is_another_tools(form: str | None) -> None:
    needs = set()
    for name, vendor, timed, steady in product(
        (COLD_START, INCOMPLETE, "device"), ("AMD", "NVIDIA"), (False, True), (False, True)
    ):
        given: dict[str, list[dict[str, Any]]] = {
            "sessions": [session(form)],
            "devices": [{"device_id": 0, "vendor": vendor}],
            "completeness_findings": [{"finding": "ranks_missing", "mend": in_words("{each_rank}", FORMATS[form])}],
            "dispatches": [{"dispatch_id": 0, "start_ns": 0 if timed else None, "end_ns": 9 if timed else None}],
        }
        tables = {table: rows(table, given.get(table, [])) for table in INPUTS}
        for what, command in sharpened(name, "gemm", tables, steady=steady):
            assert foreign(command, FORMATS[form]) == [], (what, command)
            needs.add(what)
    assert {"the steady state", "when the kernels ran", "which unit limits the kernels"} <= needs


@pytest.mark.parametrize("vendor", ["AMD", "NVIDIA"])
def test_the_recorder_records_the_limits_of_kernels_on_both_makers_gpus(vendor: str) -> None:
    recorded = {"source_kind": "live", "source_format": "aaco-program", "workload_kind": "program"}
    given: dict[str, list[dict[str, Any]]] = {"sessions": [recorded], "devices": [{"device_id": 0, "vendor": vendor}]}
    tables = {table: rows(table, given.get(table, [])) for table in INPUTS}
    advice = dict(sharpened("device", "gemm", tables, steady=True))
    assert advice["which unit limits the kernels"] == "aaco record --counters basic,memory,compute -- COMMAND"
    tables["counters"] = rows("counters", [{"dispatch_id": 0, "counter": "SQ_WAVES", "value": 1.0}])
    assert "which unit limits the kernels" not in dict(sharpened("device", "gemm", tables, steady=True))


def test_a_need_without_a_command_is_a_fault() -> None:
    with pytest.raises(KeyError):
        in_words("record again: {something}", "nsys")


def test_a_command_of_another_tool_is_detected() -> None:
    assert foreign("rocprofv3 -- COMMAND", "torch.profiler") == ["rocprofv3"]
    assert foreign(f"{ANOTHER}rocprofv3 -- COMMAND", "torch.profiler") == []
    assert foreign("rocprof --stats COMMAND", "rocprofv3") == ["rocprof"]
