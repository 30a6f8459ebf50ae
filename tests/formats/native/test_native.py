"""The raw capture of an inference session: a small one by hand, its clocks and tables computed by hand."""

import copy
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats import native as inference_capture
from aaco_pipeline.formats.native import CLOCK_STEP_NS, InferenceCapture
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.evidence import Evidence, evidence_frame
from aaco_pipeline.lake.validation import conform

Documents = dict[str, dict[str, Any]]

#: 2024-02-29 12:00:00.25 UTC
STARTED_NS = 1_709_208_000_250_000_000
CPU = "CPUExecutionProvider"


def block(iterations: int, start: int, end: int, cpu_time: int, run_delay: int) -> dict[str, int]:
    names = ("iterations", "start_monotonic_ns", "end_monotonic_ns", "cpu_time_ns", "run_delay_ns")
    return dict(zip(names, (iterations, start, end, cpu_time, run_delay), strict=True))


def clocks(monotonic: int, realtime: int, uncertainty: int) -> dict[str, int]:
    return {"monotonic_ns": monotonic, "realtime_ns": STARTED_NS + realtime, "uncertainty_ns": uncertainty}


BOTH_PASSES: dict[str, Any] = {
    "iterations": 2,
    "iterations_asked": 2,
    "placement": {"asked": CPU, "active": [CPU], "node_counts": {CPU: 3}, "node_count": 3},
    "inputs": {"x": {"shape": [4, 3], "dtype": "float32"}, "n": {"shape": [4], "dtype": "int64"}},
    "io_binding": "inputs and outputs bound in host memory",
    "versions": {"python": "3.11.0", "onnxruntime": "1.31.1", "numpy": "2.0.0"},
}
DOCUMENTS: Documents = {
    "capture": {
        "format": "aaco-inference",
        "format_version": 2,
        "writer": "aaco_pipeline 0.1.0",
        "launch": {
            **{"backend": "cpu", "precision": "model", "batch_size": None, "campaign_id": None},
            **{"arm": None, "block": None, "seed": 7, "allow_fallback": False},
        },
        "model": {"name": "small", "weights": "random", "sha256": "ab" * 32},
        "provider": CPU,
        "provider_options": {},
        "batch_size": None,
        "threads": 2,
        "measurement_slot": {"file": "/run/lock/aaco-measurement.lock", "container": None},
    },
    "host": {
        "facts": [
            {"category": "host", "key": "name", "value": "alpha"},
            {"category": "cpu", "key": "name", "value": "not the host's"},
        ],
        "devices": [
            {
                **{"device_id": 0, "vendor": None, "arch": "x86_64", "product": "Some CPU"},
                **{"compute_units": 2, "memory_bytes": 1 << 34, "handle": "cpu"},
            }
        ],
    },
    "latency": {
        **BOTH_PASSES,
        "pass": "latency",
        "process_id": 4001,
        "warmup": 1,
        "start_monotonic_ns": [5_000_100, 5_000_300, 5_000_700],
        "end_monotonic_ns": [5_000_250, 5_000_640, 5_000_790],
        "blocks": [block(1, 5_000_050, 5_000_270, 190, 5), block(2, 5_000_270, 5_000_800, 480, 12)],
        "clocks_before": clocks(5_000_000, 0, 40),
        "clocks_after": clocks(5_001_000, 1_000, 50),
        "profile": None,
    },
    "trace": {
        **BOTH_PASSES,
        "pass": "trace",
        "process_id": 4002,
        "warmup": 0,
        "start_monotonic_ns": [9_000_500, 9_000_900],
        "end_monotonic_ns": [9_000_880, 9_001_200],
        "blocks": [block(2, 9_000_490, 9_001_210, 700, 0)],
        # Since the first pass the monotonic clock went on by 4,000,000 ns, the wall clock by 20 ns more.
        "clocks_before": clocks(9_000_000, 4_000_020, 30),
        "clocks_after": clocks(9_002_000, 4_001_990, 60),
        "profile": {"file": "onnxruntime_profile.json", "start_realtime_ns": STARTED_NS + 4_000_220},
    },
}

