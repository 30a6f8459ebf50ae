"""Builds that are there do the same work; one that is made is kept, and leaves nothing else behind.

A search goes from build to build to the right answer, whatever fails or is killed on the way.
"""

import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.errors import AacoError, ModelError, UsageError
from aaco_pipeline.lake import health
from aaco_pipeline.lake.artefacts import ARTEFACTS, BUILDS
from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline import bisecting as module
from aaco_pipeline.pipeline.bisecting import (
    Build,
    Floats,
    Recipe,
    Search,
    builds_there,
    from_revision,
    go_on,
    log_ratios,
    made,
    new_search,
    read,
    require_same_work,
    with_states,
    write,
)
from aaco_pipeline.pipeline.comparing.measuring import publish_members
from aaco_pipeline.pipeline.comparing.plan import Plan, Subject, read_plan, write_plan
from aaco_pipeline.report.bisection import bisection_document
from aaco_pipeline.statistics.bisection import Answer
from tests.pipeline.comparing.made_up import judged, measured, planned, verdict_row
from tests.pipeline.conftest import Killed
from tests.places import CONFIGS
from tests.resources.toolchains.test_builds import git

#: Copies the model that lies in the work tree, and says which revision that is.
COPY = f"{sys.executable} -c \"import shutil, sys; shutil.copy('m.onnx', sys.argv[1])\" {{output}} {{revision}}"


