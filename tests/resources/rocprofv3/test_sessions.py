"""Whole sessions with a profile, on a host without an AMD GPU: rocprofv3 is the stand-in in `rocprofv3_stand_in.py`,
which is strict about its arguments and delivers files of real captures; the model runs on the processor.
"""

import json
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest

from aaco_pipeline.capture import open_capture
from aaco_pipeline.capture.discovery import discover_runs, the_run
from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.errors import AacoError, CaptureError, ModelError, UnavailableError, UsageError
from aaco_pipeline.formats import native as inference_capture
from aaco_pipeline.formats import rocpd
from aaco_pipeline.lake.layout import new_session_id
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.measure.inference import capture_inference, plan
from aaco_pipeline.resources.rocprofv3 import command as rocprofv3
from aaco_pipeline.resources.rocprofv3 import passes as rocprofv3_passes
from aaco_pipeline.resources.rocprofv3.command import counter_passes, escaped
from aaco_pipeline.resources.rocprofv3.passes import kernel_to_trace
from tests.places import CONFIGS, SHARED
from tests.resources.rocprofv3.made_up import OLD, kernel_csv, listed_gpus
from tests.sessions import replayed

CAPTURES: Final = SHARED / "captures"
TRACED: Final = CAPTURES / "mi300x_att_ck_batched_gemm"
COUNTED: Final = CAPTURES / "mi300x_rocpd_pmc_passes"
needs_captures = pytest.mark.skipif(not TRACED.is_dir(), reason="the real captures are not on this host")


COUNTER_CSV: Final = (
    '"Correlation_Id","Dispatch_Id","Agent_Id","Queue_Id","Process_Id","Thread_Id","Grid_Size","Kernel_Id",'
    '"Kernel_Name","Workgroup_Size","LDS_Block_Size","Scratch_Size","VGPR_Count","SGPR_Count","Counter_Name",'
    '"Counter_Value"\n1,1,1,1,100,100,64,1,"one(int)",64,0,0,8,16,"SQ_WAVES",1.000000\n'
)


