"""Runs that count: under which profiler, what they leave, and that what they refuse costs nothing else.

No GPU is here: ncu and rocprofv3 are stand-ins that check what they are asked, run the program, and deliver files that
the test wrote.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from aaco_pipeline.errors import UnavailableError, UsageError
from aaco_pipeline.recording import archive
from aaco_pipeline.recording.keeper import descendants
from aaco_pipeline.recording.profilers import cupti, ncu, rocprofv3
from aaco_pipeline.recording.recorder import Recorded, record
from aaco_pipeline.recording.request import RecordRequest
from aaco_pipeline.resources.configuration import load_counter_sets
from aaco_pipeline.resources.host import kernel_files
from aaco_pipeline.resources.rocprofv3.counter_groups import CounterSets, unpacked
from tests.formats.ncu.test_ncu import RAW, row
from tests.places import ROOT

Record = Callable[..., Recorded]
#: The file `mode` beside the stand-in for ncu sets its behaviour; it writes its arguments to `asked`.
NCU: Final = """#!/bin/sh
here=$(dirname "$0")
case "$1" in
  --version) echo 'Version 2025.3.1.0 (build 1)'; exit ;;
  --query-metrics) for one in dram__bytes_read smsp__inst_executed; do echo "$one  Counter  byte  x"; done; exit ;;
esac
echo "$@" > "$here/asked"
env > "$here/environment"
while [ "$1" != --log-file ]; do shift; done
log=$2
shift 2
case $(cat "$here/mode") in
  refused) echo '==ERROR== ERR_NVGPUCTRPERM - The user does not have permission' > "$log"; exit 1 ;;
  busy) echo '==ERROR== Profiling failed because a driver resource was unavailable.' > "$log"; "$@"; exit 1 ;;
  idle) "$@"; echo '==WARNING== No kernels were profiled.' > "$log" ;;
  hang) sleep 600 & wait ;;
  crash) "$@"; kill -SEGV $$ ;;
  *) "$@"; status=$?; cp "$here/counted.csv" "$log"; exit $status ;;
esac
"""
ASK_THE_ARCHIVE: Final = """
import sys
sys.path.insert(0, sys.argv[1])
from aaco_pipeline.resources.rocprofv3.counter_groups import unpacked
print(unpacked().groups("mine", "gfx1100"))
try:
    unpacked().groups("mine", "gfx942")
except Exception as error:
    print(error)
"""
SETS: Final = CounterSets(
    "sets.yaml", {"basic": {"gfx942": ("SQ_WAVES",)}, "memory": {"gfx942": ("TCC_HIT_sum",)}}, {"gfx942": {"TCC": 1}}
)


@pytest.fixture
def recorded(tmp_path: Path) -> Record:
    """Records a program, once unless told otherwise, with the stand-ins in its path."""

    def make(*command: str, **settings: Any) -> Recorded:
        request = RecordRequest(command or ("true",), **{"runs": 1, "quiet": True, "counters": "basic", **settings})
        known = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        return record(request, tmp_path / "made", told.append, known, lambda: SETS)

    told: list[str] = []
    make.told = told  # type: ignore[attr-defined]
    return make


@pytest.fixture
def nvidia(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with CUPTI, which injects nothing, and the stand-in for ncu; the file that says its mode."""
    (tmp_path / "ncu").write_text(NCU)
    (tmp_path / "ncu").chmod(0o755)
    (tmp_path / "counted.csv").write_text(RAW + row(0, "k", "1", "2"))
    found = cupti.Injection(tmp_path / "none.so", cupti.Cupti((), tmp_path / "libcupti.so", 13, 130001))
    monkeypatch.setattr(cupti, "prepared", lambda *_: found)
    (tmp_path / "mode").write_text("ok")
    return tmp_path / "mode"


@pytest.fixture
def amd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with an MI300X and the stand-in for a rocprofv3 that reads counters from a file; the stand-in's home."""
    for number, target in enumerate((0, 90402)):
        (tmp_path / "nodes" / str(number)).mkdir(parents=True)
        (tmp_path / "nodes" / str(number) / "properties").write_text(f"gfx_target_version {target}\n")
    monkeypatch.setattr(kernel_files, "KFD_NODES", tmp_path / "nodes")
    monkeypatch.setattr(rocprofv3, "amd_cards", lambda _: [tmp_path])
    home = tmp_path / "home"
    for kind in ("base", "counters"):
        (home / kind).mkdir(parents=True)
    (home / "base" / "1__kernel_trace.csv").write_text("traced\n")
    (home / "settings.json").write_text(json.dumps({"release": "6.2", "mode": "ok"}))
    script = ROOT / "tests" / "resources" / "rocprofv3" / "rocprofv3_stand_in.py"
    (tmp_path / "rocprofv3").write_text(f'#!/bin/sh\nexec {sys.executable} -I {script} "$@"\n')
    (tmp_path / "rocprofv3").chmod(0o755)
    monkeypatch.setenv("STAND_IN", str(home))
    return home