Change = Callable[[Documents], None]


def write(folder: Path, change: Change | None = None) -> Path:
    """A whole capture in `folder`, changed as told."""
    documents = copy.deepcopy(DOCUMENTS)
    if change is not None:
        change(documents)
    for name, document in documents.items():
        (folder / f"{name}.json").write_text(json.dumps(document))
    return folder


@pytest.fixture
def capture(tmp_path: Path) -> InferenceCapture:
    return inference_capture.read(write(tmp_path))


def changed(folder: Path, change: Change) -> InferenceCapture:
    return inference_capture.read(write(folder, change))


def items(capture: InferenceCapture) -> dict[str, Evidence]:
    found = {item.item: item for item in capture.inference_evidence()}
    evidence_frame("inference_run", found.values())  # an item that is not present must have a reason
    return found


def setter(*path: str, value: Any) -> Change:
    def change(documents: Documents) -> None:
        reduce(getitem, path[:-1], documents)[path[-1]] = value

    return change


def remover(*path: str) -> Change:
    def change(documents: Documents) -> None:
        del reduce(getitem, path[:-1], documents)[path[-1]]

    return change


def before(documents: Documents) -> None:
    """As the loop of version 1 left it, which read counters around each iteration."""
    documents["capture"]["format_version"] = 1
    del documents["capture"]["measurement_slot"]
    for name, cpu, delay in (("latency", [140, 330, 80], [0, 12, 3]), ("trace", [300, 250], [5, 6])):
        del documents[name]["blocks"]
        documents[name] |= {"cpu_time_ns": cpu, "run_delay_ns": delay}


def test_the_axis_starts_with_the_unprofiled_pass_and_each_pass_with_its_warm_up(capture: InferenceCapture) -> None:
    assert capture.axis_zero_monotonic_ns == 5_000_000
    rows = capture.iterations().select("pass", "iteration", "phase", "start_ns", "end_ns", "latency_ns").rows()
    assert rows == [
        ("latency", 0, "warmup", 100, 250, 150),
        ("latency", 1, "measure", 300, 640, 340),
        ("latency", 2, "measure", 700, 790, 90),
        ("trace", 0, "measure", 4_000_500, 4_000_880, 380),
        ("trace", 1, "measure", 4_000_900, 4_001_200, 300),
    ]


def test_what_the_process_used_is_known_of_blocks_and_not_of_single_iterations(capture: InferenceCapture) -> None:
    assert capture.iterations().select("cpu_time_ns", "run_delay_ns").null_count().row(0) == (5, 5)
    assert capture.iteration_blocks().rows() == [
        ("latency", 0, "warmup", 0, 1, 50, 270, 190, 5),
        ("latency", 1, "measure", 1, 2, 270, 800, 480, 12),
        ("trace", 0, "measure", 0, 2, 4_000_490, 4_001_210, 700, 0),
    ]


def test_a_capture_of_the_loop_of_before_keeps_what_it_read_of_each_iteration_and_is_said_to(tmp_path: Path) -> None:
    capture = changed(tmp_path, before)
    assert capture.iteration_blocks().is_empty()
    item = items(capture)["measurement loop"]
    assert item.status == "partial"
    assert "earlier loop, which read CPU time around each iteration" in str(item.reason)
    read = capture.iterations().select("cpu_time_ns", "run_delay_ns").rows()
    assert read == [(140, 0), (330, 12), (80, 3), (300, 5), (250, 6)]


def test_the_profile_begins_where_the_wall_clock_of_its_own_pass_puts_it(capture: InferenceCapture) -> None:
    # 200 ns of wall clock after the readings of the traced pass, which are 4,000,000 ns from the axis' zero
    assert capture.profile_axis_start_ns() == 4_000_200


