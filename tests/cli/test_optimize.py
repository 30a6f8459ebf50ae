"""`aaco optimize`: what it prints and exits with; the search itself is tested with its modules."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import click
import pytest

from aaco_pipeline.cli.main import main
from aaco_pipeline.cli.optimize import budget_ns, optimize, threshold_ratio
from aaco_pipeline.pipeline.optimizing import asking, search
from aaco_pipeline.resources.project import HOME_VARIABLE, LAKE_VARIABLE
from aaco_pipeline.resources.targets.cpu.compiler import find_compiler
from tests.pipeline.optimizing.stand_in import BROKEN, SOURCE, InProcess, Offers, costing, written

FASTER = costing(8000)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A source with its harness; a search on it is offered what does not compile, and what is faster."""
    for name, value in ((LAKE_VARIABLE, "lake"), (HOME_VARIABLE, "home"), ("AACO_CACHE", "cache")):
        monkeypatch.setenv(name, str(tmp_path / value))
    monkeypatch.setattr(search, "measurement_slot", lambda on_wait: nullcontext())
    monkeypatch.setattr(search, "choose_target", lambda choice: InProcess())
    monkeypatch.setattr(search, "static_of", lambda folder, launch: (None, "no compiler for AMD GPUs"))
    monkeypatch.setattr(search, "proposers_of", lambda configs, kept: (Offers(BROKEN, FASTER),))
    (folder := tmp_path / "mine").mkdir()
    yield written(folder)


def test_it_ends_with_every_attempt_and_the_answer_in_a_sentence(
    source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for width in (80, 120, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        assert main(["optimize", str(source)]) == 0
        printed = capsys.readouterr()
        assert max(map(len, printed.out.splitlines())) <= width
        told = " ".join(printed.out.split())
        assert "twice is 1.25 [1.2" in told and "times as fast on cpu-emulation" in told
        assert "its speed on an AMD GPU was not measured" in told and "The source is as it was" in told
        assert "A/A" in printed.err and "0 offer 0: rejected (compile)" in printed.err
    assert source.read_bytes() == SOURCE


def test_json_has_the_gain_the_attempts_and_where_all_of_it_lies(
    source: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["optimize", str(source), "--json", "--apply", "--strict"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["gain"]["speedup_ratio"] == pytest.approx(1.25, rel=0.01)
    assert [row["decision"] for row in document["attempts"]] == ["rejected", "accepted"]
    assert document["is_applied"] and source.read_bytes() == FASTER
    assert (tmp_path / "lake" / document["journal"]).is_file() and (tmp_path / "lake" / document["patch"]).is_file()


def test_what_could_not_be_decided_in_time_is_seven_when_strict(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["optimize", str(source), "--strict", "--budget", "0.000001s"]) == 7
    assert "Nothing was decided about twice: " in " ".join(capsys.readouterr().out.split())


def test_a_replay_says_whether_every_decision_came_out_as_recorded(
    source: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["optimize", str(source), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert main(["optimize", "--replay", document["optimization_id"]]) == 0
    assert "3 decisions made again from the journal: all came out as recorded" in capsys.readouterr().out
    changed = tmp_path / "changed.jsonl"
    journal = (tmp_path / "lake" / document["journal"]).read_text()
    changed.write_text(journal.replace('"decision": "accepted"', '"decision": "rejected"'))
    assert main(["optimize", "--replay", str(changed), "--json"]) == 9
    assert not json.loads(capsys.readouterr().out)["is_same"]


def test_a_missing_harness_is_begun_on_standard_output(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (source.parent / "twice_harness.py").unlink()
    assert main(["optimize", str(source)]) == 2
    printed = capsys.readouterr()
    compile(printed.out, "begun", "exec")
    assert 'kernel="twice"' in printed.out and "no harness" in printed.err and printed.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "give a SOURCE"),
        (["{source}", "--samples", "x"], "give a SOURCE"),
        (["{source}", "--budget", "soon"], "10m"),
        (["{source}", "--budget", "0s"], "10m"),
        (["{source}", "--threshold", "200%"], "2%"),
        (["{source}", "--kernel", "other"], "other"),
        (["{source}", "--session", "latest"], "session"),
        (["--replay", "nothing"], "not in this lake"),
        (["no.hip"], "No such file"),
    ],
)
def test_bad_usage_is_two_and_one_line(
    source: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert main(["optimize", *(one.replace("{source}", str(source)) for one in arguments)]) == 2
    printed = capsys.readouterr()
    assert told in printed.err and printed.err.startswith("aaco: ") and printed.err.count("\n") == 1
    assert printed.out == "" and source.read_bytes() == SOURCE


def test_without_a_compiler_it_is_four(
    source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "choose_target", asking.choose_target)
    monkeypatch.setenv("PATH", str(source.parent))
    monkeypatch.setattr(asking, "find_compiler", find_compiler.__wrapped__)  # which one there is was asked before
    assert main(["optimize", str(source), "--target", "cpu"]) == 4
    assert "no C++ compiler" in capsys.readouterr().err


def test_samples_are_copied_once_and_never_over_something_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "kernels"
    assert main(["optimize", "--samples", str(folder)]) == 0
    sources = capsys.readouterr().out.split()
    assert len(sources) >= 6 and all((folder / f"{Path(one).stem}_harness.py").is_file() for one in sources)
    Path(sources[0]).write_text("mine")
    assert main(["optimize", "--samples", str(folder)]) == 2
    assert Path(sources[0]).read_text() == "mine" and "differs" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "nanoseconds"), [("90s", 90e9), ("10m", 600e9), ("1.5h", 5400e9), (" 2 m ", 120e9)])
def test_times_are_read(text: str, nanoseconds: float) -> None:
    assert budget_ns(_context(), _parameter("budget"), text) == nanoseconds


@pytest.mark.parametrize(("text", "ratio"), [("2%", 0.02), ("0.02", 0.02), ("0", 0.0), ("2.5 %", 0.025)])
def test_gains_are_read(text: str, ratio: float) -> None:
    assert threshold_ratio(_context(), _parameter("threshold"), text) == pytest.approx(ratio)


def test_help_imports_neither_dagster_nor_anything_of_the_search() -> None:
    code = "import sys; from aaco_pipeline.cli.main import main; main(['optimize', '--help']); " + (
        "print([one for one in ('dagster', 'numpy', 'polars', 'tree_sitter', 'scipy') if one in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout.splitlines()[-1] == "[]"


def _context() -> click.Context:
    return click.Context(optimize)


def _parameter(name: str) -> click.Parameter:
    return next(one for one in optimize.params if one.name == name)