def passes(made: Recorded) -> list[dict[str, Any]]:
    return list(json.loads((made.folder / "capture.json").read_text())["passes"])


def test_ncu_counts_all_sets_in_one_run_after_the_traced_one(nvidia: Path, recorded: Record, tmp_path: Path) -> None:
    made = recorded("sh", "-c", "exit 0", counters="memory, basic", runs=2)
    assert [(one["name"], one["kind"], one["profiler"]) for one in passes(made)] == [
        ("run_1", "run", None),
        ("run_2", "run", None),
        ("trace", "trace", "cupti"),
        ("counters_1", "counters", "ncu"),
    ]
    counted = passes(made)[-1]
    assert (counted["counters"], counted["reason"]) == (["dram__bytes_read.sum", "smsp__inst_executed.sum"], None)
    assert counted["command"][-3:] == ["sh", "-c", "exit 0"]
    assert (made.folder / "counters_1/ncu/ncu.csv").read_text() == (tmp_path / "counted.csv").read_text()
    assert (made.folder / "counters_1/run.json").is_file()
    assert made.failure is None
    profilers = json.loads((made.folder / "capture.json").read_text())["profilers"]
    assert [(one["name"], one["present"], one["version"]) for one in profilers][1:] == [
        ("cupti", True, "130001"),
        ("ncu", True, "2025.3.1.0"),
    ]


def test_ncu_counts_the_first_executions_of_each_kernel_and_nothing_else_looks_on(
    nvidia: Path, recorded: Record, tmp_path: Path
) -> None:
    """CUPTI in the program and ncu take the GPU's counters from each other."""
    recorded(count_first=3)
    assert "CUDA_INJECTION64_PATH" not in (tmp_path / "environment").read_text()
    words = nvidia.with_name("asked").read_text().split()
    assert words[words.index("--kernel-id") + 1] == ":::^(1|2|3)$"
    assert words[words.index("--kernel-name-base") + 1] == "mangled"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"count_first": 3, "counters": None}, "give --counters, too"),
        ({"count_first": 0}, "expected 1 to 100"),
        ({"counters": " "}, "counters is ' '"),
        ({"trace": "off"}, "--trace is off; leave one of them out"),
    ],
)
def test_what_cannot_be_counted_is_refused(settings: dict[str, Any], words: str, recorded: Record) -> None:
    with pytest.raises(UsageError, match=words):
        recorded(**settings)


def test_rocprofv3_is_not_asked_for_the_first_executions(amd: Path, recorded: Record) -> None:
    with pytest.raises(UsageError, match="rocprofv3 counts every launch, and runs none of them again"):
        recorded(count_first=3)


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("refused", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("busy", "ncu says: Profiling failed because a driver resource was unavailable."),
        ("idle", "the program launched no kernel"),
        ("crash", "the program was ended by SIGSEGV under ncu, and did not without it"),
    ],
)
def test_what_ncu_refuses_is_reported_and_is_no_failure_of_the_program(
    mode: str, words: str, nvidia: Path, recorded: Record
) -> None:
    nvidia.write_text(mode)
    made = recorded()
    assert made.failure is None
    assert words in passes(made)[-1]["reason"]
    assert [line for line in recorded.told if words in line]  # type: ignore[attr-defined]
    assert (made.folder / "trace/run.json").is_file()


def test_a_time_limit_ends_the_run_that_counts_with_all_its_processes(nvidia: Path, recorded: Record) -> None:
    nvidia.write_text("hang")
    others = set(descendants(os.getpid()))  # such as the confined reader that an earlier test has started
    made = recorded(timeout_seconds=1.0)
    assert made.failure is None
    assert "ncu did not end within the time limit; raise --timeout" in passes(made)[-1]["reason"]
    assert json.loads((made.folder / "counters_1/run.json").read_text())["timed_out"] is True
    assert set(descendants(os.getpid())) <= others


