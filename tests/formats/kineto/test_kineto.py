"""Kineto traces: real ones to the nanosecond, and small made ones for what real ones do not hold."""

import gzip
import json
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats import kineto
from aaco_pipeline.formats.capture_tables import CaptureTables, Limits
from tests.formats import readings
from tests.formats.readings import read_or_refused, reason
from tests.places import SHARED

needs_captures = pytest.mark.skipif(not (SHARED / "kineto").is_dir(), reason=f"no real captures in {SHARED}")
KEY = "20260101T000000Z-00000000"


def real_traces() -> list[tuple[str, Path]]:
    folders = (("kineto", SHARED / "kineto"), ("gpu_sessions", SHARED / "gpu_sessions" / "traces"))
    return [
        (name, traces / f"{name}.json.gz")
        for folder, traces in folders
        if (SHARED / folder / "exact_timeline.json").is_file()
        for name in json.loads((SHARED / folder / "exact_timeline.json").read_text())
    ]


def exact(name: str) -> dict[str, dict[str, int]]:
    for folder in ("kineto", "gpu_sessions"):
        known: dict[str, dict[str, dict[str, int]]] = json.loads((SHARED / folder / "exact_timeline.json").read_text())
        if name in known:
            return known[name]
    raise KeyError(name)


def checked(reading: CaptureTables) -> CaptureTables:
    """The reading, after every table kept its contract and every event was accounted for."""
    readings.checked(reading)
    tables = reading.tables
    rows = reading.details["source_rows"].filter(~pl.col("item").str.contains("fwdbwd")).get_column("rows_out").sum()
    assert rows == sum(
        tables[t].height for t in ("dispatches", "api_calls", "memory_copies", "markers", "synchronizations")
    )
    return reading


def timeline(reading: CaptureTables) -> dict[str, dict[str, int]]:
    """Window, busy, idle and sum per device handle, over kernels and copies."""
    columns = ("device_id", "start_ns", "end_ns")
    activities = pl.concat([reading.tables[t].select(columns) for t in ("dispatches", "memory_copies")])
    activities = activities.join(reading.tables["devices"].select("device_id", "handle"), on="device_id")
    result = {}
    for (handle,), frame in activities.group_by("handle"):
        rows = sorted(frame.select("start_ns", "end_ns").rows())
        busy, until = 0, rows[0][0]
        for start, end in rows:
            busy += max(0, end - max(start, until))
            until = max(until, end)
        window = until - rows[0][0]
        total = sum(end - start for start, end in rows)
        result[str(handle)] = {
            "activities": len(rows),
            "busy_ns": busy,
            "idle_ns": window - busy,
            "sum_ns": total,
            "window_ns": window,
        }
    return result


def event(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 10.5, "dur": 2.25,
        "args": {"device": 0, "stream": 7, "correlation": 1, "grid": [2, 3, 1], "block": [64, 2, 1]},
    }  # fmt: skip
    return {**base, **changes}


def call(**changes: Any) -> dict[str, Any]:
    base = {"cat": "cuda_runtime", "name": "hipLaunchKernel", "pid": 40, "tid": 41, "args": {"correlation": 1}}
    return event(**{**base, "ts": 5, "dur": 1, **changes})


def written(path: Path, events: list[dict[str, Any]], **keys: Any) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, **keys, "traceEvents": events}))
    return path


def text_trace(path: Path, *events: str) -> Path:
    path.write_text('{"schemaVersion": 1, "traceEvents": [' + ",\n".join(events) + "]}")
    return path


@needs_captures
@pytest.mark.parametrize(("name", "path"), real_traces())
def test_real_timelines_are_exact(name: str, path: Path) -> None:
    reading = checked(kineto.read(path))
    assert timeline(reading) == exact(name)
    recognized = kineto.probe(path)
    assert recognized is not None
    assert recognized.format == "kineto"