def test_every_clock_maps_onto_the_axis_by_its_offset(capture: InferenceCapture) -> None:
    rows = {row["domain"]: row for row in capture.clock_domains().iter_rows(named=True)}
    assert set(rows) == {"monotonic", "realtime", "onnxruntime_profile"}
    assert (rows["monotonic"]["offset_ns"], rows["monotonic"]["uncertainty_ns"]) == (-5_000_000, 0)
    assert (rows["realtime"]["offset_ns"], rows["realtime"]["uncertainty_ns"]) == (-STARTED_NS, 40)
    profile = rows["onnxruntime_profile"]
    assert profile["offset_ns"] == 4_000_200
    # half the bracket (30) + how far the wall clock drifted in the pass (-30) + one tick of the profile
    assert profile["uncertainty_ns"] == 30 + 30 + 1_000


def test_without_a_profile_there_is_no_clock_of_one(tmp_path: Path) -> None:
    capture = changed(tmp_path, setter("trace", "profile", value=None))
    assert capture.clock_domains()["domain"].to_list() == ["monotonic", "realtime"]


def test_drift_is_the_wall_clock_against_the_monotonic_one(capture: InferenceCapture) -> None:
    assert capture.clock_drift_ns("latency") == 0
    assert capture.clock_drift_ns("trace") == -30


def test_the_session_row_says_what_was_run(capture: InferenceCapture) -> None:
    row = capture.sessions("print", "digest").row(0, named=True)
    assert {name: value for name, value in row.items() if value is not None} == {
        "source_kind": "live",
        "workload_kind": "model",
        "source_format": "aaco-inference",
        "workload": "inference",
        "model_name": "small",
        "model_sha256": "ab" * 32,
        "backend": "cpu",
        "provider": CPU,
        "precision": "float32",
        "batch_size": 4,
        "started_at": datetime(2024, 2, 29, 12, 0, 0, 250_000, tzinfo=UTC),
        "host": "alpha",
        "fingerprint": "print",
        "capture_digest": "digest",
        "threads": 2,
        "seed": 7,
        "allow_fallback": False,
    }


def test_a_precision_that_was_asked_for_is_the_sessions(tmp_path: Path) -> None:
    capture = changed(tmp_path, setter("capture", "launch", "precision", value="fp16"))
    assert capture.sessions("", "")["precision"].to_list() == ["fp16"]


@pytest.mark.parametrize(
    ("dtypes", "precision"),
    [
        (["float16", "int64"], "float16"),
        (["bfloat16", "bfloat16"], "bfloat16"),
        (["float32", "float16"], None),
        (["int64", "bool"], None),
    ],
)
def test_the_precision_of_a_model_is_the_one_float_type_of_its_inputs(
    tmp_path: Path, dtypes: list[str], precision: str | None
) -> None:
    inputs = {f"input_{i}": {"shape": [1], "dtype": dtype} for i, dtype in enumerate(dtypes)}
    capture = changed(tmp_path, setter("latency", "inputs", value=inputs))
    assert capture.sessions("", "")["precision"].to_list() == [precision]


@pytest.mark.parametrize(("shapes", "batch"), [([[8, 3], [8]], 8), ([[8, 3], []], 8), ([[8], [2]], 5), ([[]], 5)])
def test_the_batch_size_is_what_all_inputs_begin_with_else_what_was_asked(
    tmp_path: Path, shapes: list[list[int]], batch: int
) -> None:
    def change(documents: Documents) -> None:
        documents["capture"]["launch"]["batch_size"] = 5
        documents["latency"]["inputs"] = {
            f"input_{i}": {"shape": shape, "dtype": "float32"} for i, shape in enumerate(shapes)
        }

    assert changed(tmp_path, change).sessions("", "")["batch_size"].to_list() == [batch]


def test_each_pass_is_a_process_of_its_own(capture: InferenceCapture) -> None:
    assert capture.processes().select("process_id", "host", "pid", "command").rows() == [
        (0, "alpha", 4001, "aaco latency pass of small"),
        (1, "alpha", 4002, "aaco trace pass of small"),
    ]


def test_device_zero_is_the_cpu(capture: InferenceCapture) -> None:
    assert capture.devices().select("device_id", "arch", "product", "memory_bytes").rows() == [
        (0, "x86_64", "Some CPU", 1 << 34)
    ]


