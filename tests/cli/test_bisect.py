"""`aaco bisect` from its builds to its exit code: really made and measured, planned alone, and what it refuses."""

import json
from pathlib import Path

import polars as pl
import pytest

from aaco_pipeline.cli.bisect import labels_of, specifications_in
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline import bisecting
from aaco_pipeline.resources.project import Project
from aaco_pipeline.statistics import bisection
from tests.cli.conftest import Aaco, Refused
from tests.pipeline.test_bisecting import COPY, write_model
from tests.resources.toolchains.test_builds import git


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A good revision, one that cannot be made, and one with another model."""
    made = tmp_path / "engine"
    made.mkdir()
    git(made, "init", "-q", "-b", "main")
    for number, scale in enumerate((1.0, None, 2.0)):
        (made / "m.onnx").unlink(missing_ok=True)
        if scale is not None:
            write_model(made / "m.onnx", scale=scale)
        (made / "number").write_text(str(number))
        git(made, "add", "-A")
        git(made, "commit", "-q", "-m", f"Number {number}")
        git(made, "tag", f"v{number}")
    return made


@pytest.mark.nightly
def test_a_search_makes_measures_and_answers(
    aaco: Aaco, place: Project, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bisecting, "DEFAULT_BLOCKS", 1)
    monkeypatch.setattr(bisecting, "TRACED_BLOCKS", 1)
    monkeypatch.setattr(bisection, "LOOKS", (3, bisection.MOST_BLOCKS))
    ratios = bisecting.log_ratios
    # Two sessions of so little work differ by chance alone: what is measured is really measured, and then told apart.
    monkeypatch.setattr(bisecting, "log_ratios", lambda lake, plan: ratios(lake, plan) * 0.001 + 0.7)
    asked = ("bisect", "--revisions", "v0..v2", "--repository", str(repository), "--make", COPY)
    done = aaco(*asked, "--iterations", "3", "--warmup", "1", "--json", project=place)
    assert done.returncode == 5, done.stderr
    assert "build 1 (" in done.stderr and "could not be made: " in done.stderr
    assert "No such file or directory: 'm.onnx'" in done.stderr  # the last lines of what made it
    document = json.loads(done.stdout)
    assert document["answer"]["answer"] == "range"
    assert (document["answer"]["after"], document["answer"]["until"]) == (0, 2)
    assert [one["state"] for one in document["builds"]] == ["good", "failed", "bad"]
    assert document["pair"]["blocks"] == {"latency_finished": 1, "trace_finished": 1}
    assert document["spent"]["blocks"] == 3
    assert document["spent"]["time_ns"] > 0
    assert document["foretold"]["blocks"] is None

    lake, name = TraceLake(place.lake), document["bisection_id"]
    assert lake.read("campaign_sessions").get_column("stages_ns").null_count() == 0
    again = aaco("bisect", "--resume", name, "--strict", project=place)
    assert again.returncode == 7  # a range names no build
    assert "The change came after build 0 (revision " in again.stdout
    assert "could not be made: " in again.stdout
    assert lake.read("campaigns").height == 2
    assert aaco("doctor", project=place).returncode == 0
    planned = aaco(*asked, "--iterations", "3", "--warmup", "1", "--plan", "--json", project=place)
    assert json.loads(planned.stdout)["history"]["session_ns"] > 0
    assert lake.read("bisections").height == 1


@pytest.fixture
def builds(tmp_path: Path) -> Path:
    """A file of two builds, with options, a remark and an empty line."""
    names = [write_model(tmp_path / f"{name}.onnx") for name in ("old", "new")]
    file = tmp_path / "builds.txt"
    file.write_text("# oldest first\n\n" + "".join(f"{name} --threads 1\n" for name in names))
    return file


def test_a_plan_measures_nothing_and_makes_no_lake(aaco: Aaco, place: Project, builds: Path) -> None:
    told = aaco("bisect", "--builds", str(builds), "--plan", project=place)
    assert told.returncode == 0
    assert "2 builds" in told.stdout
    assert "No campaign of this workload with these options was measured on this host" in told.stdout
    assert "Nothing was measured." in told.stdout
    compared = aaco("compare", "--baseline", "control_flow", "--candidate", "control_flow", "--plan", project=place)
    assert (compared.returncode, compared.stderr) == (0, "")
    assert "10 blocks of 2 sessions, then 5 traced blocks." in compared.stdout
    assert not place.lake.exists()


def test_a_file_of_builds_is_read_line_by_line(builds: Path) -> None:
    lines = specifications_in(str(builds))
    assert len(lines) == 2
    assert labels_of(lines) == [str(builds.with_name(f"{name}.onnx")) for name in ("old", "new")]
    assert labels_of(["a --threads 1", "a --threads 2"]) == ["a --threads 1", "a --threads 2"]
    assert labels_of(["a", "a"]) == ["a", "a"]


@pytest.fixture
def files(builds: Path, repository: Path) -> dict[str, str]:
    """Files of builds and a repository, by what stands for them."""
    folder = builds.parent
    write_model(folder / "wide.onnx", width=16)
    (folder / "empty.txt").write_text("# nothing\n")
    (folder / "other.txt").write_text(f"{folder}/old.onnx\n{folder}/wide.onnx\n")
    (folder / "gone.txt").write_text(f"{folder}/old.onnx\n{folder}/gone.onnx\n")
    named = {name.upper(): str(folder / f"{name}.txt") for name in ("empty", "other", "gone")}
    return {**named, "FILE": str(builds), "REPOSITORY": str(repository)}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give --builds or --revisions, or a search to --resume"),
        (("--builds", "FILE", "--revisions", "v0..v2"), "give --builds or --revisions"),
        (("--builds", "/no/file"), "/no/file: No such file or directory; give a file with a SPEC on each line"),
        (("--builds", "FILE", "--threads", "2"), "--threads goes with --revisions; with --builds each line"),
        (("--builds", "FILE", "--make", "make"), "--make goes with --revisions"),
        (("--builds", "EMPTY"), "there is nothing between one build and itself: give two or more"),
        (("--builds", "OTHER"), "takes x float32 [4, 16], and the first build x float32 [4, 8]"),
        (("--builds", "GONE"), "gone.onnx: no such file"),
        (("--revisions", "v0..v2", "--repository", "REPOSITORY"), "--revisions needs --make"),
        (("--revisions", "v0..v2", "--make", "make all"), "put {output} where the file to make is named"),
        (("--revisions", "v0..v9", "--repository", "REPOSITORY", "--make", "x {output}"), "'v9' is no revision of "),
        (("--revisions", "v2..v0", "--repository", "REPOSITORY", "--make", "x {output}"), "nothing follows v2"),
        (("--revisions", "v0", "--repository", "REPOSITORY", "--make", "x {output}"), "'v0' is no range of revisions"),
        (("--revisions", "v0..v1", "--repository", "/", "--make", "x {output}"), "not a git repository"),
        (("--revisions", "a..b", "--make", "x {output}", "--model", "m", "--interpreter", "p"), "leave --interpreter"),
        (("--revisions", "a..b", "--make", "x {output}", "--make-timeout", "0"), "is not in the range"),
        (("--resume", "bisection-none"), "no search 'bisection-none' in "),
        (("--resume", "bisection-none", "--builds", "FILE"), "give --resume alone"),
        (("--resume", "bisection-none", "--plan"), "give --resume alone"),
    ],
)  # fmt: skip
def test_what_is_no_search_is_refused_in_one_line_and_no_lake_is_made(
    arguments: tuple[str, ...], words: str, refused: Refused, place: Project, files: dict[str, str]
) -> None:
    code = 3 if "GONE" in arguments else 2
    assert words in refused(code, "bisect", *(files.get(word, word) for word in arguments), project=place)
    assert not place.lake.exists()


def test_a_first_build_that_cannot_be_made_ends_the_search_in_one_line(
    aaco: Aaco, place: Project, repository: Path
) -> None:
    asked = ("bisect", "--revisions", "v1..v2", "--repository", str(repository), "--make", COPY)
    done = aaco(*asked, project=place)
    assert (done.returncode, done.stdout) == (3, "")
    last = done.stderr.splitlines()[-1]
    assert "“Number 1”), the first, could not be made: " in last
    assert "`aaco bisect --resume bisection-" in last
    states = TraceLake(place.lake).read("bisection_builds").get_column("state")
    assert states.cast(pl.String).to_list() == ["planned", "planned"]
