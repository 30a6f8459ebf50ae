"""`aaco report` of a search for a faster kernel: a page, text, Markdown and JSON, by its id or the beginning of it.

`aaco perfetto`: a trace made when it is asked for, printed by its path, and made again only when it is older.
"""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from aaco_pipeline.cli.main import main
from aaco_pipeline.cli.report import written
from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.project import HOME_VARIABLE, LAKE_VARIABLE, Project
from tests.report.searched import searched


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[TraceLake, str]:
    """A lake with one search."""
    with pytest.MonkeyPatch.context() as patched:
        return searched(tmp_path_factory.mktemp("kept"), patched)


@pytest.fixture
def name(kept: tuple[TraceLake, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv(LAKE_VARIABLE, str(kept[0].path))
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    return kept[1]


def test_the_page_goes_into_the_lake_and_an_id_may_be_short(
    kept: tuple[TraceLake, str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", name[:-3]]) == 0
    page = kept[0].search_page(name)
    assert capsys.readouterr().out == f"{page}\n"
    assert page.read_text().startswith("<!doctype html>") and name in page.read_text()


def test_each_form_gives_the_answer(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for form in ("terminal", "markdown"):
        assert main(["report", name, "--format", form]) == 0
        printed = capsys.readouterr().out
        assert main(["report", name, "--format", form, "--output", str(tmp_path / form)]) == 0
        assert "times as fast on cpu-emulation" in " ".join(printed.replace("\\", "").split())
        assert (tmp_path / form).read_text().split() == printed.split()
        capsys.readouterr()
    assert "```diff\n--- a/twice.hip\n" in (tmp_path / "markdown").read_text()
    assert main(["report", name, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["gain"]["speedup_ratio"] == pytest.approx(1.25)
    assert document["evidence"]["timings"][-1]["step"] == "confirmation"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(("optimize-nothing",), "is not in this lake"), (("{name}", "--format", "junit"), "of verdicts")],
)
def test_what_is_not_there_is_two_and_one_line(
    name: str, arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *(one.replace("{name}", name) for one in arguments)]) == 2
    printed = capsys.readouterr().err
    assert told in printed and printed.count("\n") == 1


Aaco = Callable[..., "subprocess.CompletedProcess[str]"]


def test_a_trace_is_made_when_it_is_asked_for(aaco: Aaco, copied: Project, tmp_path: Path) -> None:
    lake = TraceLake(copied.lake)
    session = lake.sessions()[-1]
    path = lake.trace(session)
    path.unlink(missing_ok=True)
    answer = aaco("perfetto", project=copied)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, f"{path}\n", "")
    made = path.stat().st_ino
    file = tmp_path / "deep" / "trace.gz"
    answer = aaco("perfetto", session, "--output", str(file), project=copied)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, f"{file}\n", "")
    assert file.read_bytes() == path.read_bytes()
    assert path.stat().st_ino == made
    assert aaco("doctor", project=copied).returncode == 0


def test_no_path_is_printed_of_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LakeError, match=r"trace.gz: the lake cannot be written; name another file with --output"):
        written(b"a trace", tmp_path / "trace.gz", None)