def write_model(path: Path, width: int = 8, scale: float = 1.0) -> Path:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.full((width, width), scale, np.float32), "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def there(*models: Path, **options: Any) -> tuple[Build, ...]:
    return builds_there([(one.stem, MeasurementRequest(model=str(one), **options)) for one in models], CONFIGS)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One commit with a model in it."""
    place = tmp_path / "engine"
    place.mkdir()
    git(place, "init", "-q", "-b", "main")
    write_model(place / "m.onnx")
    git(place, "add", "m.onnx")
    git(place, "commit", "-q", "-m", "A model")
    return place


def recipe(repository: Path, command: str = COPY, **asked: Any) -> Recipe:
    return Recipe(repository, command, 60.0, MeasurementRequest(**{"model": "{output}", **asked}))


def made_in(lake: TraceLake, how: Recipe) -> Any:
    build = from_revision(git(how.repository, "rev-parse", "HEAD"), "A model")
    return made(lake.path, "bisection-1", 3, build, how, configs=CONFIGS, log=lambda line: None)


def test_builds_that_are_there_are_known_by_their_content(tmp_path: Path) -> None:
    models = [write_model(tmp_path / f"{name}.onnx", scale=name) for name in (1, 2)]
    builds = there(*models)
    assert [one.label for one in builds] == ["1", "2"]
    digests = {one.subject.artefact_sha256 for one in builds if one.subject is not None}
    assert len(digests) == 2


def test_builds_of_different_inputs_are_refused_by_name(tmp_path: Path) -> None:
    models = write_model(tmp_path / "narrow.onnx"), write_model(tmp_path / "wide.onnx", width=16)
    with pytest.raises(UsageError) as raised:
        there(*models)
    assert str(raised.value) == (
        "wide: takes x float32 [4, 16], and the first build x float32 [4, 8]; builds must do the same work to be "
        "compared"
    )


def test_a_build_that_generates_tokens_is_not_compared_with_one_that_does_not(tmp_path: Path) -> None:
    plain = there(write_model(tmp_path / "m.onnx"), tmp_path / "m.onnx")
    generating = there(tmp_path / "m.onnx", tmp_path / "m.onnx", prompt_tokens=4, output_tokens=2)
    with pytest.raises(UsageError, match="do not do the same work"):
        require_same_work(plain[0], generating[0])


def test_a_model_that_is_made_is_kept_by_its_content_and_nothing_else_is(
    empty_lake: TraceLake, repository: Path
) -> None:
    subject = made_in(empty_lake, recipe(repository, threads=2))
    assert subject.artefact.parents[1] == empty_lake.path / ARTEFACTS
    assert subject.artefact.name == "engine.onnx"  # the workload's name
    assert (subject.request.model, subject.request.threads) == (str(subject.artefact), 2)
    assert subject.artefact.read_bytes() == (repository / "m.onnx").read_bytes()
    assert list((empty_lake.path / BUILDS).iterdir()) == []
    assert len(git(repository, "worktree", "list").splitlines()) == 1
    assert made_in(empty_lake, recipe(repository, threads=2)) == subject


def test_a_python_that_is_made_stays_where_it_was_made(empty_lake: TraceLake, repository: Path) -> None:
    script = (
        f"open(sys.argv[1], 'w').write('#!/bin/sh\\nexec {sys.executable} \\\"$@\\\"\\n'); os.chmod(sys.argv[1], 493)"
    )
    command = f'{sys.executable} -c "import os, sys; {script}" {{output}}'
    how = recipe(repository, command, model=str(repository / "m.onnx"), interpreter="{output}")
    subject = made_in(empty_lake, how)
    place = empty_lake.path / BUILDS / "bisection-1" / "3" / "bin" / "python"
    assert subject.request.interpreter == str(place)
    assert subprocess.run([place, "-c", "pass"], check=True).returncode == 0
    assert subject.artefact == repository / "m.onnx"
    assert health.leftovers(empty_lake) == []


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (f"{sys.executable} -c 'raise SystemExit(2)' {{output}}", "ended with status 2"),
        (f"{sys.executable} -c pass {{output}}", "left no file at {output}"),
        (f"{sys.executable} -c \"import sys; open(sys.argv[1], 'w')\" {{output}}", "an empty file"),
    ],
)
def test_what_cannot_be_made_or_measured_leaves_nothing(
    command: str, words: str, empty_lake: TraceLake, repository: Path
) -> None:
    with pytest.raises(ModelError, match=words):
        made_in(empty_lake, recipe(repository, command))
    assert list((empty_lake.path / BUILDS).iterdir()) == []
    assert len(git(repository, "worktree", "list").splitlines()) == 1


def test_a_file_that_is_no_python_is_refused(empty_lake: TraceLake, repository: Path) -> None:
    with pytest.raises(AacoError, match="does not answer as a Python"):
        made_in(empty_lake, recipe(repository, model=str(repository / "m.onnx"), interpreter="{output}"))


@dataclass
class Place:
    """A host on which builds take as long as `times` says; what it was asked to run, and which build does not run."""

    lake: TraceLake
    times: list[float]
    broken: set[int] = field(default_factory=set)
    kill_at: int | None = None
    ran: list[tuple[int, int, int]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def build_of(self, subject: Subject) -> int:
        return int(subject.artefact.stem)

    def run(self, configs: Path, lake: TraceLake, campaign: str, log: Callable[[str], None]) -> None:
        plan = read_plan(lake, campaign)
        first, other = (self.build_of(plan.arms[arm]) for arm in ("baseline", "candidate"))
        if self.kill_at == len(self.ran):
            self.kill_at = None
            raise Killed
        self.ran.append((first, other, plan.blocks))
        for arm, build in (("baseline", first), ("candidate", other)):
            if build in self.broken:
                row = {"block": 0, "position": 0, "arm": arm, "session_id": lake.new_session(), "purpose": "latency"}
                begun = pl.DataFrame([{**row, "state": "begun"}], schema=polars_types("campaign_sessions"))
                publish_members(lake, campaign, begun)
                raise ModelError("it cannot be loaded")
        rows = [
            {"block": block, "position": 0, "arm": arm, "session_id": lake.new_session(), "purpose": "latency"}
            for block in range(plan.blocks)
            for arm in plan.order(block)
        ]
        told = pl.DataFrame([{**row, "state": "finished"} for row in rows], schema=polars_types("campaign_sessions"))
        publish_members(lake, campaign, told)
        judged(lake, plan, verdict_row("regressed"))

    def log_ratios(self, lake: TraceLake, plan: Plan) -> Floats:
        first, other = (self.build_of(plan.arms[arm]) for arm in ("baseline", "candidate"))
        noise = 0.002 * np.cos(np.arange(plan.blocks) + plan.seed % 7)
        ratios: Floats = np.log(self.times[other] / self.times[first]) + noise
        return ratios

    def begun(self, *builds: Build) -> str:
        search, _ = new_search(self.lake, builds or self.builds(), None)
        write(self.lake, search, {})
        return search.name

    def builds(self) -> tuple[Build, ...]:
        return tuple(
            Build(
                str(number),
                subject=Subject(MeasurementRequest(model="control_flow"), Path(f"/builds/{number}.onnx"), "ab" * 32),
                state="made",
            )
            for number in range(len(self.times))
        )

    def go_on(self, name: str) -> Search:
        shown: Any = nullcontext
        return go_on(CONFIGS, self.lake, name, log=self.said.append, shown=shown)


@pytest.fixture
def place(empty_lake: TraceLake, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Eight builds, of which the last three take twice as long."""
    made = Place(empty_lake, [1.0] * 5 + [2.0] * 3)
    monkeypatch.setattr(module, "run", made.run)
    monkeypatch.setattr(module, "log_ratios", made.log_ratios)
    return made


