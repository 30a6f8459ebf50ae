"""Profiling with rocprofv3: the command of every release, counters in groups that fit, and the passes of a session.

There is no AMD GPU here. Where a whole session is run, rocprofv3 is the stand-in in `rocprofv3_stand_in.py`, which is
strict about its arguments and delivers files of real captures; the model runs on the processor.
"""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import onnx
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from aaco_pipeline.capture import open_capture
from aaco_pipeline.capture.discovery import discover_runs, the_run
from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.errors import AacoError, CaptureError, ModelError, UnavailableError, UsageError
from aaco_pipeline.formats import native as inference_capture
from aaco_pipeline.formats import rocpd
from aaco_pipeline.lake.identity import new_session_id
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.providers import CPU_PROVIDER as CPU
from aaco_pipeline.resources.configuration import BackendEntry
from aaco_pipeline.resources.measure import inference_worker
from aaco_pipeline.resources.measure.inference import _job, capture_inference, plan
from aaco_pipeline.resources.measure.models import ModelChoice
from aaco_pipeline.resources.rocprofv3 import architecture as driver
from aaco_pipeline.resources.rocprofv3 import command as rocprofv3
from aaco_pipeline.resources.rocprofv3 import passes as rocprofv3_passes
from aaco_pipeline.resources.rocprofv3.command import (
    BASE_PASS,
    RELEASES,
    ProfilerPass,
    counter_input,
    counter_passes,
    escaped,
    expected_outputs,
    find_tool,
    installed_release,
    known_release,
    rocprofv3_command,
    stated_release,
)
from aaco_pipeline.resources.rocprofv3.counter_groups import counter_block, counter_groups
from aaco_pipeline.resources.rocprofv3.counter_sets import load_counter_sets
from aaco_pipeline.resources.rocprofv3.passes import kernel_to_trace
from tests.places import CONFIGS, SHARED
from tests.sessions import replayed

CAPTURES: Final = SHARED / "captures"
TRACED: Final = CAPTURES / "mi300x_att_ck_batched_gemm"
COUNTED: Final = CAPTURES / "mi300x_rocpd_pmc_passes"
needs_captures = pytest.mark.skipif(not TRACED.is_dir(), reason="the real captures are not on this host")
KERNEL_CSV: Final = (
    '"Kind","Agent_Id","Queue_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id",'
    '"Start_Timestamp","End_Timestamp","Private_Segment_Size","Group_Segment_Size","Workgroup_Size_X",'
    '"Workgroup_Size_Y","Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"\n'
)
COUNTER_CSV: Final = (
    '"Correlation_Id","Dispatch_Id","Agent_Id","Queue_Id","Process_Id","Thread_Id","Grid_Size","Kernel_Id",'
    '"Kernel_Name","Workgroup_Size","LDS_Block_Size","Scratch_Size","VGPR_Count","SGPR_Count","Counter_Name",'
    '"Counter_Value"\n1,1,1,1,100,100,64,1,"one(int)",64,0,0,8,16,"SQ_WAVES",1.000000\n'
)


def kernel_csv(*executions: tuple[str, int]) -> str:
    """A kernel trace of those executions: name and duration in ns, one after the other."""
    rows = [
        f'"KERNEL_DISPATCH",1,1,100,{n},{1 + len(name)},"{name}",{n},{n * 10_000},{n * 10_000 + duration},'
        "0,0,64,1,1,64,1,1"
        for n, (name, duration) in enumerate(executions, start=1)
    ]
    return KERNEL_CSV + "\n".join(rows) + "\n"


# Commands.

PROGRAM: Final = ("python", "train.py", "--size", "a b")
COUNTERS: Final = ProfilerPass("counters_1", "counters", ("SQ_WAVES", "TCC_HIT_sum"))
THREAD_TRACE: Final = ProfilerPass("thread_trace", "thread_trace", kernel="gemm<float>(int*)", execution=5)
TRACES: Final = ("--kernel-trace", "--hip-runtime-trace", "--memory-copy-trace", "--marker-trace")
OLD: Final = ("6.2", "6.3", "6.4")
NEW: Final = ("7.0", "7.1", "7.2", "7.13")