@needs_captures
@pytest.mark.parametrize(
    ("name", "linked", "kernels"), [("mi300x_qwen1.5_0.5b", 1053, 1516), ("mi300x_resnet_train_ddp", 2238, 2995)]
)
def test_unlinked_kernels_are_kept(name: str, linked: int, kernels: int) -> None:
    reading = kineto.read(SHARED / "kineto" / f"{name}.json.gz")
    dispatches, calls = reading.tables["dispatches"], reading.tables["api_calls"]
    assert dispatches.height == kernels
    assert calls.get_column("domain").is_in(["hip_runtime"]).any()
    found = dispatches.filter(pl.col("correlation_id").is_in(calls.get_column("correlation_id").implode()))
    assert found.height == linked == dispatches.get_column("thread_id").count()
    assert reason(reading, "launch of kernels").startswith(f"partial: {kernels - linked} of {kernels}")


@needs_captures
def test_what_a_rocm_trace_says() -> None:
    reading = kineto.read(SHARED / "kineto" / "mi300x_sglang_qwen3_8b.json.gz")
    devices = reading.tables["devices"]
    told = ("handle", "vendor", "arch", "compute_units", "wavefront_size")
    assert devices.select(told).rows() == [("9", "AMD", "gfx942", 304, 64)]
    assert reading.tables["processes"].get_column("rank").to_list() == [0]
    assert reason(reading, "device properties") == (
        "present: activities are of device 9, by another count than the properties, which are of the one device"
    )
    assert reading.tables["clock_domains"].select("domain", "offset_ns").rows() == [
        ("kineto", 0),
        ("realtime", -1775078550000000000),
    ]
    copies = reading.tables["memory_copies"].filter(pl.col("direction") == "device_to_device")
    assert copies.get_column("size_bytes").null_count() == 0


@needs_captures
def test_what_a_cuda_trace_says() -> None:
    reading = kineto.read(SHARED / "kineto" / "a100_alexnet_cudasync.json.gz")
    device = reading.tables["devices"].row(0, named=True)
    assert (device["vendor"], device["arch"], device["compute_units"]) == ("NVIDIA", "sm_80", 108)
    assert reading.tables["kernels"].get_column("arch_vgprs").null_count() == reading.tables["kernels"].height
    facts = reading.details["launch_facts"]
    assert facts.height == 79
    assert facts.row(0) == (0, 47, 8.0, 64.0, 63.0)
    waits = reading.tables["synchronizations"]
    assert waits.height == 41
    assert set(waits.get_column("kind")) <= {
        "stream_synchronize", "stream_wait_event", "device_synchronize", "event_synchronize",
    }  # fmt: skip
    assert waits.filter(pl.col("kind") == "stream_wait_event").get_column("waited_correlation_id").count() > 0
    # This trace has no base: its times are microseconds since the Unix epoch.
    assert reading.tables["clock_domains"].filter(pl.col("domain") == "realtime").get_column("offset_ns")[0] == 0


@needs_captures
def test_graph_replay_links_many_kernels_to_one_call() -> None:
    reading = kineto.read(SHARED / "gpu_sessions" / "traces" / "graph_replay.json.gz")
    launches = reading.tables["api_calls"].filter(pl.col("name") == "cudaGraphLaunch")
    dispatches = reading.tables["dispatches"]
    assert dispatches.height == 12_000
    assert dispatches.get_column("correlation_id").is_in(launches.get_column("correlation_id").implode()).all()
    assert launches.get_column("correlation_id").n_unique() == launches.height


def without_layout(frame: pl.DataFrame) -> pl.DataFrame:
    """Shapes and types of operators are the trace's own text."""
    texts = [name for name in ("shapes", "types") if name in frame.columns]
    return frame.with_columns(pl.col(texts).str.replace_all(r"\s", ""))


@needs_captures
def test_a_real_trace_in_any_layout_is_the_same(tmp_path: Path) -> None:
    original = SHARED / "kineto" / "mi300x_resnet_train_ddp.json.gz"
    parsed = json.loads(gzip.decompress(original.read_bytes()))
    expected = kineto.read(original)
    for number, options in enumerate([{"separators": (",", ":")}, {"indent": 2}, {"sort_keys": True}]):
        copy = tmp_path / f"{number}.json"
        copy.write_text(json.dumps(parsed, **options))  # type: ignore[arg-type]
        again = kineto.read(copy)
        for table, frame in expected.tables.items():
            assert without_layout(frame).equals(without_layout(again.tables[table])), table


