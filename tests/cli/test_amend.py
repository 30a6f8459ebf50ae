"""What a person states of devices is recorded as theirs, never in place of the capture's word, and stages follow it."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.project import Project
from tests.places import ROOT

Aaco = Callable[..., "subprocess.CompletedProcess[str]"]
KERNELS = (
    '"Kind","Agent_Id","Queue_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id",'
    '"Start_Timestamp","End_Timestamp","Workgroup_Size_X","Grid_Size_X"\n'
    '"KERNEL_DISPATCH","Agent 1",1,77,1,5,"{name}",3,1000,2000,64,640\n'
)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(ROOT, tmp_path / "lake", tmp_path / "home")


def capture(folder: Path, name: str = "scale") -> str:
    folder.mkdir()
    (folder / "out_kernel_trace.csv").write_text(KERNELS.format(name=name))
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
        "gfx90a: stated by a person; the capture does not name it"
    )
    assert aaco("doctor", "--prove", "latest", project=project).returncode == 0


def test_what_is_stated_with_the_capture_holds_from_the_start(aaco: Aaco, project: Project, tmp_path: Path) -> None:
    path = capture(tmp_path / "in")
    assert aaco("ingest", path, "--product", "MI300X", project=project).returncode == 0
    assert devices(project) == [{"arch": "gfx942", "arch_source": "user", "product": "MI300X"}]
    again = aaco("ingest", path, "--arch", "gfx950", project=project)
    assert again.returncode == 0
    assert "nothing was stated; `aaco amend SESSION` does that" in again.stderr
    assert devices(project)[0]["arch"] == "gfx942"


def test_a_hint_gives_way_to_a_person(aaco: Aaco, project: Project, tmp_path: Path) -> None:
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
