"""The timing rule as the search's timer: on workers, on blocks of sessions, and on recorded evidence."""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.harness import Harness, buffer, make_call, output, rounding_bound
from aaco_pipeline.optimization.loop.means import Builder, Version
from aaco_pipeline.optimization.loop.timing import (
    InterleavedPairs,
    RuleTimer,
    looks_of,
    plan_of,
    plan_record,
    recorded_plan,
    rule_on,
)
from aaco_pipeline.optimization.targets import Build, Call, Execution, Launch, Layout, Parameter
from aaco_pipeline.optimization.timing_rule import Plan
from tests.optimization.made_pairs import MadeStarts, made_call

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
    steps: Any = [("aa", (versions[0], versions[0])), ("search", versions), ("confirmation", versions)]
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
    with pytest.raises(Refused, match=r"^outputs: "):
        timer.measure("search", builder, (same, cheat), 1)


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


COUNT = 40


def made_source(
    duration_ns: int | None = 200, *, seed: int = 1
) -> tuple[InterleavedPairs, list[tuple[str, float]], list[float]]:
    log: list[tuple[str, float]] = []
    checked: list[float] = []

    def check(call: Call, before: Execution, after: Execution) -> None:
        checked.append(float(call.contents["x"][0]))

    arms = MadeStarts("baseline", 300, log), MadeStarts("candidate", duration_ns, log)
    return InterleavedPairs(*arms, made_call, check, seed=seed), log, checked


def test_durations_are_those_of_their_arm_in_random_order_and_every_result_is_checked() -> None:
    source, log, checked = made_source()
    pairs = source.pairs(7, COUNT)
    assert (pairs.baseline_ns.tolist(), pairs.candidate_ns.tolist()) == ([300] * COUNT, [200] * COUNT)
    assert (pairs.baseline_first_call_ns, pairs.candidate_first_call_ns) == (300, 200)
    assert (pairs.baseline_load_ns, pairs.candidate_load_ns) == (7, 7)
    first = [name == "candidate" for name, _ in log[2::2]]
    assert first == pairs.candidate_first.tolist() and 0.2 * COUNT < sum(first) < 0.8 * COUNT
    assert checked == [content for name, content in log if name == "candidate"]
    assert len(log) == 2 * (COUNT + 1)


def test_both_arms_of_a_pair_get_the_same_content_and_each_pair_new_one() -> None:
    source, log, _ = made_source()
    source.pairs(7, COUNT)
    source.pairs(8, COUNT)
    assert all({log[at][0], log[at + 1][0]} == {"baseline", "candidate"} for at in range(0, len(log), 2))
    contents = [content for _, content in log]
    assert contents[::2] == contents[1::2]
    assert len(set(contents)) == 2 * (COUNT + 1)


def test_each_layout_has_processes_of_its_own() -> None:
    starts = MadeStarts("baseline", 300), MadeStarts("candidate", 200)
    source = InterleavedPairs(*starts, made_call, lambda call, before, after: None, seed=1)
    source.pairs(7, 2)
    source.pairs(8, 2)
    assert [one.started for one in starts] == [[7, 8], [7, 8]]


def test_a_target_without_time_decides_nothing() -> None:
    with pytest.raises(Refused, match=r"^time: "):
        made_source(None)[0].pairs(7, COUNT)


def test_another_seed_gives_other_content() -> None:
    logs = []
    for seed in (1, 2):
        source, log, _ = made_source(seed=seed)
        source.pairs(7, 2)
        logs.append({content for _, content in log})
    assert not logs[0] & logs[1]


BLOCKS = plan_of(0.02)


def evidence(candidate: list[float | None], itself: list[float | None] | None = None, items: Any = (1, 1)) -> Any:
    """Blocks in which the baseline takes 1 s and the other arm so much less; None is a session without a median."""

    def pairs(ratios: list[float | None]) -> list[dict[str, Any]]:
        return [{"baseline_ns": [10**9], "candidate_ns": [one and round(10**9 / one)]} for one in ratios]

    return {"items": list(items), "pairs": {"candidate": pairs(candidate), "itself": pairs(itself or [])}}


def around(ratio: float, blocks: int, spread: float = 0.003) -> list[float | None]:
    return [ratio * (1 + spread * math.cos(2 * block)) for block in range(blocks)]


FIRST = looks_of("search", BLOCKS)[0]


@pytest.mark.parametrize(
    ("step", "blocks", "guard"),
    [
        ("aa", evidence([], around(1.0, 8)), None),
        ("aa", evidence([], around(1.1, 8)), "aa"),
        ("aa", evidence([], [2.0, 0.5] * 4), "aa"),
        ("aa", evidence([], [None] * 8), "aa"),
        ("search", evidence(around(1.3, FIRST)), None),
        ("search", evidence(around(0.9, FIRST)), "not_faster"),
        ("confirmation", evidence(around(1.01, 12), around(1.0, 12)), "confirmation"),
        ("confirmation", evidence(around(1.3, 12), around(1.3, 12)), "aa"),
    ],
)
def test_blocks_that_agree_are_ruled_on(step: Any, blocks: Any, guard: str | None) -> None:
    ruling = rule_on(step, blocks, BLOCKS)
    assert ruling is not None and (ruling.passed, ruling.guard) == (guard is None, guard)


def test_a_search_goes_on_where_blocks_do_not_agree() -> None:
    assert rule_on("search", evidence([*around(1.3, FIRST - 1), 0.9]), BLOCKS) is None


def test_a_gain_is_confirmed_by_twelve_blocks_that_all_hold_with_the_figures_of_these() -> None:
    ruling = rule_on("confirmation", evidence(around(1.3, 12), around(1.0, 12)), BLOCKS)
    assert ruling is not None and ruling.passed
    low, ratio, high = ruling.ci_low, ruling.speedup_ratio, ruling.ci_high
    assert ratio == pytest.approx(1.3, rel=0.01)
    assert low is not None and ratio is not None and high is not None and 1.02 < low < ratio < high


def test_a_block_without_a_median_counts_against_what_is_to_be_shown() -> None:
    gains = around(1.3, 12)
    assert rule_on("confirmation", evidence([None, *gains[1:]], around(1.0, 12)), BLOCKS) is None
    silent: list[float | None] = [None] * 13
    told = rule_on("confirmation", evidence(silent + around(1.3, 11), around(1.0, 24)), BLOCKS)
    assert told is not None and told.guard == "confirmation" and "13 of 24 blocks" in told.reason


def test_batches_are_compared_by_the_time_of_an_item() -> None:
    """Four times the items in twice the time."""
    ruling = rule_on("confirmation", evidence(around(0.5, 12), around(1.0, 12), items=(1, 4)), BLOCKS)
    assert ruling is not None and ruling.passed and ruling.speedup_ratio == pytest.approx(2.0, rel=0.01)
    assert "for each item" in ruling.reason


def test_what_gains_nothing_is_confirmed_no_more_often_than_its_share_of_alpha() -> None:
    """Noise about the threshold: of 20,000 candidates at most one in 1,200 may pass, whatever the noise looks like."""
    random, passed = np.random.default_rng(0), 0
    looks, misses = BLOCKS.confirming_layouts, BLOCKS.confirming_misses
    for _ in range(20_000):
        fall_short = random.random(looks[-1]) < 0.5
        passed += any(fall_short[:look].sum() <= allowed for look, allowed in zip(looks, misses, strict=True))
    assert passed <= 20_000 * BLOCKS.candidate_alpha + 3 * math.sqrt(20_000 * BLOCKS.candidate_alpha)