def test_columns_of_a_small_trace(tmp_path: Path) -> None:
    events = [
        call(),
        event(args={"device": 3, "stream": 9, "correlation": 1, "grid": [2, 3, 1], "block": [64, 2, 1],
                    "shared memory": 512, "graph node id": 2**64 - 1}),
        event(cat="gpu_memcpy", name="Memcpy HtoD (Pinned -> Device)",
              args={"device": 3, "stream": 8, "correlation": 2, "bytes": 4096}),
        event(cat="gpu_memset", name="Memset (Device)", args={"device": 3, "stream": 8, "correlation": 1, "bytes": 4}),
        event(cat="gpu_memcpy", name="Memcpy PtoP (Device -> Device)", args={"device": 3, "stream": 8}),
        event(cat="cpu_op", name="aten::mm", pid=40, tid=41, args={"External id": 3}),
        event(cat="python_function", name="f.py(1): g", pid=0, tid=0, args={}),
        event(cat="user_annotation", name="step", pid=40, tid=41, args={}),
        event(cat="gpu_user_annotation", name="step", pid=3, tid=9, args={}),
        {"ph": "i", "name": "[memory]", "cat": "cpu_instant_event", "ts": 1},
        {"ph": "B", "cat": "cpu_op", "name": "open", "pid": 40, "tid": 41, "ts": 1},
        {"ph": "s", "id": 4, "cat": "fwdbwd", "name": "fwdbwd", "pid": 40, "tid": 41, "ts": 5.001},
    ]  # fmt: skip
    path = written(tmp_path / "t.json", events, hip_runtime_version=1, distributedInfo={"rank": 5}, trace_id="AB")
    reading = checked(kineto.read(path))
    tables = reading.tables
    assert tables["processes"].select("pid", "rank", "guid").rows() == [(40, 5, "AB")]
    row = tables["dispatches"].row(0, named=True)
    assert [row[f"grid_{a}"] for a in "xyz"] == [128, 6, 1]
    assert [row[f"workgroup_{a}"] for a in "xyz"] == [64, 2, 1]
    assert (row["start_ns"], row["end_ns"], row["self_ns"]) == (10_500, 12_750, 2_250)
    assert (row["lds_allocated_bytes"], row["graph_node_id"], row["thread_id"]) == (512, 2**64 - 1, 41)
    assert tables["memory_copies"].select(
        "direction", "size_bytes", "source_device_id", "destination_device_id", "stream_id", "host_memory"
    ).rows() == [
        ("host_to_device", 4096, None, 0, 0, "pinned"),
        ("fill", 4, None, 0, 0, None),
        ("device_to_device", None, None, None, 0, None),
    ]
    assert tables["api_calls"].select("domain", "name").rows() == [
        ("hip_runtime", "hipLaunchKernel"),
        ("operator", "aten::mm"),
        ("python", "f.py(1): g"),
    ]
    assert tables["markers"].get_column("thread_id").to_list() == [41, None]
    assert reading.details["streams"].rows() == [(0, 0, 8), (1, 0, 9)]
    assert reading.details["forward_backward"].rows() == [(4, "s", 41, 5_001)]
    rows = {item: (into, out) for item, into, out in reading.details["source_rows"].rows()}
    assert rows["events cpu_op B"] == (1, 0)
    assert rows["events cpu_instant_event i"] == (1, 0)
    assert reason(reading, "process of host events").startswith("partial: 1 host events")
    assert reason(reading, "launch of copies").startswith("partial: 2 of 3")
    assert reason(reading, "wall-clock").startswith("absent")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0), ("7", 7_000), ("7.1", 7_100), ("7.12", 7_120), ("7.123", 7_123), ("-7.123", -7_123),
        ("3743411222894.405", 3743411222894405), ("1695835573023613", 1695835573023613000),
        ("1695835573023613.999", 1695835573023613999), ("4611686018427386.903", 4611686018427386903),
        ("9007199254740.993", 9007199254740993), ("1.0005", 1001), ("1.00049", 1000), ("-1.0005", -1001),
        ("1.00050000000000000001", 1001), ("1.000000000000000000000001", 1000), ("1.5e3", 1_500_000),
        ("2E+3", 2_000_000), ("15e-4", 2), ("0.000000", 0), ("1e-400", 0), ("12345678", 12345678000),
        ("123456789", 123456789000), ("0.9999", 1000),
    ],
)  # fmt: skip
def test_times_are_exact(tmp_path: Path, text: str, expected: int) -> None:
    path = text_trace(
        tmp_path / "t.json", f'{{"ph":"X","cat":"kernel","name":"k","ts":{text},"dur":0,"args":{{"device":0}}}}'
    )
    assert kineto.read(path).tables["dispatches"].get_column("start_ns").to_list() == [expected]