def placed(form: str) -> tuple[str, ...]:
    return ("-d", "out/pass_1", "-o", "out_%pid%", "--output-format", form, "--", *PROGRAM)


def test_the_releases_under_test_are_all_that_are_known() -> None:
    assert tuple(release.name for release in RELEASES) == (*OLD, *NEW)


@pytest.mark.parametrize("name", [*OLD, *NEW])
def test_the_base_pass_traces_and_counts_nothing(name: str) -> None:
    command = rocprofv3_command(known_release(name), BASE_PASS, Path("out/pass_1"), PROGRAM)
    assert command == ("rocprofv3", *TRACES, *placed("csv" if name in OLD else "rocpd"))


@pytest.mark.parametrize("name", [*OLD[1:], *NEW])
def test_a_counter_pass_counts_and_traces_nothing(name: str) -> None:
    release = known_release(name)
    command = rocprofv3_command(release, COUNTERS, "out/pass_1", PROGRAM)
    assert command == ("rocprofv3", "--pmc", *COUNTERS.counters, *placed("csv" if name in OLD else "rocpd"))
    assert counter_input(release, COUNTERS) is None


def test_the_oldest_release_reads_its_counters_from_a_file() -> None:
    release = known_release("6.2")
    command = rocprofv3_command(release, COUNTERS, "out/pass_1", PROGRAM)
    assert command == ("rocprofv3", "-i", "out/pass_1/counters.txt", *placed("csv"))
    assert counter_input(release, COUNTERS) == ("counters.txt", "pmc: SQ_WAVES TCC_HIT_sum\n")
    assert counter_input(release, BASE_PASS) is None


@pytest.mark.parametrize("name", NEW)
def test_a_thread_trace_is_of_one_execution_of_one_kernel(name: str) -> None:
    command = rocprofv3_command(known_release(name), THREAD_TRACE, "out/pass_1", PROGRAM)
    limits = ("--kernel-include-regex", r"gemm<float>\(int\*\)", "--kernel-iteration-range", "[5]")
    assert command == ("rocprofv3", "--att", *limits, *placed("rocpd"))


@pytest.mark.parametrize("name", OLD)
def test_an_older_release_has_no_thread_trace(name: str) -> None:
    with pytest.raises(UnavailableError, match=rf"rocprofv3 of ROCm {name} has none; install ROCm 7\.0 or newer"):
        rocprofv3_command(known_release(name), THREAD_TRACE, "out", PROGRAM)


def test_a_kernels_name_is_escaped_so_that_it_is_found_literally() -> None:
    import re

    name = "void f<(A)1, B[2]>(float const*, int) [clone .kd] a^b$c|d?e+f{g}\\"
    assert re.fullmatch(escaped(name), name)
    assert escaped("plain_name, 1") == "plain_name, 1"


@pytest.mark.parametrize(
    ("version", "name"),
    [("6.2", "6.2"), ("6.2.4", "6.2"), ("7.1.1", "7.1"), ("7.5", "7.2"), ("7.13", "7.13"), ("8.0", "7.13")],
)
def test_a_release_is_treated_as_the_newest_known_one_before_it(version: str, name: str) -> None:
    assert known_release(version).name == name


@pytest.mark.parametrize("version", ["6.1", "5.7.1"])
def test_a_release_before_all_known_ones_is_not_supported(version: str) -> None:
    with pytest.raises(UnavailableError, match=r"not supported; install ROCm 6\.2 or newer"):
        known_release(version)