def test_a_device_without_its_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="its devices lack their device_id; the file is damaged"):
        changed(tmp_path, setter("host", "devices", value=[{"device_id": None, "arch": "x86_64"}])).devices()


def test_a_host_without_devices_has_no_device_rows(tmp_path: Path) -> None:
    assert changed(tmp_path, setter("host", "devices", value=[])).devices().is_empty()


def test_a_fact_is_found_by_category_and_key_and_else_unknown(capture: InferenceCapture) -> None:
    assert capture.fact("host", "name") == "alpha"
    assert capture.fact("cpu", "name") == "not the host's"
    assert capture.fact("host", "colour") is None


def test_a_whole_capture_lacks_nothing(capture: InferenceCapture) -> None:
    found = items(capture)
    assert {name: item.status for name, item in found.items()} == {
        "latency pass": "present",
        "CPU time and run-queue delay of the latency pass": "present",
        "trace pass": "present",
        "CPU time and run-queue delay of the trace pass": "present",
        "execution provider": "present",
        "io binding": "present",
        "measurement slot": "present",
    }
    assert (found["latency pass"].rows, found["latency pass"].source) == (3, "latency.json")
    assert (found["trace pass"].rows, found["trace pass"].source) == (2, "trace.json")


def test_a_pass_with_fewer_iterations_than_asked_is_told(tmp_path: Path) -> None:
    found = items(changed(tmp_path, setter("trace", "iterations_asked", value=50)))
    assert found["trace pass"].status == "partial"
    assert "2 of 50 iterations" in str(found["trace pass"].reason)
    assert found["latency pass"].status == "present"


@pytest.mark.parametrize(
    ("delays", "status", "count"), [([None, 12, None], "partial", 2), ([None, None, None], "absent", 3)]
)
def test_a_run_queue_delay_nobody_could_read_is_told_and_null(
    tmp_path: Path, delays: list[int | None], status: str, count: int
) -> None:
    def unread(documents: Documents) -> None:
        before(documents)
        documents["latency"]["run_delay_ns"] = delays

    capture = changed(tmp_path, unread)
    found = items(capture)
    item = found["run-queue delay of the latency pass"]
    assert item.status == status
    assert f"{count} iterations have none" in str(item.reason)
    assert "run-queue delay of the trace pass" not in found
    assert capture.iterations().filter(pl.col("pass") == "latency")["run_delay_ns"].to_list() == delays
    assert capture.iterations().schema["run_delay_ns"] == pl.Int64


@pytest.mark.parametrize(("unread", "status"), [((0,), "partial"), ((0, 1), "absent")])
def test_a_block_whose_run_queue_delay_nobody_could_read_is_told_and_null(
    tmp_path: Path, unread: tuple[int, ...], status: str
) -> None:
    def change(documents: Documents) -> None:
        for number in unread:
            documents["latency"]["blocks"][number]["run_delay_ns"] = None

    capture = changed(tmp_path, change)
    item = items(capture)["run-queue delay of the latency pass"]
    assert item.status == status
    assert f"{len(unread)} blocks have none" in str(item.reason)
    assert capture.iteration_blocks()["run_delay_ns"].null_count() == len(unread)


@pytest.mark.parametrize(
    ("number", "key", "value"),
    [
        (0, "iterations", 0),  # would hold nothing
        (0, "iterations", 2),  # would reach over the end of the warm-up
        (1, "iterations", 1),  # would leave an iteration out
        (1, "iterations", 3),  # would hold one that never was
        (0, "start_monotonic_ns", 5_000_101),  # begins within its first iteration
        (1, "end_monotonic_ns", 5_000_789),  # ends within its last one
        (1, "start_monotonic_ns", 5_000_280),  # leaves time out after the block before
        (1, "cpu_time_ns", None),
    ],
)
def test_blocks_that_contradict_the_iterations_are_refused(tmp_path: Path, number: int, key: str, value: Any) -> None:
    def change(documents: Documents) -> None:
        documents["latency"]["blocks"][number][key] = value

    write(tmp_path, change)
    refused(tmp_path, "latency.json", "damaged")