@pytest.mark.parametrize(
    "text", ["NaN", "Infinity", "-Infinity", "1e300", '"5"', "null", "5000000000000000", "1.", "0x10"]
)
def test_times_that_are_none_are_counted(tmp_path: Path, text: str) -> None:
    bad = f'{{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":{text},"args":{{"device":0}}}}'
    good = '{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":1,"args":{"device":0}}'
    reading = checked(kineto.read(text_trace(tmp_path / "t.json", bad, good)))
    assert reading.tables["dispatches"].height == 1
    assert reason(reading, "events kernel X").startswith("invalid: 1 of 2")


@given(st.decimals(-(10**15), 10**15, allow_nan=False, places=None), st.integers(0, 10**12))
def test_times_equal_decimal_arithmetic(tmp_path_factory: pytest.TempPathFactory, start: Decimal, length: int) -> None:
    path = tmp_path_factory.mktemp("t") / "t.json"
    text_trace(path, f'{{"ph":"X","cat":"kernel","name":"k","ts":{start},"dur":{length},"args":{{"device":0}}}}')
    expected = int((start * 1000).quantize(Decimal(1), rounding=ROUND_HALF_UP))
    assert kineto.read(path).tables["dispatches"].select("start_ns", "end_ns").rows() == [
        (expected, expected + length * 1000)
    ]


def test_names_with_escapes_and_other_scripts(tmp_path: Path) -> None:
    names = ['a"b', "back\\slash\\", "tab\there", "ünïcödé 核", "{[}]", "", "x" * 5000, '\\"', "é" * 13, "twelve bytes"]
    path = tmp_path / "t.json"
    for ascii_only in (True, False):
        document = {"traceEvents": [event(name=name) for name in names], "schemaVersion": 1}
        path.write_text(json.dumps(document, ensure_ascii=ascii_only))
        tables = kineto.read(path).tables
        named = tables["dispatches"].join(tables["kernels"], on="kernel_id", how="left", maintain_order="left")
        assert named.get_column("name").to_list() == names


def test_bytes_that_are_no_utf8_and_half_surrogates(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(
        json.dumps({"traceEvents": [event(name="AB"), event(name="\ud800x")]}).encode().replace(b"AB", b"A\xff")
    )
    assert kineto.read(path).tables["kernels"].get_column("name").to_list() == ["A\ufffd", "?x"]


def test_odd_events_are_kept_and_told(tmp_path: Path) -> None:
    events = [event(), event(), event(ts=50, dur=-1), event(ts=11, args={"device": 0, "stream": 7, "correlation": 0})]
    reading = checked(kineto.read(written(tmp_path / "t.json", events)))
    assert reading.tables["dispatches"].height == 4
    assert reason(reading, "distinct kernels").startswith("partial: 1 kernels")
    assert reason(reading, "kernel durations").startswith("partial: 1 kernels")
    assert reason(reading, "order within streams").startswith("partial: 2 kernels")
    assert reading.tables["dispatches"].get_column("correlation_id").to_list() == [1, 1, 1, None]
    assert reason(reading, "launch of kernels").startswith("absent: 4 of 4")


def test_several_processes(tmp_path: Path) -> None:
    events = [
        call(pid=1, args={"correlation": 1}), call(pid=2, args={"correlation": 1}),
        call(pid=2, args={"correlation": 5}), event(), event(args={"device": 0, "stream": 7, "correlation": 5}),
    ]  # fmt: skip
    reading = checked(kineto.read(written(tmp_path / "t.json", events)))
    assert reading.tables["processes"].get_column("pid").to_list() == [1, 2]
    assert reading.tables["dispatches"].get_column("process_id").to_list() == [0, 1]


def test_the_last_of_a_repeated_key_counts_and_other_arguments_do_not(tmp_path: Path) -> None:
    path = text_trace(
        tmp_path / "t.json",
        '{"ph":"X","cat":"kernel","name":"a","name":"b","ts":1,"dur":1,"other":{"device":8,"name":"c"},'
        '"args":{"nested":{"device":9},"device":4,"stream":1,"list":["device",5]}}',
    )
    tables = kineto.read(path).tables
    assert tables["kernels"].get_column("name").to_list() == ["b"]
    assert tables["devices"].get_column("handle").to_list() == ["4"]


def test_an_array_of_events_is_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps([event(), call()]))
    assert kineto.read(path).tables["dispatches"].height == 1
    assert kineto.probe(path) is not None


