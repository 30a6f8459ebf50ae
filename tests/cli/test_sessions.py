"""`aaco ls` and `aaco show`: the sessions of a lake, and one of them."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from aaco_pipeline.lake.sql import select_rows
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.project import Project

Aaco = Callable[..., "subprocess.CompletedProcess[str]"]
Refused = Callable[..., str]


def test_ls_lists_newest_first_with_model_latency_and_disk_use(aaco: Aaco, measured: Project) -> None:
    lake = TraceLake(measured.lake)
    answer = aaco("ls")
    assert (answer.returncode, answer.stderr) == (0, "")
    lines = [line for line in answer.stdout.splitlines() if line.strip().startswith("2")]
    older, newer = lake.sessions()
    assert lines[0].split()[0] == newer
    assert lines[1].split()[0] == older
    assert "control_flow" in lines[0]
    assert "squeezenet" in lines[1]
    assert lines[2].startswith("2 sessions, ")
    assert lines[2].endswith(f" in {lake.path}")


def test_ls_keeps_ids_whole_on_a_narrow_screen(aaco: Aaco, measured: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = aaco("ls").stdout.splitlines()
    for session in TraceLake(measured.lake).sessions():
        assert len([line for line in lines if line.split()[:1] == [session]]) == 1
    assert any("left out" in line for line in lines)


def test_ls_with_json_has_the_units_of_the_lake(aaco: Aaco, measured: Project) -> None:
    lake = TraceLake(measured.lake)
    rows = json.loads(aaco("ls", "--json").stdout)
    assert [row["session_id"] for row in rows] == lake.sessions()[::-1]
    assert rows == json.loads(aaco("ls", "--format", "json").stdout)
    for row in rows:
        assert row["disk_bytes"] == lake.disk_bytes(row["session_id"])
        median = select_rows(
            lake,
            f"""SELECT value FROM session_metrics WHERE session_id = '{row["session_id"]}'
                AND metric = 'latency_p50' AND "pass" = 'latency'""",
        )
        assert row["latency_p50_ns"] == median.rows[0][0]
        assert row["started_at"].endswith("+00:00")


def test_ls_newest_limits_the_list(aaco: Aaco, measured: Project) -> None:
    rows = json.loads(aaco("ls", "-n", "1", "--json").stdout)
    assert [row["session_id"] for row in rows] == TraceLake(measured.lake).sessions()[-1:]


def test_ls_names_a_session_that_cannot_be_read_and_lists_the_others(aaco: Aaco, copied: Project) -> None:
    lake = TraceLake(copied.lake)
    older, newer = lake.sessions()
    lake.manifest_path(older, "session").write_text("{")
    answer = aaco("ls", project=copied)
    assert answer.returncode == 8
    assert answer.stderr.startswith(f"aaco: {lake.manifest_path(older, 'session')}: not a manifest")
    lines = [line.split() for line in answer.stdout.splitlines()]
    assert [line[1] for line in lines if line[:1] == [older]] == ["unreadable"]
    assert [line[-2:] for line in lines if line[:1] == [newer]] != []


def test_ls_of_a_lake_that_does_not_exist_yet_says_how_to_begin_and_makes_nothing(
    aaco: Aaco, refused: Refused, measured: Project, tmp_path: Path
) -> None:
    empty = Project(measured.root, tmp_path / "none", tmp_path / "home")
    answer = aaco("ls", project=empty)
    assert answer.returncode == 0
    assert "no sessions yet; `aaco run --model squeezenet` makes one" in answer.stdout
    assert json.loads(aaco("ls", "--json", project=empty).stdout) == []
    assert "no sessions yet" in refused(2, "show", project=empty)
    assert not empty.lake.exists()


def test_show_means_the_latest_session_unless_told(aaco: Aaco, measured: Project) -> None:
    older, newer = TraceLake(measured.lake).sessions()
    shown = [aaco("show", *name).stdout for name in ((), ("latest",), (newer,))]
    assert shown[0].startswith(newer)
    assert shown[0] == shown[1] == shown[2]
    assert aaco("show", older).stdout.startswith(older)


def test_show_takes_a_unique_prefix(aaco: Aaco, measured: Project) -> None:
    older, newer = TraceLake(measured.lake).sessions()
    shortest = next(older[:n] for n in range(1, len(older)) if not newer.startswith(older[:n]))
    assert aaco("show", shortest).stdout.startswith(older)


def test_show_refuses_an_ambiguous_prefix_and_names_the_candidates(refused: Refused, measured: Project) -> None:
    older, newer = TraceLake(measured.lake).sessions()
    line = refused(2, "show", "20")
    assert "'20' is ambiguous" in line
    assert older in line
    assert newer in line


def test_show_refuses_an_unknown_session_and_says_where_to_look(refused: Refused, measured: Project) -> None:
    line = refused(2, "show", "19700101T000000Z-00000000")
    assert "no session '19700101T000000Z-00000000'" in line
    assert "`aaco ls` lists them" in line


def test_show_tells_the_kernels_in_order_of_their_time_with_shares_that_add_up(aaco: Aaco, measured: Project) -> None:
    older = TraceLake(measured.lake).sessions()[0]
    document = json.loads(aaco("show", older, "--json").stdout)
    totals = [kernel["total_ns"] for kernel in document["top_kernels"]]
    assert totals == sorted(totals, reverse=True)
    assert 0 < sum(kernel["share_ratio"] for kernel in document["top_kernels"]) <= 1
    assert document["model_name"] == "squeezenet"
    assert {"item", "status", "reason"} == document["missing"][0].keys()
    assert all(row["status"] != "present" for row in document["missing"])


def test_show_tells_one_kernel_by_a_part_of_its_name(aaco: Aaco, measured: Project) -> None:
    older = TraceLake(measured.lake).sessions()[0]
    first = json.loads(aaco("show", older, "--json").stdout)["optimization_priority"][0]
    document = json.loads(aaco("show", older, "--kernel", first["name"], "--json").stdout)
    assert document["session_id"] == older
    assert document["kernel"]["kernel_id"] == first["kernel_id"]
    assert document["kernel"]["share_ratio"] == first["share_ratio"]
    told = aaco("show", older, "--kernel", first["name"])
    assert (told.returncode, told.stderr) == (0, "")
    assert first["name"] in told.stdout.splitlines()[0]


def test_show_refuses_a_kernel_that_is_none_or_several_in_one_line(refused: Refused, measured: Project) -> None:
    older = TraceLake(measured.lake).sessions()[0]
    assert "no kernel 'nonsense'" in refused(2, "show", older, "--kernel", "nonsense")
    assert "give more of the name" in refused(2, "show", older, "--kernel", "conv")
    assert "give one of them" in refused(2, "show", older, "--kernel", "conv", "--critical-path")
    assert "name it with --kernel" in refused(2, "show", older, "--faster", "2")
    assert "--faster" in refused(2, "show", older, "--kernel", "conv", "--faster", "0")


def test_show_computes_what_a_kernel_of_any_speed_would_save(aaco: Aaco, measured: Project) -> None:
    older = TraceLake(measured.lake).sessions()[0]
    first = json.loads(aaco("show", older, "--json").stdout)["optimization_priority"][0]
    asked = ("show", older, "--kernel", first["name"], "--faster")
    (four,) = json.loads(aaco(*asked, "4", "--json").stdout)["what_if"]
    assert four["speedup_ratio"] == 4.0
    # On one thread every nanosecond of a kernel is on the path, to the rounding of each dispatch.
    dispatches = json.loads(aaco("show", older, "--kernel", first["name"], "--json").stdout)["kernel"]["dispatch_count"]
    assert abs(four["saved_ns"] - four["critical_ns"] * 3 / 4) <= dispatches
    assert "4 times as fast" in aaco(*asked, "4").stdout
