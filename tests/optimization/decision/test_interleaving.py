"""Pairs from workers: fresh ones each layout, in random order, with content that no call before had."""

import pytest

from aaco_pipeline.optimization.calls import Call, Execution
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.decision.interleaving import InterleavedPairs
from tests.optimization.decision.made import MadeStarts, made_call

COUNT = 40


def made_source(
    duration_ns: int | None = 200, *, seed: int = 1
) -> tuple[InterleavedPairs, list[tuple[str, float]], list[float]]:
    log: list[tuple[str, float]] = []
    checked: list[float] = []

    def check(call: Call, execution: Execution) -> None:
        checked.append(float(call.contents["x"][0]))

    arms = MadeStarts("baseline", 300, log), MadeStarts("candidate", duration_ns, log)
    return InterleavedPairs(*arms, made_call, check, seed=seed), log, checked


def test_each_duration_is_that_of_its_arm_and_the_first_call_is_apart() -> None:
    source, log, _ = made_source()
    pairs = source.pairs(7, COUNT)
    assert pairs.baseline_ns.tolist() == [300] * COUNT
    assert pairs.candidate_ns.tolist() == [200] * COUNT
    assert (pairs.baseline_first_call_ns, pairs.candidate_first_call_ns) == (300, 200)
    assert (pairs.baseline_load_ns, pairs.candidate_load_ns) == (7, 7)
    assert len(log) == 2 * (COUNT + 1)


def test_the_order_within_a_pair_is_random_and_recorded() -> None:
    source, log, _ = made_source()
    pairs = source.pairs(7, COUNT)
    first = [name == "candidate" for name, _ in log[2::2]]
    assert first == pairs.candidate_first.tolist()
    assert 0.2 * COUNT < sum(first) < 0.8 * COUNT


def test_both_arms_of_a_pair_get_the_same_content_and_each_pair_new_one() -> None:
    source, log, _ = made_source()
    source.pairs(7, COUNT)
    source.pairs(8, COUNT)
    assert all({log[at][0], log[at + 1][0]} == {"baseline", "candidate"} for at in range(0, len(log), 2))
    contents = [content for _, content in log]
    assert contents[::2] == contents[1::2]
    assert len(set(contents)) == 2 * (COUNT + 1)


def test_every_result_of_the_candidate_is_checked() -> None:
    source, log, checked = made_source()
    source.pairs(7, COUNT)
    assert checked == [content for name, content in log if name == "candidate"]
    assert len(checked) == COUNT + 1


def test_each_layout_has_processes_of_its_own() -> None:
    starts = MadeStarts("baseline", 300), MadeStarts("candidate", 200)
    source = InterleavedPairs(*starts, made_call, lambda call, execution: None, seed=1)
    source.pairs(7, 2)
    source.pairs(8, 2)
    assert [one.started for one in starts] == [[7, 8], [7, 8]]


def test_a_target_without_time_decides_nothing() -> None:
    with pytest.raises(Refused) as refused:
        made_source(None)[0].pairs(7, COUNT)
    assert refused.value.guard == "time"


def test_another_seed_gives_other_content() -> None:
    logs = []
    for seed in (1, 2):
        source, log, _ = made_source(seed=seed)
        source.pairs(7, 2)
        logs.append({content for _, content in log})
    assert not logs[0] & logs[1]