@pytest.mark.parametrize("version", ["", "7", "seven", "7.1-rc", "7..1", "\n7.1", "9" * 5000 + ".1"])
def test_what_is_no_release_is_refused(version: str) -> None:
    with pytest.raises(UsageError, match="is no ROCm release; expected one such as"):
        known_release(version)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("             version: 1.1.0\n        rocm_version: 7.2.0\n", "7.2.0"),
        ("             version: 1.1.0\n    compiler_version: 20.0.0\n", "7.1"),
        ("version: 0.4.0\n", "6.2"),
        ("version: 1.3.0\n        rocm_version: \n", "7.13"),
        ("version: 99.0.0\n", None),
        ("usage: rocprofv3 [options]\n", None),
        ("", None),
    ],
)
def test_the_release_is_read_from_what_the_tool_states(text: str, version: str | None) -> None:
    assert stated_release(text) == version


@pytest.mark.parametrize(
    ("name", "one", "pattern"),
    [
        ("7.1", BASE_PASS, "out_12_results.db"),
        ("7.1", COUNTERS, "out_12_results.db"),
        ("6.4", BASE_PASS, "out_12_kernel_trace.csv"),
        ("6.2", COUNTERS, "out_12_counter_collection.csv"),
        ("7.0", THREAD_TRACE, "ui_output_agent_*_dispatch_*/filenames.json"),
    ],
)
def test_the_files_of_a_pass_are_known_beforehand(name: str, one: ProfilerPass, pattern: str) -> None:
    assert expected_outputs(known_release(name), one, 12) == (pattern,)


# Counters.

SLOTS: Final = {"SQ": 2, "TCC": 1}
NAMES: Final = st.builds(
    lambda block, n: f"{block}_{n}", st.sampled_from(["SQ", "SQC", "TCC", "GL2C", "FETCH"]), st.integers(0, 9)
)


@given(st.lists(NAMES, max_size=30))
def test_groups_hold_every_counter_once_and_no_block_over_its_slots(counters: list[str]) -> None:
    groups = counter_groups(counters, SLOTS)
    assert sorted(counter for group in groups for counter in group) == sorted(set(counters))
    for group in groups:
        blocks = [counter_block(counter) for counter in group]
        assert all(blocks.count(block) <= SLOTS.get(block, 1) for block in blocks)
        assert len(group) == 1 or set(blocks) <= set(SLOTS)
    assert groups == counter_groups(counters, SLOTS)
    assert groups == counter_groups([*counters, *counters], SLOTS)


def test_counters_of_different_blocks_share_a_group_and_are_filled_in_order() -> None:
    counters = ["SQ_A", "SQ_B", "TCC_A", "SQC_C", "TCC_B", "FETCH_SIZE", "SQ_D"]
    assert counter_groups(counters, SLOTS) == (
        ("SQ_A", "SQ_B", "TCC_A"),
        ("SQC_C", "TCC_B", "SQ_D"),
        ("FETCH_SIZE",),
    )
    assert counter_groups([], SLOTS) == ()


def test_the_sets_of_the_registry_fit_on_every_architecture_they_name() -> None:
    sets = load_counter_sets(CONFIGS / "counter_sets.yaml")
    assert {"basic", "memory", "compute", "occupancy"} <= set(sets.sets)
    for name, by_architecture in sets.sets.items():
        for architecture, counters in by_architecture.items():
            groups = sets.groups(name, architecture)
            assert sorted(c for group in groups for c in group) == sorted(counters)
            assert len(set(counters)) == len(counters)
    assert len(sets.groups("basic", "gfx942")) == 1
    assert len(sets.groups("basic,memory", "gfx942")) == 3
    assert [len(group) for group in sets.groups("basic", "gfx1151")] == [1, 1, 1]


