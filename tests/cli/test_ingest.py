"""`aaco ingest`: what it prints, what it makes, and every way in which it refuses.

The user's statement on devices is recorded as such, never replaces the capture's own, and stages follow it.

How often `aaco ingest` reads: every raw file is parsed once a process, every table at most once for each stage.
"""

import errno
import json
import os
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest

from aaco_pipeline.assets.stage import Outcome, Session, Stage, stages_of
from aaco_pipeline.errors import CaptureError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline import ingestion, session_stages
from aaco_pipeline.resources.confinement import client
from aaco_pipeline.resources.project import Project
from tests.cli.conftest import Aaco
from tests.places import ROOT, SHARED

needs_shared = pytest.mark.skipif(not (SHARED / "captures").is_dir(), reason="the shared captures are not here")
KERNELS = (
    '"Kind","Agent_Id","Queue_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id",'
    '"Start_Timestamp","End_Timestamp","Workgroup_Size_X","Grid_Size_X"\n'
    '"KERNEL_DISPATCH","Agent 1",1,77,1,5,"scale<int>(float*)",3,1000,2000,64,640\n'
    '"KERNEL_DISPATCH","Agent 1",1,77,2,5,"scale<int>(float*)",4,3000,4500,64,640\n'
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "capture"
    made.mkdir()
    (made / "out_kernel_trace.csv").write_text(KERNELS)
    (made / "notes.txt").write_text("hello")
    return made


def test_a_capture_becomes_a_session_with_every_stage(aaco: Aaco, copied: Project, folder: Path) -> None:
    answer = aaco("ingest", str(folder), "--workload", "my_kernel", project=copied)
    assert (answer.returncode, answer.stderr) == (0, "")
    lake = TraceLake(copied.lake)
    session = lake.sessions()[-1]
    assert session in answer.stdout
    (what,) = lake.read("sessions", session).to_dicts()
    assert (what["source_kind"], what["source_format"], what["workload"]) == ("capture", "rocprofv3-csv", "my_kernel")
    assert lake.read("dispatches", session).select("start_ns", "end_ns").rows() == [(0, 1000), (2000, 3500)]
    (whole,) = lake.read("timeline", session).to_dicts()
    assert (whole["busy_ns"], whole["active_ratio"]) == (2500, pytest.approx(2500 / 3500))
    assert not lake.report(session).exists(), "nobody asked for it yet"
    assert not lake.trace(session).exists()
    shown = aaco("show", "latest", project=copied).stdout
    assert "my_kernel, imported from rocprofv3-csv" in shown
    assert "This recording is incomplete: 2 activities of 2.5 µs in 3.5 µs" in shown


def test_keeping_originals_is_asked_of_the_copy(
    aaco: Aaco, copied: Project, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def copy(*arguments: object, keep_original: bool) -> None:
        asked.append(keep_original)
        raise CaptureError("enough")

    monkeypatch.setattr(ingestion, "copy_capture", copy)
    for option in ([], ["--keep-original"]):
        assert aaco("ingest", str(folder), *option, project=copied).returncode == 6
    assert asked == [False, True]


def test_ingesting_again_gives_the_same_session(aaco: Aaco, copied: Project, folder: Path) -> None:
    first = json.loads(aaco("ingest", str(folder), "--json", project=copied).stdout)
    again = json.loads(aaco("ingest", str(folder), "--json", project=copied).stdout)
    assert [one["already_known"] for one in (first[0], again[0])] == [False, True]
    assert first[0]["session_id"] == again[0]["session_id"]
    assert "already in the lake" in aaco("ingest", str(folder), project=copied).stdout


def test_a_dry_run_tells_file_by_file_and_changes_nothing(aaco: Aaco, copied: Project, folder: Path) -> None:
    before = TraceLake(copied.lake).captured()
    answer = aaco("ingest", str(folder), "--dry-run", project=copied)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "out_kernel_trace.csv" in answer.stdout
    assert "notes.txt" in answer.stdout
    assert "not recognized as any known capture format" in answer.stdout
    (run,) = json.loads(aaco("ingest", str(folder), "--dry-run", "--json", project=copied).stdout)["runs"]
    assert [part["format"] for part in run["parts"]] == ["rocprofv3-csv"]
    assert TraceLake(copied.lake).captured() == before


@pytest.mark.parametrize("content", [None, b"", b"SQLite format 3\0rocpd_metadata_x", b"\x1f\x8b broken"])
def test_what_cannot_be_read_is_one_line_and_exit_6(
    aaco: Aaco, copied: Project, tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "9_results.db"
    if content is not None:
        path.write_bytes(content)
    before = TraceLake(copied.lake).captured()
    answer = aaco("ingest", str(path), project=copied)
    assert answer.returncode == 6
    assert answer.stdout.strip() in ("", "0 new sessions of 1 run; `aaco show latest` shows the newest")
    assert "9_results.db" in answer.stderr
    assert "Traceback" not in answer.stderr
    assert TraceLake(copied.lake).captured() == before


def test_a_refused_run_is_reported_in_one_line_and_the_others_are_taken(
    aaco: Aaco, copied: Project, folder: Path
) -> None:
    (folder / "other").mkdir()
    (folder / "other/9_results.db").write_bytes(
        b"SQLite format 3\0 rocpd_metadata_x rocpd_kernel_dispatch" + b"\0" * 99
    )
    answer = aaco("ingest", str(folder), project=copied)
    assert answer.returncode == 6
    (line,) = answer.stderr.splitlines()
    assert line.startswith("aaco: not taken: ")
    assert "9_results.db" in line
    assert "1 new session of 2 runs" in answer.stdout
    again = aaco("ingest", str(folder), "--partial-ok", project=copied)
    assert (again.returncode, again.stderr) == (0, answer.stderr), "the reason is printed again"
    alone = aaco("ingest", str(folder / "other"), "--partial-ok", project=copied)
    assert alone.returncode == 6, "no run was taken"


def test_a_capture_whose_analysis_broke_off_is_finished_when_ingested_again(
    aaco: Aaco, copied: Project, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(session_stages, "require_kept", killed)
        assert aaco("ingest", str(folder), project=copied).returncode == 130
    (half,) = set(TraceLake(copied.lake).captured()) - set(TraceLake(copied.lake).sessions()[:2])
    answer = aaco("ingest", str(folder), project=copied)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert f"{half}  {folder}: 1 part, attempt 2" in answer.stdout
    assert "0 new sessions, 1 finished of 1 run" in answer.stdout
    lake = TraceLake(copied.lake)
    assert {entry.stage for entry in lake.manifest(half).entries} >= set(stages_of("ingested"))
    assert "already in the lake" in aaco("ingest", str(folder), project=copied).stdout


def test_a_full_disk_is_the_lakes_and_the_next_attempt_takes_the_capture(
    aaco: Aaco, copied: Project, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **settings: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(ingestion, "copy_capture", full)
        answer = aaco("ingest", str(folder), project=copied)
    assert answer.returncode == 8
    (line,) = answer.stderr.splitlines()
    assert "No space left on device; check that the lake's disk" in line
    assert "1 part, attempt 2" in aaco("ingest", str(folder), project=copied).stdout


@needs_shared
def test_a_cut_database_is_refused_and_an_rpd_file_is_known(aaco: Aaco, copied: Project, tmp_path: Path) -> None:
    source = SHARED / "captures/mi300x_att_ck_batched_gemm/37ca13315e70/28_results.db"
    (tmp_path / "in").mkdir()
    (tmp_path / "in/28_results.db").write_bytes(source.read_bytes()[:800_000])
    cut = aaco("ingest", str(tmp_path / "in"), project=copied)
    assert cut.returncode == 6
    assert "in/28_results.db: cut off: 800000 bytes of 1601536" in cut.stderr
    rpd = SHARED / "captures/rpd_not_rocprofv3/matmul_result.rpd"
    told = aaco("ingest", str(rpd), "--dry-run", project=copied)
    assert told.returncode == 0
    assert "RPD database of rocmProfileData" in told.stdout


@needs_shared
def test_the_same_database_twice_is_read_once(aaco: Aaco, copied: Project, tmp_path: Path) -> None:
    source = SHARED / "captures/mi300x_att_ck_batched_gemm/37ca13315e70/28_results.db"
    (tmp_path / "in").mkdir()
    for name in ("28_results.db", "copy_of_28_results.db"):
        shutil.copy(source, tmp_path / "in" / name)
    answer = aaco("ingest", str(tmp_path / "in"), "--json", project=copied)
    assert answer.returncode == 0, answer.stderr
    session = json.loads(answer.stdout)[0]["session_id"]
    lake = TraceLake(copied.lake)
    assert lake.read("dispatches", session).height == 151
    reasons = [row["reason"] or "" for row in lake.read("evidence", session).to_dicts()]
    assert any("repeats the process of" in reason for reason in reasons)


@needs_shared
@pytest.mark.parametrize("folder", ["captures/mi300x_att_ck_batched_gemm", "kineto/a100_alexnet_cudasync.json.gz"])
def test_real_captures_pass_every_check(aaco: Aaco, copied: Project, folder: str) -> None:
    answer = aaco("ingest", str(SHARED / folder), "--json", project=copied)
    assert (answer.returncode, answer.stderr) == (0, "")
    (one,) = json.loads(answer.stdout)
    lost = [row for row in one["rows"] if row["rows_out"] < row["rows_in"] and not row["reason"]]
    assert not lost
    shown = json.loads(aaco("show", one["session_id"], "--json", project=copied).stdout)
    assert shown["timeline"]
    assert all(0 < row["active_ratio"] <= 1 for row in shown["timeline"])


KERNELS_AMEND = (
    '"Kind","Agent_Id","Queue_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id",'
    '"Start_Timestamp","End_Timestamp","Workgroup_Size_X","Grid_Size_X"\n'
    '"KERNEL_DISPATCH","Agent 1",1,77,1,5,"{name}",3,1000,2000,64,640\n'
)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(ROOT, tmp_path / "lake", tmp_path / "home")


def capture(folder: Path, name: str = "scale") -> str:
    folder.mkdir()
    (folder / "out_kernel_trace.csv").write_text(KERNELS_AMEND.format(name=name))
    return str(folder)


def devices(project: Project) -> list[dict[str, Any]]:
    lake = TraceLake(project.lake)
    (session,) = lake.sessions()
    return lake.read("devices", session).select("arch", "arch_source", "product").to_dicts()


def ceilings(project: Project) -> int:
    lake = TraceLake(project.lake)
    return lake.read("ceilings", lake.sessions()[0]).height


def test_what_is_stated_later_is_the_persons_and_the_stages_run_again(
    aaco: Aaco, project: Project, tmp_path: Path
) -> None:
    assert aaco("ingest", capture(tmp_path / "in"), project=project).returncode == 0
    assert devices(project) == [{"arch": None, "arch_source": None, "product": None}]
    assert ceilings(project) == 0
    answer = aaco("amend", "latest", "--arch", "gfx90a", "--product", "MI250X", "--json", project=project)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert json.loads(answer.stdout)["stated"] == {"arch": "gfx90a", "product": "MI250X"}
    assert devices(project) == [{"arch": "gfx90a", "arch_source": "user", "product": "MI250X"}]
    assert ceilings(project) > 0
    lake = TraceLake(project.lake)
    evidence = lake.read("evidence", lake.sessions()[0]).rows_by_key("item", named=True, unique=True)
    assert evidence["architecture of device 0"]["reason"] == (
        "gfx90a: stated by the user; the capture does not name it"
    )
    assert aaco("doctor", "--prove", "latest", project=project).returncode == 0


def test_what_is_stated_with_the_capture_holds_from_the_start(aaco: Aaco, project: Project, tmp_path: Path) -> None:
    path = capture(tmp_path / "in")
    assert aaco("ingest", path, "--product", "MI300X", project=project).returncode == 0
    assert devices(project) == [{"arch": "gfx942", "arch_source": "user", "product": "MI300X"}]
    again = aaco("ingest", path, "--arch", "gfx950", project=project)
    assert again.returncode == 0
    assert "nothing was stated of sessions already in the lake; `aaco amend SESSION` does that" in again.stderr
    assert devices(project)[0]["arch"] == "gfx942"


def test_a_hint_gives_way_to_the_user(aaco: Aaco, project: Project, tmp_path: Path) -> None:
    assert aaco("ingest", capture(tmp_path / "in", "gemm_gfx942"), project=project).returncode == 0
    assert devices(project)[0]["arch_source"] == "kernel names"
    assert aaco("amend", "latest", "--arch", "gfx950", project=project).returncode == 0
    assert devices(project) == [{"arch": "gfx950", "arch_source": "user", "product": None}]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "nothing is stated; give --arch, --product or both"),
        (("--arch", "gfx9"), "nothing is known of the architecture gfx9"),
        (("--product", "GeForce"), "no product, or several, are called GeForce"),
        (("--arch", "gfx90a", "--product", "MI300X"), "MI300X is gfx942, not gfx90a; state the one that is right"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_and_nothing_changes(
    aaco: Aaco, copied: Project, options: tuple[str, ...], words: str
) -> None:
    before = TraceLake(copied.lake).manifest(TraceLake(copied.lake).sessions()[-1])
    answer = aaco("amend", "latest", *options, project=copied)
    assert answer.returncode == 2
    assert words in answer.stderr
    assert len(answer.stderr.splitlines()) == 1
    assert TraceLake(copied.lake).manifest(before.id) == before


def test_what_the_capture_says_itself_is_not_overruled(aaco: Aaco, copied: Project) -> None:
    answer = aaco("amend", "latest", "--arch", "gfx942", project=copied)
    assert answer.returncode == 2
    assert "the capture itself says what its devices are" in answer.stderr


PASSES: Final = SHARED / "captures" / "mi300x_rocpd_pmc_passes"
pytestmark = pytest.mark.skipif(not PASSES.is_dir(), reason=f"{PASSES} is not here: AACO_SHARED names the folder")


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count requests to a confined child by kind of work from now on; no capture is open yet."""
    real, found = client.answered, Counter[str]()

    def answered(request: Mapping[str, Any], *arguments: Any) -> Any:
        found[request["work"]] += 1
        return real(request, *arguments)

    monkeypatch.setattr(client, "answered", answered)
    monkeypatch.setattr(client, "answered", answered)
    monkeypatch.setattr(client, "_OPENED", {})
    return found


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> dict[str, Counter[str]]:
    """Count how often each published file is read whole, by the stage that runs."""
    found: dict[str, Counter[str]] = {}
    doing = [""]
    real_call, real_read = Stage.__call__, pl.read_parquet

    def call(one: Stage, session: Session) -> Outcome:
        doing[0] = one.name
        return real_call(one, session)

    def read(path: Path, **settings: Any) -> pl.DataFrame:
        found.setdefault(doing[0], Counter())[str(path)] += 1
        return real_read(path, **settings)

    monkeypatch.setattr(Stage, "__call__", call)
    monkeypatch.setattr(pl, "read_parquet", read)
    return found


def test_every_file_is_parsed_once_and_every_table_read_once_a_stage(
    aaco: Aaco, copied: Project, parsed: Counter[str], reads: dict[str, Counter[str]]
) -> None:
    answer = aaco("ingest", str(PASSES), project=copied)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert parsed == dict.fromkeys(("discover", "copy"), 1)  # what copies also reads
    again = [(stage, Path(file).parts[-3]) for stage in reads for file, count in reads[stage].items() if count > 1]
    assert again == [("completeness", "dispatches")]  # other columns than those that stages share
    assert "timeline" in reads, "no read was counted"