def test_rocprofv3_counts_each_group_in_a_run_of_its_own(amd: Path, recorded: Record) -> None:
    for number in (1, 2):
        (amd / "counters" / f"{number}__counter_collection.csv").write_text(f"counted {number}\n")
    made = recorded("sh", "-c", "exit 0", counters="basic,memory")
    assert [(one["name"], one["counters"], one.get("reason")) for one in passes(made)] == [
        ("run_1", [], None),
        ("trace", [], None),
        ("counters_1", ["SQ_WAVES"], None),
        ("counters_2", ["TCC_HIT_sum"], None),
    ]
    for number in (1, 2):
        (file,) = (made.folder / f"counters_{number}").rglob("*counter_collection.csv")
        assert file.read_text() == f"counted {number}\n"


def test_a_group_that_rocprofv3_refuses_is_reported_and_the_others_are_counted(amd: Path, recorded: Record) -> None:
    (amd / "counters" / "1__counter_collection.csv").write_text("counted\n")
    made = recorded("sh", "-c", "echo boom >&2", counters="basic,memory")
    assert [one.get("reason") for one in passes(made)[:3]] == [None] * 3
    assert passes(made)[3]["reason"] == (
        "counters: rocprofv3 left no out_*_counter_collection.csv of TCC_HIT_sum; the last words were: boom"
    )
    assert made.failure is None


def test_after_a_time_limit_no_further_group_is_tried(amd: Path, recorded: Record) -> None:
    """The third time, which is the first group's, the program hangs."""
    third = f"cd {amd}; echo >> times; test $(wc -l < times) -lt 3 || sleep 600"
    made = recorded("sh", "-c", third, counters="basic,memory", timeout_seconds=3.0)
    assert [one["name"] for one in passes(made)] == ["run_1", "trace", "counters_1"]
    assert made.failure is None


def test_without_a_profiler_that_traces_nothing_counts_and_nothing_is_made(
    recorded: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(*_: object) -> None:
        raise UnavailableError("not on this host")

    for profiler in (cupti, rocprofv3):
        monkeypatch.setattr(profiler, "prepared", absent)
    with pytest.raises(UnavailableError, match="leave --counters out, for no profiler of a GPU can be had here"):
        recorded()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("counters", "kind", "words"),
    [
        ("everything", UsageError, "unknown set 'everything'"),
        ("basic,", UsageError, "unknown set ''"),
        ("occupancy", UnavailableError, "none of the metrics of the set occupancy"),
    ],
)
def test_sets_that_mean_nothing_are_refused_before_anything_runs(
    counters: str, kind: type[Exception], words: str, nvidia: Path, recorded: Record
) -> None:
    with pytest.raises(kind, match=words):
        recorded(counters=counters)
    assert not nvidia.with_name("made").exists()


def test_without_ncu_nothing_is_run(
    nvidia: Path, recorded: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ncu").unlink()
    monkeypatch.setattr(ncu, "_INSTALLED", ())
    with pytest.raises(UnavailableError, match="install NVIDIA Nsight Compute"):
        recorded()
    assert not (tmp_path / "made").exists()


def test_a_program_that_fails_under_the_trace_is_not_counted(nvidia: Path, recorded: Record) -> None:
    made = recorded("sh", "-c", 'test -z "$CUDA_INJECTION64_PATH"')
    assert [one["name"] for one in passes(made)] == ["run_1", "trace"]
    assert made.failure is not None


def test_the_archive_carries_the_sets_of_the_project_that_wrote_it(tmp_path: Path) -> None:
    own = "counter_sets: {mine: [{architectures: [gfx1100], counters: [SQ_WAVES, GRBM_COUNT]}]}\n"
    (tmp_path / "counter_sets.yaml").write_text(own)
    file = tmp_path / archive.NAME
    archive.write_archive(file, load_counter_sets(tmp_path / "counter_sets.yaml"))
    asked = [sys.executable, "-I", "-S", "-c", ASK_THE_ARCHIVE, str(file)]
    said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
    assert said[0] == "(('SQ_WAVES',), ('GRBM_COUNT',))"
    assert said[1].startswith("counters: the set mine names none for gfx942, only for gfx1100; add them to configs/")


def test_outside_of_the_archive_there_are_no_packed_sets() -> None:
    with pytest.raises(UnavailableError, match="use `aaco record`"):
        unpacked()