@pytest.mark.parametrize(
    ("architecture", "folder"), [("gfx908", "MI100"), ("gfx942", "MI300X_A1"), ("gfx950", "MI350")]
)
@pytest.mark.skipif(not (SHARED / "counters").is_dir(), reason="the real counter captures are not on this host")
def test_the_counters_of_the_registry_are_ones_that_real_devices_gave(architecture: str, folder: str) -> None:
    text = "".join(path.read_text() for path in (SHARED / "counters" / "vcopy" / folder).glob("*.csv"))
    real = set(text.replace('"', ",").replace("\n", ",").split(","))
    sets = load_counter_sets(CONFIGS / "counter_sets.yaml").sets
    wanted = {counter for one in sets.values() for counter in one.get(architecture, ())}
    # Of the type F8 no capture of that device was made; it is in the formulas of AMD's own profiler.
    assert wanted - real <= ({"SQ_INSTS_VALU_MFMA_MOPS_F8"} if architecture == "gfx942" else set())


@pytest.mark.parametrize(
    ("names", "architecture", "kind", "words"),
    [
        ("basics", "gfx942", UsageError, "unknown set 'basics'; expected one or several of basic, memory"),
        ("basic,", "gfx942", UsageError, "unknown set ''"),
        ("memory", "gfx1100", UnavailableError, "the set memory names none for gfx1100, only for gfx908, gfx90a"),
    ],
)
def test_a_set_that_means_nothing_is_refused(names: str, architecture: str, kind: type[AacoError], words: str) -> None:
    with pytest.raises(kind, match=words):
        load_counter_sets(CONFIGS / "counter_sets.yaml").groups(names, architecture)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("counter_sets: 3", "counter_sets: found 3; expected a valid dictionary"),
        (
            "counter_sets: {a: [{architectures: [gfx942], counters: []}]}",
            r"a\[0\]\.counters: found a list of 0; expected a list of counters, at least one",
        ),
        (
            "counter_sets: {a: [{architectures: [MI300], counters: [A]}]}",
            "found the text 'MI300'; expected an architecture, such as gfx942",
        ),
        (
            "counter_sets: {a: [{architectures: [gfx942], counters: [--att]}]}",
            "found the text '--att'; expected a name of letters",
        ),
        ("counter_sets: {}\nslot: []", r"slot: found an unknown key; .* \(did you mean slots\?\)"),
        (
            "counter_sets: {}\nslots: [{architectures: [gfx942], source: s, blocks: {SQ: 0}}]",
            "found 0; expected how many counters fit, 1 or more",
        ),
        (
            "counter_sets: {}\nslots: [{architectures: [gfx942], blocks: {SQ: 1}}]",
            "source: found nothing; it is required",
        ),
    ],
)
def test_a_file_of_sets_out_of_form_is_refused_by_its_key(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "counter_sets.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=words) as refused:
        load_counter_sets(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert "\n" not in str(refused.value)


# This host.


@pytest.mark.parametrize(
    ("targets", "device", "name"),
    [
        ([0, 90402], 0, "gfx942"),
        ([0, 0, 90010, 90010], 7, "gfx90a"),
        ([110501], 0, "gfx1151"),
        ([0, 90402, 120001], 1, "gfx1201"),
        ([0, 90402, 120001], 2, None),
        ([0], 0, None),
        ([], 0, None),
    ],
)
def test_the_architecture_is_the_drivers(
    targets: list[int], device: int, name: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed_gpus(targets, tmp_path / "nodes", monkeypatch)
    assert driver.gpu_architecture(device) == name


def listed_gpus(targets: Sequence[int], nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the driver lists: one node for each number, 0 for a processor."""
    for number, target in enumerate(targets):
        (nodes / str(number)).mkdir(parents=True)
        (nodes / str(number) / "properties").write_text(f"simd_count 4\ngfx_target_version {target}\nvendor_id 4098\n")
    monkeypatch.setattr(driver, "_KFD_NODES", nodes)


def test_a_missing_tool_is_told_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocprofv3, "_USUAL_ROOT", str(tmp_path))
    with pytest.raises(UnavailableError, match="rocprofiler-sdk and rocprofiler-sdk-rocpd, and put rocprofv3 in PATH"):
        find_tool({"PATH": str(tmp_path), "ROCM_PATH": str(tmp_path)})


def test_the_tool_is_found_in_the_path_and_else_in_the_installation(tmp_path: Path) -> None:
    for place in ("rocm/bin", "first"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "rocprofv3").write_text("#!/bin/sh\n")
        (tmp_path / place / "rocprofv3").chmod(0o755)
        found = find_tool({"PATH": str(tmp_path / "first"), "ROCM_PATH": str(tmp_path / "rocm")})
        assert found == tmp_path / place / "rocprofv3"


def test_a_tool_that_states_no_release_is_dated_by_its_installation(tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "rocprofv3"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho no such option >&2\nexit 3\n")
    tool.chmod(0o755)
    with pytest.raises(UnavailableError, match=r"`--version` names no release \(no such option\); install"):
        installed_release(tool)
    (tmp_path / ".info").mkdir()
    (tmp_path / ".info" / "version").write_text("6.2.4-120\n")
    assert installed_release(tool) == ("6.2.4", known_release("6.2"))
    tool.chmod(0o644)
    assert installed_release(tool)[0] == "6.2.4"


# Which kernel.


def test_the_automatic_kernel_has_most_of_the_critical_path_and_its_middle_execution_is_traced(tmp_path: Path) -> None:
    many = [("many(int)", 400)] * 5
    (tmp_path / "out_1_kernel_trace.csv").write_text(kernel_csv(("once(int)", 1500), *many, ("many_more(int)", 10)))
    assert kernel_to_trace(tmp_path, "auto") == ("many(int)", 3)
    assert kernel_to_trace(tmp_path, "once") == ("once(int)", 1)
    assert kernel_to_trace(tmp_path, "many(int)") == ("many(int)", 3)
    with pytest.raises(UsageError, match=r"2 kernels of this run are named 'many'; give a whole name or 'auto'"):
        kernel_to_trace(tmp_path, "many")
    with pytest.raises(UsageError, match=r"no kernels of this run .* most time: many\(int\), once\(int\)"):
        kernel_to_trace(tmp_path, "other")


def test_without_kernels_there_is_none_to_trace(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="the base pass saw no kernel"):
        kernel_to_trace(tmp_path, "auto")


# Markers and clocks of the measured process.


class Ranges:
    """A library of ranges that notes its calls."""

    _name = "made_by_a_test.so"

    def __init__(self) -> None:
        self.calls: list[bytes | None] = []

    def roctxRangePushA(self, name: bytes) -> None:
        self.calls.append(name)

    def roctxRangePop(self) -> None:
        self.calls.append(None)


def test_each_iteration_is_in_a_range_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Ranges()
    monkeypatch.setattr(inference_worker, "_roctx", lambda: library)
    markers = inference_worker._Markers(wanted=True, total=2)
    for i in range(2):
        markers.begin(i)
        markers.end()
    assert library.calls == [b"iteration 0", None, b"iteration 1", None]
    assert markers.note == {"library": "made_by_a_test.so", "missing": None}


def test_without_the_library_the_pass_says_so_and_unasked_it_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference_worker, "_ROCTX_LIBRARIES", ("libnone_here.so",))
    markers = inference_worker._Markers(wanted=True, total=1)
    markers.begin(0)
    markers.end()
    assert markers.note == {"library": None, "missing": "none of libnone_here.so can be loaded"}
    assert inference_worker._Markers(wanted=False, total=1).note is None


def test_the_boot_clock_is_read_together_with_the_monotonic_one() -> None:
    before = (time.clock_gettime_ns(time.CLOCK_BOOTTIME), time.perf_counter_ns())
    pair = inference_worker._boot_clock_pair()
    after = (time.clock_gettime_ns(time.CLOCK_BOOTTIME), time.perf_counter_ns())
    assert pair is not None
    assert before[0] <= pair["boottime_ns"] <= after[0]
    assert before[1] <= pair["monotonic_ns"] <= after[1]
    assert 0 < pair["uncertainty_ns"] < 100_000_000


@pytest.mark.parametrize(("parent", "status"), [(os.getppid(), 0), (2**22 + 1, 1)])
def test_below_a_profiler_only_who_asked_must_be_alive(parent: int, status: int, model: Path, tmp_path: Path) -> None:
    """This process stands between the measured one and its parent, as a profiler may; the other number is nobody's."""
    task = _job(
        MeasurementRequest(model=str(model), iterations=1),
        ModelChoice("m", model, "path", "none"),
        BackendEntry(provider=CPU),
    )
    (tmp_path / "job.json").write_text(json.dumps({**task, "pass": "base"}))
    worker = [sys.executable, "-P", inference_worker.__file__, str(tmp_path / "job.json"), str(tmp_path), str(parent)]
    done = subprocess.run([*worker, "nested"], capture_output=True, timeout=60, check=False)
    assert (done.returncode, (tmp_path / "pass.json").exists()) == (status, status == 0)


# Whole sessions.


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


@pytest.fixture
def model(tmp_path: Path) -> Path:
    shape = [1, 4]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"], name="double")],
        "made_by_a_test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    path = tmp_path / "double.onnx"
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


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


@needs_captures
@pytest.mark.parametrize(("release", "mode"), [("7.0", "ok"), ("7.1", "exec"), ("7.2", "ok"), ("7.13", "ok")])
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
    now = time.perf_counter_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert abs(offset - now) < uncertainty + 100_000_000
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
def test_what_goes_wrong_is_told_in_one_line(
    mode: str, settings: Mapping[str, Any], error: tuple[type[AacoError], str], stand_in: StandIn, measure: Measure
) -> None:
    csv_session(stand_in, mode)
    with pytest.raises(error[0], match=error[1]) as refused:
        measure(**settings)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("settings", [{"counters": "elsewhere"}, {"thread_trace": "auto"}])
def test_what_the_host_cannot_do_is_told_before_anything_is_measured(
    settings: Mapping[str, Any], stand_in: StandIn, measure: Measure, tmp_path: Path
) -> None:
    csv_session(stand_in)
    with pytest.raises(UnavailableError):
        measure(**settings)
    assert list((tmp_path / "raw").iterdir()) == []


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


@needs_captures
@pytest.mark.parametrize(("release", "decoder"), [("7.1", True), ("7.13", False)])
def test_a_thread_trace_that_stays_away_is_told_with_what_may_be_missing(
    release: str, decoder: bool, stand_in: StandIn, measure: Measure
) -> None:
    stand_in.plays(release)
    stand_in.delivers("base", "results.db", TRACED / "37ca13315e70" / "28_results.db")
    with pytest.raises(CaptureError, match=r"left no ui_output_agent_\*_dispatch_\*/filenames\.json") as refused:
        measure(thread_trace="auto")
    assert ("rocprof-trace-decoder" in str(refused.value)) == decoder


# Damaged captures.


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"folder": "../elsewhere"}, "not a place within the capture"),
        ({"folder": "/etc"}, "not a place within the capture"),
        ({"name": "../base"}, "not a place within the capture"),
        ({"kind": "other"}, r"rocprofv3\.passes\.0\.kind"),
        ({"distortion": "much"}, r"rocprofv3\.passes\.0\.distortion"),
        ({"folder": "rocprofv3/pass_9"}, "base.json: cannot be read"),
    ],
)
def test_a_damaged_section_is_refused_by_name(
    change: Mapping[str, Any], words: str, stand_in: StandIn, measure: Measure
) -> None:
    csv_session(stand_in)
    raw = measure()
    said = document(raw / "capture.json")
    said["rocprofv3"]["passes"][0] |= change
    (raw / "capture.json").write_text(json.dumps(said))
    with pytest.raises(CaptureError, match=words):
        inference_capture.read(raw)


def test_counter_passes_are_numbered_from_one() -> None:
    assert [one.name for one in counter_passes([["A"], ["B"]])] == ["counters_1", "counters_2"]
    assert rocprofv3.folder_name(1) == "pass_1"
