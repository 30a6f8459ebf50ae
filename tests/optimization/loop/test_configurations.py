"""A search among configurations keeps what is proved, says why it drops the rest, and can be decided again."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from aaco_pipeline.optimization.candidates import NotApplicable, Refused
from aaco_pipeline.optimization.journal import read_journal
from aaco_pipeline.optimization.loop.configurations import (
    Configuration,
    ModelMeans,
    ModelOutcome,
    ModelQuestion,
    replay_configurations,
    search_configurations,
)
from aaco_pipeline.optimization.loop.means import Limits, Record, TimingStep
from aaco_pipeline.optimization.proposers.onnx import OnnxCandidate


@dataclass
class Host:
    """A host on which a configuration takes the product of what `times` says of its fields, and a minute a campaign."""

    times: Mapping[tuple[str, Any], float]
    proposals: Sequence[OnnxCandidate | NotApplicable]
    wrong: Sequence[tuple[str, Any]] = ()
    itself: float = 1.0
    in_confirmation: float = 1.0
    budget_minutes: float = 1000
    minutes: float = 0
    lines: list[dict[str, Any]] = field(default_factory=list)
    measured: list[tuple[str, dict[str, Any], dict[str, Any], int]] = field(default_factory=list)

    def check(self, configuration: Configuration) -> Record:
        if any((name, value) in self.wrong for name, value in configuration.items()):
            raise Refused("outputs", "output 'y' is off by 0.5")
        return {"runs": 8, "depend_on_inputs": True}

    def measure(self, step: TimingStep, held: Configuration, candidate: Configuration, blocks: int) -> Record:
        if self.minutes >= self.budget_minutes:
            raise Refused("budget", "no time is left")
        self.minutes += 1
        first = len(self.measured)
        self.measured.append((step, dict(held), dict(candidate), blocks))
        factor = self.in_confirmation if step == "confirmation" else 1.0

        def pairs(ratio: float) -> list[dict[str, Any]]:
            wanders = (1 + 0.002 * math.cos(3 * block + first) for block in range(blocks))
            return [{"baseline_ns": [10**9], "candidate_ns": [round(1e9 * ratio * one)]} for one in wanders]

        took = pairs(self.time(candidate) / self.time(held) * factor)
        campaign = f"configure-{len(self.measured)}"
        itself = [] if step == "search" else pairs(self.itself)
        return {"campaign": campaign, "pairs": {"candidate": [] if step == "aa" else took, "itself": itself}}

    def time(self, configuration: Configuration) -> float:
        return math.prod(self.times.get((name, value), 1.0) for name, value in configuration.items())

    def search(self) -> ModelOutcome:
        means = ModelMeans(
            propose=lambda held: self.proposals,
            check=self.check,
            measure=self.measure,
            called=lambda changes: " ".join(f"--{name} {value}" for name, value in changes.items()),
            command=lambda held: f"--model m {held}",
            now_ns=lambda: round(self.minutes * 60e9),
            record=lambda line: self.lines.append({"line": len(self.lines), **line}),
            tell=lambda line: None,
        )
        limits = Limits(round(self.budget_minutes * 60e9), 12)
        return search_configurations(ModelQuestion(0.02, limits), means, {"source_sha256": "ab" * 32})

    @property
    def attempts(self) -> list[tuple[str, str, str]]:
        told = [line for line in self.lines if line["kind"] == "attempt"]
        return [(line["transformation"], line["decision"], line["guard"]) for line in told]


def changing(*, same_work: bool = True, **changes: Any) -> OnnxCandidate:
    return OnnxCandidate(changes, "it may help", same_work)


THREADS, LEVEL, WORSE = changing(threads=4), changing(optimization="all"), changing(threads=9)
TIMES = {("threads", 4): 0.5, ("optimization", "all"): 0.8, ("threads", 9): 1.2}


def test_what_is_accepted_is_the_baseline_of_what_comes_after_it() -> None:
    host = Host(TIMES, [WORSE, THREADS, LEVEL])
    outcome = host.search()
    assert (outcome.end, outcome.held) == ("searched", {"threads": 4, "optimization": "all"})
    assert host.attempts == [
        ("--threads 9", "rejected", "not_faster"),
        ("--threads 4", "accepted", "confirmation"),
        ("--optimization all", "accepted", "confirmation"),
        ("--threads 9", "rejected", "not_faster"),  # asked again: it is another configuration by now
    ]
    assert host.measured[-2][1:3] == ({"threads": 4}, {"threads": 4, "optimization": "all"})
    assert host.lines[2]["kind"] == "aa" and host.measured[0][0] == "aa"
    ratios = [line["speedup_ratio"] for line in host.lines if line["kind"] == "attempt"]
    assert ratios == pytest.approx([1 / 1.2, 2.0, 1.25, 0.5 / 1.2], rel=0.01)


def test_the_gain_is_the_confirmations_and_what_it_does_not_show_is_rejected() -> None:
    host = Host(TIMES, [THREADS], in_confirmation=2.0)
    assert host.search().held == {}
    line = host.lines[-2]
    assert (line["decision"], line["guard"], line["measured_in"]) == ("rejected", "confirmation", "confirmation")
    assert line["speedup_ratio"] == pytest.approx(1.0, rel=0.01)


def test_sessions_of_search_and_confirmation_are_of_different_campaigns() -> None:
    host = Host(TIMES, [THREADS])
    host.search()
    line = host.lines[-2]
    assert line["campaigns"] == ["configure-3", "configure-4"]
    evidence = [line["timings"][step]["evidence"] for step in ("search", "confirmation")]
    assert [len(one["pairs"]["candidate"]) for one in evidence] == [4, 12]


def test_other_outputs_are_never_timed() -> None:
    host = Host(TIMES, [THREADS], wrong=[("threads", 4)])
    assert host.search().held == {}
    assert host.attempts == [("--threads 4", "rejected", "outputs")]
    assert {step for step, *_ in host.measured} == {"aa"}


def test_a_host_that_tells_identical_sessions_apart_decides_nothing() -> None:
    host = Host(TIMES, [THREADS], itself=1.1)
    outcome = host.search()
    assert (outcome.end, host.attempts) == ("noise", []) and "passes as changed" in outcome.reason


def test_a_model_whose_outputs_differ_from_run_to_run_is_not_tried() -> None:
    host = Host(TIMES, [THREADS])
    host.check = lambda configuration: (_ for _ in ()).throw(Refused("baseline", "they differ"))  # type: ignore[method-assign]
    assert host.search().end == "baseline" and host.measured == []


def test_time_that_is_spent_leaves_a_candidate_undecided_and_none_is_begun_after_it() -> None:
    host = Host(TIMES, [THREADS, LEVEL], budget_minutes=3)
    outcome = host.search()
    assert (outcome.end, outcome.held) == ("time", {})
    assert host.attempts == [("--threads 4", "undecided", "budget")]


def test_time_that_is_spent_within_the_first_blocks_decides_nothing() -> None:
    host = Host(TIMES, [THREADS], budget_minutes=1)
    assert (host.search().end, host.attempts, [blocks for *_, blocks in host.measured]) == ("time", [], [2])


def test_batches_come_last_by_the_time_of_an_item_and_none_becomes_the_baseline() -> None:
    batches = [changing(same_work=False, batch_size=size) for size in (2, 4)]
    host = Host({**TIMES, ("batch_size", 2): 1.0, ("batch_size", 4): 3.0}, [*batches, THREADS])
    assert host.search().held == {"threads": 4}
    told = [line for line in host.lines if line["kind"] == "attempt"]
    assert [line["ratio_of"] for line in told] == ["iteration", "item", "item"]
    assert [line["speedup_ratio"] for line in told] == pytest.approx([2.0, 2.0, 4 / 3], rel=0.01)
    assert told[2]["held"] == {"threads": 4}


def test_why_there_is_nothing_to_try_is_written_down_once() -> None:
    host = Host(TIMES, [NotApplicable("onnx", "there is one core"), THREADS])
    host.search()
    told = [line["reason"] for line in host.lines if line["kind"] == "not_applicable"]
    assert told == ["there is one core"]


@pytest.mark.parametrize("budget", [2, 3, 4, 1000])
def test_a_journal_is_decided_again_from_its_lines_alone(budget: float) -> None:
    host = Host(TIMES, [WORSE, THREADS, LEVEL], budget_minutes=budget)
    host.search()
    content = b"".join(json.dumps(line).encode() + b"\n" for line in host.lines)
    again = replay_configurations(read_journal(content))
    assert len(again) == 1 + len(host.attempts) and all(one.differs is None for one in again)
    changed = content.replace(b'"candidate_ns": [50', b'"candidate_ns": [99')
    if changed != content:
        assert any(one.differs for one in replay_configurations(read_journal(changed)))