def test_a_cut_trace_is_read_up_to_the_cut(tmp_path: Path) -> None:
    path = written(tmp_path / "t.json", [event(ts=number) for number in range(2_000)], baseTimeNanoseconds=5)
    whole = path.read_bytes()
    for length in (len(whole) - 1, len(whole) - 3, len(whole) // 2, len(whole) // 2 + 31):
        path.write_bytes(whole[:length])
        reading = checked(kineto.read(path))
        starts = reading.tables["dispatches"].get_column("start_ns").to_list()
        assert starts == [1000 * number for number in range(len(starts))]
        assert whole[:length].count(b"}}") <= len(starts) + 1 or length == len(whole) - 1
        assert reason(reading, "kernel events").startswith("partial")
    packed = gzip.compress(whole)
    path.write_bytes(packed[: len(packed) // 2])
    reading = checked(kineto.read(path))
    assert 0 < reading.tables["dispatches"].height < 2_000
    assert reason(reading, "kernel events").startswith("partial")


def test_a_trace_without_events_or_kernels(tmp_path: Path) -> None:
    assert reason(checked(kineto.read(written(tmp_path / "a.json", []))), "kernel events").startswith("absent")
    reading = checked(kineto.read(written(tmp_path / "b.json", [call()])))
    assert reading.tables["dispatches"].height == 0
    assert reading.tables["api_calls"].height == 1


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[", b"null", b"{}", b'{"a":1}', b'{"traceEvents":5}', b'{"traceEvents":{}}', b"\x00" * 100,
     b'{"x" 1}', b'{"x":tru', b'{"x":"\\', b"\x1f\x8b broken", b'{"a":' + b"[" * 100_000, b"PAR1",
     b'{"schemaVersion":1,"traceEvents":[{"a":' + b"[" * 5_000],
)  # fmt: skip
def test_what_is_no_trace_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(content)
    if content == b"[":  # an array that stops at once is a cut trace
        assert reason(kineto.read(path), "kernel events").startswith("partial")
        return
    with pytest.raises(CaptureError) as error:
        kineto.read(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("category", ["kernel", "Kernel"])
def test_a_trace_whose_first_keys_are_its_events_is_known_by_a_kernel(tmp_path: Path, category: str) -> None:
    """The keys about the trace as a whole follow the first 64 KiB."""
    kernels = [event(cat=category, ts=10 * i, args={"device": 0, "stream": 7, "correlation": i}) for i in range(1, 900)]
    document = {"traceEvents": kernels, "deviceProperties": [{"id": 0, "name": "a GPU"}], "schemaVersion": 1}
    path = tmp_path / "late.json"
    path.write_text(json.dumps(document))
    assert path.read_bytes().index(b"schemaVersion") > 64 << 10
    recognized = kineto.probe(path)
    assert recognized is not None and recognized.format == "kineto"
    reading = checked(kineto.read(path))
    assert reading.tables["dispatches"].height == 899
    assert reading.tables["devices"].get_column("product").to_list() == ["a GPU"]


def test_categories_of_the_first_releases_are_read_as_those_of_today(tmp_path: Path) -> None:
    events = [
        event(cat="Kernel", args={"device": 0, "stream": 7, "correlation": 3}),
        event(cat="Memcpy", name="Memcpy HtoD", args={"device": 0, "stream": 7, "correlation": 4, "bytes": 8}),
        event(cat="Memset", name="Memset", args={"device": 0, "stream": 7, "correlation": 5, "bytes": 9}),
        call(cat="Runtime", args={"correlation": 3}),
    ]
    tables = checked(kineto.read(written(tmp_path / "old.json", events, schemaVersion=1))).tables
    assert [tables[name].height for name in ("dispatches", "memory_copies", "api_calls")] == [1, 2, 1]
    assert tables["memory_copies"].get_column("size_bytes").to_list() == [8, 9]


def test_probe_knows_strangers(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    for content in (b"", b"{", b'{"rocprofiler-sdk-tool":[]}', b"\x1f\x8b", b'[{"cat":"Session","ph":"X"}]'):
        path.write_bytes(content)
        assert kineto.probe(path) is None
    assert kineto.probe(tmp_path / "missing") is None
    assert kineto.probe(tmp_path) is None


def test_every_kind_is_named_once(tmp_path: Path) -> None:
    events = [event(cat=""), {"ph": "X"}, {"cat": "kernel"}, {"ph": "XX", "cat": "kernel"}, {"ph": "M", "name": "n"}]
    reading = checked(kineto.read(written(tmp_path / "t.json", events)))
    assert reading.details["source_rows"].rows() == [
        ("events (no category) M", 1, 0),
        ("events (no category) X", 2, 0),
        ("events kernel ?", 2, 0),
    ]


def test_limits(tmp_path: Path) -> None:
    path = written(tmp_path / "t.json", [event(), event()])
    for limits in (Limits(events=1), Limits(file_bytes=100), Limits(depth=2)):
        with pytest.raises(CaptureError):
            kineto.read(path, limits)
    long = written(tmp_path / "long.json", [event(name="x" * (20 << 20))])
    with pytest.raises(CaptureError, match="longer than"):
        kineto.read(long, Limits(line_bytes=9 << 20))
    assert kineto.read(long).tables["kernels"].height == 1


NUMBERS = st.integers(0, 10**6)
EVENTS = st.lists(
    st.builds(
        lambda cat, name, ts, dur, grid, correlation, extra: event(
            cat=cat, name=name, ts=ts / 1000, dur=dur / 1000,
            args={**extra, "device": 1, "stream": 2, "correlation": correlation, "grid": grid, "block": [4, 5, 6]},
        ),
        st.sampled_from(["kernel", "cuda_runtime", "cpu_op", "gpu_memcpy", "user_annotation", "ac2g"]),
        st.text(max_size=20), NUMBERS, NUMBERS, st.lists(NUMBERS, min_size=3, max_size=3), st.integers(0, 2**64 - 1),
        st.dictionaries(st.text(max_size=9), st.text(max_size=9) | st.lists(st.integers()) | st.none(), max_size=2),
    ),
    max_size=8,
)  # fmt: skip


@given(EVENTS, st.sampled_from([None, 0, 1, 7]), st.booleans(), st.booleans())
def test_any_layout_gives_what_the_parser_of_python_gives(
    tmp_path_factory: pytest.TempPathFactory,
    events: list[dict[str, Any]],
    indent: int | None,
    ascii_only: bool,
    tight: bool,
) -> None:
    path = tmp_path_factory.mktemp("t") / "t.json"
    separators = (",", ":") if tight else (", ", " : ")
    text = json.dumps({"traceEvents": events}, indent=indent, ensure_ascii=ascii_only, separators=separators)
    path.write_bytes(text.encode("utf-8", "replace"))
    tables = checked(kineto.read(path)).tables
    kernels = [e for e in json.loads(path.read_bytes())["traceEvents"] if e["cat"] == "kernel"]
    named = tables["dispatches"].join(tables["kernels"], on="kernel_id", how="left", maintain_order="left")
    assert named.select("name", "start_ns", "end_ns", "grid_x", "grid_z", "correlation_id").rows() == [
        (
            e["name"], round(e["ts"] * 1000), round(e["ts"] * 1000) + round(e["dur"] * 1000),
            e["args"]["grid"][0] * 4, e["args"]["grid"][2] * 6, e["args"]["correlation"] or None,
        )
        for e in kernels
    ]  # fmt: skip


SMALL = json.dumps({"schemaVersion": 1, "traceEvents": [call(), event(name='a\\"b'), event(cat="cuda_sync")]}).encode()


@given(st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.binary(max_size=3)), min_size=1, max_size=6))
def test_any_bytes_give_a_reading_or_one_clear_error(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, bytes]]
) -> None:
    content = bytearray(SMALL)
    for at, new in changes:
        content[at : at + 1] = new
    path = tmp_path_factory.mktemp("t") / "t.json"
    path.write_bytes(content)
    read_or_refused(kineto, path)