def test_a_container_whose_lock_others_may_not_share_is_told(tmp_path: Path) -> None:
    item = items(changed(tmp_path, setter("capture", "measurement_slot", "container", value="docker")))[
        "measurement slot"
    ]
    assert (item.status, item.source) == ("present", "/run/lock/aaco-measurement.lock")
    assert item.reason == (
        "in a container (docker): measurements in other containers of this host are not kept apart, "
        "unless they share its /run/lock"
    )


@pytest.mark.parametrize("direction", [1, -1])
def test_a_wall_clock_that_was_set_during_a_pass_is_told(tmp_path: Path, direction: int) -> None:
    def step(by: int) -> Change:
        return setter("latency", "clocks_after", "realtime_ns", value=STARTED_NS + 1_000 + direction * by)

    assert "wall clock of the latency pass" not in items(changed(tmp_path, step(CLOCK_STEP_NS)))
    found = items(changed(tmp_path, step(CLOCK_STEP_NS + 1)))
    item = found["wall clock of the latency pass"]
    assert item.status == "partial"
    assert f"{direction * (CLOCK_STEP_NS + 1)} ns" in str(item.reason)
    assert "wall clock of the trace pass" not in found


def test_nodes_on_another_provider_are_told(tmp_path: Path) -> None:
    def change(documents: Documents) -> None:
        documents["capture"]["provider"] = "MIGraphXExecutionProvider"
        documents["latency"]["placement"] = {
            "active": ["MIGraphXExecutionProvider", CPU],
            "node_counts": {"MIGraphXExecutionProvider": 5, CPU: 3},
        }

    item = items(changed(tmp_path, change))["execution provider"]
    assert (item.status, item.source) == ("partial", "MIGraphXExecutionProvider")
    assert f"3 nodes on {CPU}" in str(item.reason)
    assert "5 nodes" not in str(item.reason)


def test_a_provider_that_could_not_be_created_is_told_even_without_counts(tmp_path: Path) -> None:
    def change(documents: Documents) -> None:
        documents["capture"]["provider"] = "MIGraphXExecutionProvider"
        documents["latency"]["placement"] = {"active": [CPU], "node_counts": {}}

    assert items(changed(tmp_path, change))["execution provider"].status == "partial"


def test_the_tables_fit_the_lake(capture: InferenceCapture) -> None:
    for name, frame in {
        "sessions": capture.sessions("print", "digest"),
        "processes": capture.processes(),
        "devices": capture.devices(),
        "iterations": capture.iterations(),
        "iteration_blocks": capture.iteration_blocks(),
        "clock_domains": capture.clock_domains(),
    }.items():
        assert conform(contract(name), frame, "session").height == frame.height


def test_a_capture_folder_is_recognized_by_its_own_document(tmp_path: Path) -> None:
    recognition = inference_capture.probe(write(tmp_path))
    assert recognition is not None
    assert recognition.format == "aaco-inference"
    assert "aaco_pipeline 0.1.0" in recognition.detail


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"null", b"7", b"{", b"\xff\xfe", b'{"format": "other"}', b'{"format": null}', b"\x1f\x8b"]
)
def test_what_is_no_capture_folder_is_not_recognized(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "capture.json").write_bytes(content)
    assert inference_capture.probe(tmp_path) is None


def test_a_path_without_a_capture_is_not_recognized(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "file", tmp_path / "missing"):
        assert inference_capture.probe(path) is None


def refused(folder: Path, file: str, *mentions: str) -> None:
    with pytest.raises(CaptureError, match=re.escape(str(folder / file))) as caught:
        inference_capture.read(folder)
    for mention in mentions:
        assert mention in str(caught.value)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_missing_document_is_named(tmp_path: Path, name: str) -> None:
    (write(tmp_path) / f"{name}.json").unlink()
    refused(tmp_path, f"{name}.json")


