"""Spikes in words: how many, why, P99 without them, and how quiet the machine was."""

from typing import Any

import pytest

from aaco_pipeline.report.session.spikes import (
    CAUSE_FIGURES,
    CAUSES,
    SPIKES,
    both_figures,
    mark_in_words,
    marking_cause,
    quietness,
    spikes_answer,
    who,
)
from tests.report.made_up import QUIET, SPIKE


def document(**more: Any) -> dict[str, Any]:
    figure = {
        **{"cause": "preempted", "iterations": 20, "spikes": 2, "total_ns": 1, "variance_share_ratio": 0.9},
        **{"tail_share_ratio": 0.8, "p99_without_ns": 5e6, "ci_low_ns": 4.9e6, "ci_high_ns": 5.2e6},
    }
    return {
        "spikes": [SPIKE, SPIKE, {**SPIKE, "spike_cause": None}],
        "delay_causes": [figure],
        "quietness": [{**QUIET, "spikes": 3}],
        "metrics": [
            {"metric": "latency_p99", "pass": "latency", "phase": "measure", "value": 9e6},
            {"metric": "latency_p99_undisturbed", "pass": "latency", "phase": "measure", "value": 5e6},
            {"metric": "unseen_pause_ratio", "pass": None, "phase": None, "value": 0.013},
        ],
        **more,
    }


def test_the_answer_counts_spikes_by_cause_says_what_p99_would_be_and_what_to_do_first() -> None:
    assert spikes_answer(document()) == (
        "3 spikes in 300 iterations: 2 because another thread had the CPU (hog 900 in all); 1 without a single cause. "
        "P99 is 9 ms; without preemption it would be 5 ms (95 % interval 4.9 … 5.2 ms). "
        "First keep other threads off its CPUs."
    )


def test_what_to_do_first_is_about_the_cause_that_p99_owes_most_to() -> None:
    (preempted,) = document()["delay_causes"]
    work = {**preempted, "cause": "on_cpu", "spikes": 1, "p99_without_ns": 4_000_000}
    said = spikes_answer(document(delay_causes=[preempted, work]))
    assert "1 because it was longer on the CPU" in said
    assert "without longer work on the CPU it would be 4 ms" in said
    assert said.endswith(
        "First look at the program itself; a slower clock or contention for memory would look the same."
    )
    few = {"p99_without_ns": None, "ci_low_ns": None, "ci_high_ns": None}
    said = spikes_answer(document(delay_causes=[{**preempted, **few}, {**work, **few}]))
    assert said.endswith("without a single cause. First keep other threads off its CPUs."), "too few for a P99"


def test_every_cause_of_a_spike_has_words_and_something_to_do() -> None:
    (figure,) = document()["delay_causes"]
    for cause in set(CAUSES) - {"on_cpu_longer", "unknown"}:
        said = spikes_answer(document(delay_causes=[{**figure, "cause": cause}]))
        assert " First " in said, cause


def test_who_was_in_the_way_of_most_spikes_is_named_with_its_number_where_it_is_one_thread() -> None:
    spike = document()["spikes"][0]
    bash = [{**spike, "by_name": "bash", "by_thread_id": number} for number in (901, 902, 903)]
    assert "(bash in 3)" in spikes_answer(document(spikes=[spike, spike, *bash]))
    assert "(hog 900)" in spikes_answer(document(spikes=[spike])), "of one spike nothing is counted"
    stop = {**spike, "spike_cause": "stopped", "by_name": "sh", "by_thread_id": 7}
    causes = [{**document()["delay_causes"][0], "cause": "stopped"}]
    said = spikes_answer(document(spikes=[stop, stop], delay_causes=causes))
    assert "2 because it was stopped by a signal (resumed by sh 7 in all)" in said
    causes = [{**document()["delay_causes"][0], "cause": "blocked"}]
    wait = {**spike, "spike_cause": "blocked", "by_name": "server", "by_thread_id": 8}
    assert "2 because it was blocked (woken by server 8 in all)" in spikes_answer(
        document(spikes=[wait, wait], delay_causes=causes)
    )
    timed = {**wait, "by_name": "interrupt", "by_thread_id": None}
    assert "(woken by an interrupt)" in spikes_answer(document(spikes=[timed], delay_causes=causes))
    called = {**wait, "by_kind": "call", "by_name": "select", "by_thread_id": None}
    assert "(in `select` in all)" in spikes_answer(document(spikes=[called, called], delay_causes=causes))
    assert who(called) == "in select"
    assert "First look at what `select` waits for." in spikes_answer(document(spikes=[called], delay_causes=causes))
    work = [{**causes[0], "cause": "on_cpu"}]
    read = {**called, "spike_cause": "on_cpu_longer", "by_name": "read"}
    assert "First take `read` out of" in spikes_answer(document(spikes=[read], delay_causes=work))
    own = {**read, "by_kind": None, "by_name": None}
    assert "First look at the program" in spikes_answer(document(spikes=[read, own, own], delay_causes=work))
    nobody = {**spike, "spike_cause": "throttled", "by_name": None, "by_thread_id": None}
    assert "(" not in spikes_answer(document(spikes=[nobody])).split(".")[0]