def states(place: Place, name: str) -> list[str]:
    return place.lake.read("bisection_builds", name).get_column("state").cast(pl.String).to_list()


def test_of_eight_builds_the_one_that_is_twice_as_slow_is_named_with_its_causes_asked_for(place: Place) -> None:
    name = place.begun()
    found = place.go_on(name)
    assert found.answer is not None
    assert (found.answer.state, found.answer.after, found.answer.until) == ("step", 4, 5)
    assert found.answer.effect_ratio == pytest.approx(2.0, rel=0.02)
    assert place.ran[0] == (0, 7, 10)
    assert {first for first, _, _ in place.ran[:-1]} == {0}
    assert place.ran[-1][:2] == (4, 5)
    assert len({other for _, other, _ in place.ran[:-1]}) <= 4
    assert states(place, name)[4:6] == ["good", "bad"]
    assert "skipped" in states(place, name)
    plans = place.lake.read("campaigns")
    assert set(plans.get_column("kind").cast(pl.String)) == {"bisect"}
    assert plans.filter(pl.col("campaign_id") == found.pair).item(0, "traced_blocks") == 5
    document = bisection_document(place.lake, name)
    assert document["regression"] is True
    assert document["pair"]["verdict"] == "regressed"
    assert document["spent"]["blocks"] == sum(blocks for _, _, blocks in place.ran[:-1])


def test_identical_builds_have_no_change_and_no_pair_is_compared(place: Place) -> None:
    place.times = [1.0] * 8
    name = place.begun()
    found = place.go_on(name)
    assert found.answer is not None
    assert (found.answer.state, found.pair) == ("no change", None)
    assert {other for _, other, _ in place.ran} == {7}
    assert states(place, name) == ["good", *["skipped"] * 6, "good"]
    assert bisection_document(place.lake, name)["regression"] is False


def test_a_build_that_does_not_run_widens_the_answer_to_a_range(place: Place) -> None:
    place.broken = {4, 5}
    name = place.begun()
    found = place.go_on(name)
    assert found.answer is not None
    assert (found.answer.state, found.answer.after, found.answer.until) == ("range", 3, 6)
    rows = place.lake.read("bisection_builds", name).filter(pl.col("state") == "failed")
    assert rows.select("build", "reason").rows() == [
        (4, "could not be run: it cannot be loaded"),
        (5, "could not be run: it cannot be loaded"),
    ]
    killed = place.lake.read("campaign_sessions").filter(pl.col("state") == "killed")
    assert killed.height == 2  # nothing is left begun, for nobody goes on with it
    assert "build 4 (4) could not be run: it cannot be loaded" in place.said