@dataclass
class StandIn:
    """The stand-in for rocprofv3, first in PATH, and what it is to deliver."""

    home: Path

    def plays(self, release: str, mode: str = "ok", **settings: str) -> None:
        document = {"release": release, "mode": mode, **settings}
        (self.home / "settings.json").write_text(json.dumps(document))

    def delivers(self, kind: str, name: str, content: str | Path) -> None:
        """For the next pass of that kind; a name is `N__name`, so that they are taken in order."""
        target = self.home / kind / f"{len(list((self.home / kind).iterdir())):02}__{name}"
        if isinstance(content, str):
            target.write_text(content)
        else:
            (shutil.copytree if content.is_dir() else shutil.copyfile)(content, target)

    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.home / "calls.jsonl").read_text().splitlines()]


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    home = tmp_path / "stand_in"
    for folder in ("bin", "base", "counters", "thread_trace"):
        (home / folder).mkdir(parents=True)
    source = Path(__file__).with_name("rocprofv3_stand_in.py").read_text()
    tool = home / "bin" / "rocprofv3"
    tool.write_text(f"#!{sys.executable}\n{source}")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{home / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("STAND_IN", str(home))
    monkeypatch.setattr(rocprofv3_passes, "PROFILED_PROVIDERS", ("CPUExecutionProvider",))
    listed_gpus([0, 90402], tmp_path / "nodes", monkeypatch)
    return StandIn(home)


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    """A registry whose backend `device` is the processor, and sets of counters of which one needs two runs."""
    folder = tmp_path / "configs"
    folder.mkdir()
    (folder / "backends.yaml").write_text("backends: {device: {provider: CPUExecutionProvider}}\n")
    (folder / "counter_sets.yaml").write_text(
        "slots: [{architectures: [gfx942], source: a test, blocks: {SQ: 2, TCC: 1}}]\n"
        "counter_sets:\n"
        "  two_runs: [{architectures: [gfx942], counters: [SQ_WAVES, TCC_HIT_sum, TCC_MISS_sum]}]\n"
        "  one_run: [{architectures: [gfx942], counters: [SQ_WAVES]}]\n"
        "  elsewhere: [{architectures: [gfx90a], counters: [SQ_WAVES]}]\n"
    )
    return folder


Measure = Callable[..., Path]


@pytest.fixture
def measure(stand_in: StandIn, configs: Path, model: Path, tmp_path: Path) -> Measure:
    def run(**settings: Any) -> Path:
        folder = tmp_path / "raw"
        folder.mkdir()
        given: dict[str, Any] = {"iterations": 3, "warmup": 1, "timeout_seconds": 60.0, "profile": True, **settings}
        capture_inference(
            MeasurementRequest(model=str(model), backend="device", **given), folder, configs, lambda line: None
        )
        return folder

    return run


def document(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


@pytest.mark.parametrize("release", OLD)
def test_an_older_release_gives_a_capture_of_text_files(release: str, stand_in: StandIn, measure: Measure) -> None:
    stand_in.plays(release)
    stand_in.delivers("base", "kernel_trace.csv", kernel_csv(("one(int)", 100), ("one(int)", 120)))
    for _ in range(2):
        stand_in.delivers("counters", "counter_collection.csv", COUNTER_CSV)
    raw = measure(counters="two_runs")
    told = document(raw / "capture.json")["rocprofv3"]
    assert (told["release"], told["version"], told["architecture"]) == (release, f"{release}.0", "gfx942")
    assert [one["name"] for one in told["passes"]] == ["base", "counters_1", "counters_2"]
    assert [one["counters"] for one in told["passes"]] == [[], ["SQ_WAVES", "TCC_HIT_sum"], ["TCC_MISS_sum"]]
    for one in told["passes"]:
        pid = document(raw / one["folder"] / f"{one['name']}.json")["process_id"]
        kind = "kernel_trace" if one["kind"] == "base" else "counter_collection"
        assert (raw / one["folder"] / f"out_{pid}_{kind}.csv").is_file()
    (run,) = discover_runs(raw / "rocprofv3").runs
    assert len(run.parts) == 3


@pytest.mark.nightly
@needs_captures
@pytest.mark.parametrize(
    ("release", "mode"),
    [
        *(("7.0", "ok"), ("7.1", "exec")),
        *(pytest.param(release, "ok", marks=pytest.mark.nightly) for release in ("7.2", "7.13")),
    ],
)
def test_a_newer_release_gives_databases_and_a_thread_trace(
    release: str, mode: str, stand_in: StandIn, measure: Measure
) -> None:
    """Real files of an MI300X; the longest kernel of the base pass is the one whose instructions are traced."""
    stand_in.plays(release, mode)
    stand_in.delivers("base", "results.db", TRACED / "37ca13315e70" / "28_results.db")
    for number in (1, 2):
        stand_in.delivers("counters", "results.db", COUNTED / f"pass_{number}_DERIVED_results.db")
    for name in ("stats_ui_output_agent_5600_dispatch_1.csv", "ui_output_agent_5600_dispatch_1"):
        stand_in.delivers("thread_trace", name, TRACED / name)
    raw = measure(counters="two_runs", thread_trace="auto")
    read = inference_capture.read(raw)
    assert [one.kind for one in read.profiler_passes] == ["base", "counters", "counters", "thread_trace"]
    last = read.profiler_passes[-1]
    assert last.kernel is not None
    assert (last.kernel, 76) == kernel_to_trace(raw / "rocprofv3" / "pass_1", "auto")
    assert last.command[1:6:2] == ("--att", escaped(last.kernel), "[76]")
    run = the_run(raw / "rocprofv3", "measure again")  # the delivered databases are of two programs
    assert sorted(part.format for part in run.parts) == ["rocpd", "rocpd", "rocpd", "rocprofv3-thread-trace"]
    assert [call[0] for call in stand_in.calls()] == ["--version", "--kernel-trace", "--pmc", "--pmc", "--att"]


@needs_captures
def test_the_kernels_of_a_profiled_session_lie_on_its_axis_through_every_stage(
    stand_in: StandIn, measure: Measure, tmp_path: Path
) -> None:
    """The delivered database is of another day, so where its kernels lie is arithmetic: boot clock to the axis."""
    stand_in.plays("7.1")
    database = TRACED / "37ca13315e70" / "28_results.db"
    stand_in.delivers("base", "results.db", database)
    stand_in.delivers("counters", "results.db", COUNTED / "pass_1_DERIVED_results.db")
    for name in ("stats_ui_output_agent_5600_dispatch_1.csv", "ui_output_agent_5600_dispatch_1"):
        stand_in.delivers("thread_trace", name, TRACED / name)
    raw = measure(counters="one_run", thread_trace="auto")
    capture = inference_capture.read(raw)
    base = capture.profiler_passes[0]
    assert base.boot_clock is not None
    recorded = rocpd.read(database).tables["dispatches"].get_column("start_ns")
    placed = open_capture(raw).tables()
    expected = recorded + base.boot_clock[0] - capture.axis_zero_monotonic_ns
    assert placed["dispatches"].get_column("start_ns").to_list() == expected.to_list()
    clocks = dict(placed["clock_domains"].select("domain", "uncertainty_ns").iter_rows())
    assert clocks["boottime"] == base.boot_clock[1]
    assert set(placed["dispatches"].get_column("process_id")) == {2}
    assert set(placed["dispatches"].get_column("device_id")) == {1}
    lake, session = TraceLake(tmp_path / "lake"), new_session_id()
    with lake.receive_raw(session) as folder:
        shutil.copytree(raw, folder, dirs_exist_ok=True)
    replayed(lake, session, "session_environment", "att_enrichment", "timeline")
    assert lake.read("processes", session).get_column("process_id").to_list() == [0, 1, 2]
    assert lake.read("devices", session).get_column("device_id").to_list() == list(range(9))
    assert lake.read("dispatches", session).height == 151
    assert lake.read("att_instructions", session).height == 281
    traced = lake.read("iterations", session).filter(pl.col("pass") == "trace")
    timed = base.document["start_monotonic_ns"]
    assert traced.get_column("start_ns").to_list() == [t - capture.axis_zero_monotonic_ns for t in timed]


@needs_captures
def test_no_environment_of_the_program_stays_in_the_capture(
    stand_in: StandIn, measure: Measure, tmp_path: Path
) -> None:
    database = tmp_path / "with_secrets.db"
    shutil.copyfile(TRACED / "37ca13315e70" / "28_results.db", database)
    with closing(sqlite3.connect(database)) as connection, connection:
        (table,) = connection.execute(
            "SELECT name FROM sqlite_master WHERE name LIKE 'rocpd_info_process_%'"
        ).fetchone()
        connection.execute(f'UPDATE "{table}" SET environment = ?', (json.dumps({"ACCESS_HEADER": "hunter2-secret"}),))
    stand_in.plays("7.1")
    stand_in.delivers("base", "results.db", database)
    raw = measure()
    assert not [path for path in raw.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()]


def csv_session(stand_in: StandIn, mode: str = "ok", **settings: str) -> None:
    stand_in.plays("6.4", mode, **settings)
    stand_in.delivers("base", "kernel_trace.csv", kernel_csv(("one(int)", 100)))


def boot_time_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def test_each_pass_is_read_back_with_its_distortion_and_its_clock(stand_in: StandIn, measure: Measure) -> None:
    csv_session(stand_in)
    read = inference_capture.read(measure())
    (base,) = read.profiler_passes
    latency = document(read.folder / "latency.json")
    assert base.folder == read.folder / "rocprofv3" / "pass_1"
    times = [e - s for s, e in zip(latency["start_monotonic_ns"], latency["end_monotonic_ns"], strict=True)][1:]
    assert base.distortion == pytest.approx(base.median_latency_ns / sorted(times)[1])
    assert base.command[:1] == (str(stand_in.home / "bin" / "rocprofv3"),)
    assert base.command[-8:-5] == ("--", sys.executable, "-P")
    assert base.boot_clock is not None
    offset, uncertainty = base.boot_clock
    earlier, boot, later = (read() for read in (time.perf_counter_ns, boot_time_ns, time.perf_counter_ns))
    assert earlier - boot - uncertainty <= offset <= later - boot + uncertainty
    evidence = {item.item: item for item in read.inference_evidence()}
    assert evidence["rocprofv3 base pass"].rows == 4
    assert "times that of the unprofiled pass" in (evidence["rocprofv3 base pass"].reason or "")
    assert evidence["iteration markers"].status in ("absent", "present")


def test_only_the_base_pass_is_given_markers(stand_in: StandIn, measure: Measure) -> None:
    csv_session(stand_in)
    for _ in range(2):
        stand_in.delivers("counters", "counter_collection.csv", COUNTER_CSV)
    raw = measure(counters="two_runs")
    given = {path.name: document(path)["markers"] for path in raw.rglob("*.json") if "markers" in path.read_text()}
    assert {name for name, note in given.items() if note is not None} == {"base.json"}
    assert {"latency.json", "trace.json", "counters_1.json", "counters_2.json"} <= set(given)


def test_the_other_passes_are_as_without_a_profile(stand_in: StandIn, measure: Measure) -> None:
    """The unprofiled pass comes first, and the tool's release is known before it."""
    csv_session(stand_in)
    raw = measure()
    latency, base = (document(raw / name) for name in ("latency.json", "rocprofv3/pass_1/base.json"))
    assert latency["profile"] is None
    assert latency["end_monotonic_ns"][-1] < base["start_monotonic_ns"][0]
    assert latency["inputs"] == base["inputs"]
    assert stand_in.calls()[0] == ["--version"]
    assert not list(raw.glob(".*"))


def test_a_capture_without_a_profile_has_no_profiler_passes(stand_in: StandIn, measure: Measure) -> None:
    stand_in.plays("7.1", "fail")
    read = inference_capture.read(measure(profile=False))
    assert read.profiler_passes == ()
    assert "rocprofv3" not in read.capture
    assert not (stand_in.home / "calls.jsonl").exists()


@pytest.mark.parametrize(
    ("mode", "settings", "error"),
    [
        ("fail", {}, (UnavailableError, "status 1 in the base pass: Fatal error: rocprof-trace-decoder library path")),
        (
            "silent",
            {},
            (CaptureError, r"pass_1: rocprofv3 of ROCm 6\.4\.0 left no out_\d+_kernel_trace\.csv in the base"),
        ),
        ("hang", {"timeout_seconds": 8.0}, (ModelError, "the base pass did not end within the time limit of 8 s")),
        ("ok", {"counters": "nothing"}, (UsageError, "unknown set 'nothing'; expected one or several of two_runs")),
        ("ok", {"counters": "elsewhere"}, (UnavailableError, "names none for gfx942, only for gfx90a")),
        ("ok", {"thread_trace": "auto"}, (UnavailableError, r"thread trace: rocprofv3 of ROCm 6\.4 has none")),
    ],
)
def test_a_failure_is_one_line_and_what_cannot_be_is_refused_before_anything_is_measured(
    mode: str, settings: Mapping[str, Any], error: tuple[type[AacoError], str], stand_in: StandIn, measure: Measure
) -> None:
    csv_session(stand_in, mode)
    with pytest.raises(error[0], match=error[1]) as refused:
        measure(**settings)
    assert "\n" not in str(refused.value)
    assert mode != "ok" or list((stand_in.home.parent / "raw").iterdir()) == []


def test_counters_need_a_known_architecture(
    stand_in: StandIn, measure: Measure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    csv_session(stand_in)
    listed_gpus([0], tmp_path / "no_gpu", monkeypatch)
    with pytest.raises(UnavailableError, match="does not tell the GPU's architecture"):
        measure(counters="two_runs")


def test_without_the_tool_nothing_is_measured(
    measure: Measure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("ROCM_PATH", raising=False)
    monkeypatch.setattr(rocprofv3, "_USUAL_ROOT", "/nowhere")
    with pytest.raises(UnavailableError, match="rocprofv3: not found; install ROCm's packages"):
        measure()
    assert list((tmp_path / "raw").iterdir()) == []


def test_the_stand_in_refuses_what_the_release_does_not_know(stand_in: StandIn, measure: Measure) -> None:
    """Else the tests above would prove nothing: an older tool given a newer one's options."""
    csv_session(stand_in, version="    rocm_version: 7.1.0")
    with pytest.raises(UnavailableError, match="status 64 in the base pass: stand-in: refused: output format"):
        measure()


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_a_backend_without_an_amd_gpu_is_refused_with_what_works_there(backend: str) -> None:
    with pytest.raises(UsageError, match=r"rocprofv3 sees AMD GPUs only.*--backend migraphx.*always taken"):
        plan(MeasurementRequest(model="squeezenet", backend=backend, profile=True), CONFIGS)


def test_an_unknown_set_is_refused_before_a_session_begins() -> None:
    with pytest.raises(UsageError, match="unknown set 'most'"):
        plan(MeasurementRequest(model="squeezenet", backend="migraphx", counters="basic,most"), CONFIGS)


@pytest.mark.parametrize("settings", [{"counters": "basic"}, {"thread_trace": "auto"}])
def test_counters_and_a_thread_trace_imply_a_profile(settings: Mapping[str, Any]) -> None:
    request = MeasurementRequest(model="m", **settings)
    assert request.profile
    assert MeasurementRequest.from_json(request.to_json(), "test") == request
    assert not MeasurementRequest(model="m").profile


@pytest.mark.nightly
@needs_captures
@pytest.mark.parametrize(("release", "decoder"), [("7.1", True), ("7.13", False)])
def test_a_thread_trace_that_stays_away_is_reported_with_what_may_be_missing(
    release: str, decoder: bool, stand_in: StandIn, measure: Measure
) -> None:
    stand_in.plays(release)
    stand_in.delivers("base", "results.db", TRACED / "37ca13315e70" / "28_results.db")
    with pytest.raises(CaptureError, match=r"left no ui_output_agent_\*_dispatch_\*/filenames\.json") as refused:
        measure(thread_trace="auto")
    assert ("rocprof-trace-decoder" in str(refused.value)) == decoder


DAMAGED: Final[Sequence[tuple[Mapping[str, Any], str]]] = (
    ({"folder": "../elsewhere"}, "not a place within the capture"),
    ({"folder": "/etc"}, "not a place within the capture"),
    ({"name": "../base"}, "not a place within the capture"),
    ({"kind": "other"}, r"rocprofv3\.passes\.0\.kind"),
    ({"distortion": "much"}, r"rocprofv3\.passes\.0\.distortion"),
    ({"folder": "rocprofv3/pass_9"}, "base.json: cannot be read"),
)


def test_a_damaged_section_is_refused_by_name(stand_in: StandIn, measure: Measure) -> None:
    csv_session(stand_in)
    raw = measure()
    whole = (raw / "capture.json").read_text()
    for change, words in DAMAGED:
        said = json.loads(whole)
        said["rocprofv3"]["passes"][0] |= change
        (raw / "capture.json").write_text(json.dumps(said))
        with pytest.raises(CaptureError, match=words):
            inference_capture.read(raw)


def test_counter_passes_are_numbered_from_one() -> None:
    assert [one.name for one in counter_passes([["A"], ["B"]])] == ["counters_1", "counters_2"]
    assert rocprofv3.folder_name(1) == "pass_1"