@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b"null", b'"text"'])
def test_a_damaged_document_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    (write(tmp_path) / f"{name}.json").write_bytes(content)
    refused(tmp_path, f"{name}.json")


USED: tuple[tuple[str, ...], ...] = (
    *(("capture", key) for key in ("format", "format_version", "launch", "model", "provider", "threads")),
    *(("host", key) for key in ("facts", "devices")),
    *(
        (name, key)
        for name in ("latency", "trace")
        for key in (
            *("start_monotonic_ns", "end_monotonic_ns", "blocks", "warmup", "iterations"),
            *("clocks_before", "clocks_after", "placement", "inputs", "profile", "process_id"),
        )
    ),
    *(("capture", "launch", "backend"), ("capture", "launch", "seed"), ("capture", "model", "name")),
    *(("latency", "iterations_asked"), ("latency", "io_binding"), ("latency", "clocks_before", "monotonic_ns")),
    *(("latency", "placement", "node_counts"), ("trace", "clocks_after", "realtime_ns")),
    ("trace", "profile", "start_realtime_ns"),
)


@pytest.mark.parametrize("path", USED, ids=".".join)
def test_a_missing_key_is_named_with_its_file(tmp_path: Path, path: tuple[str, ...]) -> None:
    write(tmp_path, remover(*path))
    refused(tmp_path, f"{path[0]}.json", path[-1])


@pytest.mark.parametrize("key", ["start_monotonic_ns", "end_monotonic_ns", "cpu_time_ns", "run_delay_ns"])
def test_readings_that_lack_an_iteration_are_refused(tmp_path: Path, key: str) -> None:
    def change(documents: Documents) -> None:
        before(documents)
        documents["trace"][key] = [1]

    write(tmp_path, change)
    refused(tmp_path, "trace.json", "damaged")


@pytest.mark.parametrize("key", ["warmup", "iterations"])
def test_counts_that_contradict_the_readings_are_refused(tmp_path: Path, key: str) -> None:
    write(tmp_path, setter("latency", key, value=7))
    refused(tmp_path, "latency.json", "damaged")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("latency", "start_monotonic_ns"), 5),
        (("latency", "warmup"), "one"),
        (("latency", "start_monotonic_ns"), [1, None, 3]),
        (("latency", "blocks"), ["a", "b", "c"]),
        (("latency", "clocks_before"), 3),
        (("capture", "launch"), []),
        (("capture", "format_version"), "1"),
        (("host", "facts"), 4),
        (("latency", "process_id"), 2**61),
        (("latency", "clocks_before", "realtime_ns"), -1),
        (("capture", "launch", "block"), 2**31),
        (("latency", "output_tokens"), 0),
        (("latency", "inputs"), {"x": {"shape": [2**40], "dtype": "float32"}}),
    ],
    ids=lambda value: ".".join(value) if isinstance(value, tuple) else repr(value),
)
def test_a_value_of_the_wrong_kind_is_refused_by_file(tmp_path: Path, path: tuple[str, ...], value: Any) -> None:
    write(tmp_path, setter(*path, value=value))
    refused(tmp_path, f"{path[0]}.json")


@pytest.mark.parametrize("device", [{"device_id": 0, "colour": "red"}, {"device_id": "x"}, {"device_id": 2**40}])
def test_devices_that_fit_no_column_are_refused_by_file(tmp_path: Path, device: dict[str, Any]) -> None:
    with pytest.raises(CaptureError, match=r"host\.json: its devices do not fit"):
        changed(tmp_path, setter("host", "devices", value=[device])).devices()


@pytest.mark.parametrize(
    ("key", "value", "mentions"),
    [
        ("format_version", 3, ["aaco-inference 3", "up to 2", "upgrade aaco_pipeline"]),
        ("format", "other", ["other"]),
    ],
)
def test_another_format_or_a_newer_writers_is_refused(
    tmp_path: Path, key: str, value: Any, mentions: list[str]
) -> None:
    write(tmp_path, setter("capture", key, value=value))
    refused(tmp_path, "capture.json", *mentions)