def test_nothing_recorded_is_no_claim_that_all_is_well() -> None:
    empty = document(quietness=[], spikes=[], delay_causes=[], metrics=[])
    assert "--kernel-plane" in spikes_answer(empty)
    assert quietness(empty) is None
    assert both_figures(empty) == []


def test_no_spikes_are_said_as_such() -> None:
    quiet = {"iterations": 300, "clean": 300, "disturbed": 0, "unknown": 0, "disturbed_by": None, "spikes": 0}
    assert spikes_answer(document(quietness=[quiet], spikes=[])) == "None of 300 iterations is a spike."


def test_the_machines_quietness_is_one_sentence() -> None:
    assert quietness(document()) == (
        "The machine disturbed 6.7 % of the iterations, most often by preemption; "
        "probes between blocks lost 1.3 % of their time without a kernel event."
    )


def test_what_cannot_be_judged_is_counted_neither_way() -> None:
    """As `aaco ls` and comparisons count it: of what is known."""
    loud = {"iterations": 300, "clean": 50, "disturbed": 50, "unknown": 200, "disturbed_by": "throttled", "spikes": 0}
    share = [{"metric": "disturbed_ratio", "pass": "latency", "phase": "measure", "value": 0.5}]
    assert quietness(document(quietness=[loud], metrics=share)) == (
        "The machine disturbed 50.0 % of the 100 of 300 iterations that can be judged, most often by throttling; "
        "in the others the kernel's events are not whole; the session is too noisy to compare with others."
    )
    blind = {**loud, "clean": 0, "disturbed": 0, "unknown": 300, "disturbed_by": None}
    said = quietness(document(quietness=[blind]))
    assert said == "How quiet the machine was is unknown: the kernel's events are not whole in any iteration."


def test_a_spike_names_who_was_in_the_way() -> None:
    first, _, unexplained = document()["spikes"]
    assert {name: show(first) for name, show in SPIKES.items()} == {
        **{"*iteration": "57", "*latency": "9 ms", "*too long by": "4 ms", "because": "another thread had the CPU"},
        **{"*of it": "3.9 ms", "who": "hog (900)", "*times": "1", "evidence": "observed"},
    }
    assert SPIKES["because"](unexplained) == "no single cause"
    assert SPIKES["evidence"]({**first, "evidence_grade": "rest"}) == "what is left"
    assert CAUSE_FIGURES["cause"](document()["delay_causes"][0]) == "another thread had the CPU"


@pytest.mark.parametrize(("ratio", "told"), [(0.0, "no time"), (0.0002, "less than 0.1 % of their time")])
def test_a_small_loss_is_neither_none_nor_zero_percent(ratio: float, told: str) -> None:
    lost = [{"metric": "unseen_pause_ratio", "pass": None, "phase": None, "value": ratio}]
    said = quietness(document(metrics=lost))
    assert said is not None
    assert said.endswith(f"; probes between blocks lost {told} without a kernel event.")


def test_an_iteration_tells_by_how_much_and_why() -> None:
    spike: dict[str, Any] = {
        "is_spike": True,
        "spike_cause": "preempted",
        "excess_ns": 4_000_000,
        "disturbed_by": "preempted",
    }
    assert mark_in_words(spike) == "4 ms too long, because another thread had the CPU"
    assert mark_in_words({**spike, "spike_cause": None}) == "4 ms too long, no single cause"
    calm: dict[str, Any] = {"is_spike": False, "spike_cause": None, "disturbed_by": "stopped", "disturbed_ns": 70_000}
    assert mark_in_words(calm) == "disturbed for 70 µs by stops"
    assert mark_in_words({**calm, "disturbed_by": None}) == "not judged: the kernel's events are not whole"
    marked = [spike, {**spike, "spike_cause": None}, calm, {**calm, "disturbed_by": None}]
    assert [marking_cause(one) for one in marked] == ["preempted", None, "stopped", "unknown"]