@pytest.mark.parametrize(("broken", "words"), [(0, "cannot be loaded"), (7, "build 7 (7), the last, could not be run")])
def test_without_the_first_or_the_last_nothing_is_said_and_a_resume_tries_again(
    broken: int, words: str, place: Place
) -> None:
    place.broken = {broken}
    name = place.begun()
    with pytest.raises(ModelError, match="cannot be loaded") as raised:
        place.go_on(name)
    assert words in str(raised.value)
    assert "failed" not in states(place, name)
    place.broken.clear()
    assert place.go_on(name).answer is not None


@pytest.mark.parametrize("at", [0, 2, 3])
def test_killed_in_any_step_it_goes_on_and_measures_nothing_twice(at: int, place: Place) -> None:
    place.kill_at = at
    name = place.begun()
    try:
        found = place.go_on(name)
    except Killed:
        found = place.go_on(name)
    assert found.answer is not None
    assert (found.answer.state, found.answer.until) == ("step", 5)
    steps = place.lake.read("bisection_steps", name).select("build", "blocks").rows()
    assert [(0, *step) for step in steps] == place.ran[:-1]
    assert place.lake.read("campaigns").height == len(place.ran)
    count = len(place.ran)
    assert place.go_on(name) == found  # and what is done is done
    assert len(place.ran) == count


@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_step_that_was_written_down_and_has_no_plan_never_was(
    at: int, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []

    def killed(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == at + 1:
            raise Killed
        write_plan(*arguments)

    monkeypatch.setattr(module, "write_plan", killed)
    name = place.begun()
    with pytest.raises(Killed):
        place.go_on(name)
    found = place.go_on(name)
    assert found.answer is not None and found.answer.until == 5
    named = [*(step.campaign for step in found.steps), found.pair]
    assert sorted(place.lake.read("campaigns").get_column("campaign_id")) == sorted(map(str, named))


def test_a_search_is_read_as_it_was_written(place: Place) -> None:
    name = place.begun()
    assert read(place.lake, name).builds == place.builds()
    found = place.go_on(name)
    assert read(place.lake, name) == found
    with pytest.raises(UsageError, match="no search 'bisection-none'"):
        read(place.lake, "bisection-none")


def test_a_block_without_a_steady_median_is_no_pair(empty_lake: TraceLake) -> None:
    plan = planned(empty_lake, blocks=3)
    session = measured(empty_lake, plan, 2.0)[0]
    assert log_ratios(empty_lake, plan) == pytest.approx([0.693] * 3, abs=0.02)
    iterations = empty_lake.read("iterations", session).drop("session_id")
    empty_lake.publish(session, "capture", {"iterations": iterations.with_columns(latency_ns=pl.lit(0, pl.Int64))})
    assert pl.Series(log_ratios(empty_lake, plan)).is_nan().to_list() == [True, False, False]


def test_one_build_is_no_search(place: Place) -> None:
    with pytest.raises(UsageError, match="give two or more"):
        new_search(place.lake, place.builds()[:1], None)


@given(
    st.integers(2, 9).flatmap(lambda count: st.tuples(st.just(count), st.integers(0, count - 1))),
    st.sampled_from(["step", "range", "several steps", "no change"]),
    st.data(),
)
def test_the_answer_alone_decides_the_states_of_builds(
    place_in: tuple[int, int], answered: Any, data: st.DataObject
) -> None:
    count, after = place_in
    until = count - 1 if answered == "no change" else data.draw(st.integers(min(after + 1, count - 1), count - 1))
    choices = st.lists(st.sampled_from(["planned", "made", "measured", "failed"]), min_size=count, max_size=count)
    before: list[Any] = ["made", *data.draw(choices)[1:]]
    answer = Answer(answered, after, until, None, None, 1.1, 1.0, 1.2)
    told = with_states([Build(str(number), state=state) for number, state in enumerate(before)], answer)
    for number, (state, build) in enumerate(zip(before, told, strict=True)):
        if state == "failed":
            assert build.state == "failed"
        elif state != "measured" and number:
            assert build.state == "skipped"
        else:
            assert build.state in ("good", "bad", "measured")
            assert (build.state == "bad") == (answered != "no change" and number >= until > after)
