"""The timing rule as the search's timer: what is recorded decides itself again, and every timed answer is compared."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aaco_pipeline.optimization.calls import Call, Execution, Launch
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.decision.plan import Plan
from aaco_pipeline.optimization.harness import Harness, buffer, make_call, output, rounding_bound
from aaco_pipeline.optimization.loop.means import Builder, Version
from aaco_pipeline.optimization.loop.timing import RuleTimer, plan_record, recorded_plan
from aaco_pipeline.optimization.targets import Build, Layout, Parameter

PLAN = Plan(candidates=2, pairs=4)


def call(size: Any, distribution: str, rng: np.random.Generator) -> Call:
    values = rng.normal(size=8).astype(np.float32)
    return make_call(Launch((1, 1, 1), (64, 1, 1)), buffer("x", values), output("y", 8))


def reference(made: Call) -> dict[str, Any]:
    twice = 2 * made.contents["x"].astype(np.float64)
    return {"y": (twice, rounding_bound(np.abs(twice), 1))}


HARNESS = Harness("k", (8,), 8, call, reference, lambda size: (8.0, 64.0), lambda size, block: Launch((1, 1, 1), block))


class Target:
    """A source is its cost and, after a space, after how many calls it begins to answer with what it answered first."""

    name = "cpu"
    executed_on = "cpu-emulation"
    clock = "made up"
    wavefront_size = 64

    def __init__(self) -> None:
        self.blocks: set[tuple[int, int, int]] = set()
        self.starts = 0

    def build(self, source: bytes, kernel: str, parameters: Sequence[Parameter], layout: Layout, folder: Path) -> Build:
        (artefact := folder / f"{layout.seed}").write_bytes(source)
        return Build("cpu", kernel, artefact, "", source.hex(), "none", (), layout)

    @contextmanager
    def start(self, build: Build) -> Iterator[Any]:
        self.starts += 1
        cost, *cached_from = map(int, build.artefact.read_bytes().split())
        rng, calls, outer = np.random.default_rng(build.layout.seed), 0, self

        class Worker:
            first: dict[str, Any] | None = None

            def run(self, made: Call) -> Execution:
                nonlocal calls
                calls += 1
                outer.blocks.add(made.launch.block)
                answer = {"y": np.multiply(made.contents["x"], 2, dtype=np.float32)}
                self.first = self.first or answer
                stale = bool(cached_from) and calls > cached_from[0]
                return Execution(self.first if stale else answer, round(cost * rng.uniform(0.999, 1.001)))

        yield Worker()


def version(source: bytes) -> Version:
    return Version(source, "k", ())


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    return Builder(Target(), tmp_path)  # type: ignore[arg-type]


def test_a_gain_is_found_confirmed_and_decided_again_from_json(builder: Builder) -> None:
    timer, versions = RuleTimer(PLAN, 3, HARNESS), (version(b"10000"), version(b"8000"))
    steps: list[tuple[Any, tuple[Version, Version]]] = [
        ("aa", (versions[0], versions[0])),
        ("search", versions),
        ("confirmation", versions),
    ]
    replaying = RuleTimer(recorded_plan(json.loads(json.dumps(plan_record(PLAN)))), 3)
    for step, pair in steps:
        evidence = timer.measure(step, builder, pair, 11)
        ruling = timer.decide(step, evidence)
        assert ruling.passed, ruling
        assert replaying.decide(step, json.loads(json.dumps(dict(evidence), allow_nan=False))) == ruling
    assert ruling.speedup_ratio == pytest.approx(1.25, rel=0.01)
    assert ruling.ci_low is not None and 1.02 < ruling.ci_low <= ruling.speedup_ratio  # type: ignore[operator]


def test_what_is_not_faster_is_stopped_by_the_search(builder: Builder) -> None:
    timer, same = RuleTimer(PLAN, 3, HARNESS), version(b"10000")
    timer.decide("aa", timer.measure("aa", builder, (same, same), 1))
    ruling = timer.decide("search", timer.measure("search", builder, (same, version(b"9950")), 1))
    assert not ruling.passed and ruling.guard == "not_faster"


@pytest.mark.parametrize("honest_calls", [0, 1, 3])
def test_an_answer_of_an_earlier_call_is_seen_in_a_timed_call(builder: Builder, honest_calls: int) -> None:
    timer, same = RuleTimer(PLAN, 3, HARNESS), version(b"10000")
    timer.decide("aa", timer.measure("aa", builder, (same, same), 1))
    cheat = version(b"5000 %d" % max(honest_calls, 1))
    with pytest.raises(Refused) as refused:
        timer.measure("search", builder, (same, cheat), 1)
    assert refused.value.guard == "outputs"


def test_a_version_runs_in_its_own_workgroup_and_the_baseline_in_its(builder: Builder) -> None:
    timer, same = RuleTimer(PLAN, 3, HARNESS), version(b"10000")
    timer.decide("aa", timer.measure("aa", builder, (same, same), 1))
    assert builder.target.blocks == {(64, 1, 1)}  # type: ignore[attr-defined]
    timer.measure("search", builder, (same, replace(version(b"9000"), block=(128, 1, 1))), 1)
    assert builder.target.blocks == {(64, 1, 1), (128, 1, 1)}  # type: ignore[attr-defined]


def test_a_harness_that_cannot_launch_another_workgroup_refuses_it(builder: Builder) -> None:
    timer, same = RuleTimer(PLAN, 3, replace(HARNESS, launch=None)), version(b"10000")
    timer.decide("aa", timer.measure("aa", builder, (same, same), 1))
    with pytest.raises(Refused, match="launch"):
        timer.measure("search", builder, (same, replace(same, block=(128, 1, 1))), 1)


def test_all_searches_share_their_layouts_and_no_confirmation_does(builder: Builder) -> None:
    timer, versions = RuleTimer(PLAN, 3, HARNESS), (version(b"10000"), version(b"8000"))
    timer.decide("aa", timer.measure("aa", builder, (versions[0],) * 2, 1))
    first = timer.measure("search", builder, versions, 1)
    timer.decide("search", first)
    again = timer.measure("search", builder, versions, 2)
    confirmed = timer.measure("confirmation", builder, versions, 2)
    assert first["layouts"] == again["layouts"] and not set(first["layouts"]) & set(confirmed["layouts"])


def test_a_record_that_lacks_a_layout_is_no_evidence(builder: Builder) -> None:
    timer, same = RuleTimer(PLAN, 3, HARNESS), version(b"10000")
    evidence = dict(timer.measure("aa", builder, (same, same), 1))
    evidence["pairs"]["itself"].pop()
    assert timer.decide("aa", evidence).guard == "layouts"
