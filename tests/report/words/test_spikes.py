"""What is said of spikes: how many, why, what P99 would be without, and how quiet the machine was."""

from typing import Any

from aaco_pipeline.report.words.spikes import (
    CAUSE_FIGURES,
    SPIKES,
    both_figures,
    mark_in_words,
    marking_cause,
    quietness,
    spikes_answer,
)


def document(**more: Any) -> dict[str, Any]:
    quiet = {"iterations": 300, "clean": 280, "disturbed": 20, "unknown": 0, "disturbed_by": "preempted", "spikes": 3}
    spike = {
        **{"iteration": 57, "latency_ns": 9_000_000, "excess_ns": 4_000_000, "spike_cause": "preempted"},
        **{"explained_ns": 3_900_000, "occurrences": 1, "evidence_grade": "observed", "by_kind": "thread"},
        **{"by_name": "hog", "by_thread_id": 900},
    }
    figure = {
        **{"cause": "preempted", "iterations": 20, "spikes": 2, "total_ns": 1, "variance_share_ratio": 0.9},
        **{"tail_share_ratio": 0.8, "p99_without_ns": 5e6, "ci_low_ns": 4.9e6, "ci_high_ns": 5.2e6},
    }
    return {
        "spikes": [spike, spike, {**spike, "spike_cause": None}],
        "delay_causes": [figure],
        "quietness": [quiet],
        "metrics": [
            {"metric": "latency_p99", "pass": "latency", "phase": "measure", "value": 9e6},
            {"metric": "latency_p99_undisturbed", "pass": "latency", "phase": "measure", "value": 5e6},
            {"metric": "unseen_pause_ratio", "pass": None, "phase": None, "value": 0.013},
        ],
        **more,
    }


def test_the_answer_counts_spikes_by_cause_and_says_what_p99_would_be() -> None:
    assert spikes_answer(document()) == (
        "3 spikes in 300 iterations; 2 because another thread had the CPU; 1 unexplained. "
        "P99 is 9 ms; without preemption it would be 5 ms (95 %: 4.9 ms to 5.2 ms)."
    )


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
        "The machine disturbed 6.7 % of the iterations, most by preemption; "
        "1.3 % of the CPU time vanished without the kernel doing anything."
    )
    loud = {"iterations": 300, "clean": 50, "disturbed": 50, "unknown": 200, "disturbed_by": "throttled", "spikes": 0}
    share = [{"metric": "disturbed_ratio", "pass": "latency", "phase": "measure", "value": 0.5}]
    said = quietness(document(quietness=[loud], metrics=share))
    assert said is not None
    assert "of 66.7 % it is unknown, as events were lost" in said
    assert said.endswith("; too noisy to compare with."), "as comparisons judge it: of what is known"


def test_a_spike_names_who_was_in_the_way() -> None:
    first, _, unexplained = document()["spikes"]
    assert {name: show(first) for name, show in SPIKES.items()} == {
        **{"*iteration": "57", "*latency": "9 ms", "*too long by": "4 ms", "because": "another thread had the CPU"},
        **{"*of it": "3.9 ms", "who": "hog (900)", "*times": "1", "evidence": "observed"},
    }
    assert SPIKES["because"](unexplained) == "unexplained"
    assert CAUSE_FIGURES["cause"](document()["delay_causes"][0]) == "another thread had the CPU"


def test_a_quiet_machine_is_not_said_to_have_lost_zero_percent() -> None:
    nothing = [{"metric": "unseen_pause_ratio", "pass": None, "phase": None, "value": 0.0002}]
    said = quietness(document(metrics=nothing))
    assert said is not None
    assert said.endswith("; no CPU time vanished without the kernel doing anything.")


def test_an_iteration_tells_by_how_much_and_why() -> None:
    spike: dict[str, Any] = {
        "is_spike": True,
        "spike_cause": "preempted",
        "excess_ns": 4_000_000,
        "disturbed_by": "preempted",
    }
    assert mark_in_words(spike) == "4 ms too long, because another thread had the CPU"
    assert mark_in_words({**spike, "spike_cause": None}) == "4 ms too long, for a reason that was not recorded"
    calm: dict[str, Any] = {"is_spike": False, "spike_cause": None, "disturbed_by": "stopped", "disturbed_ns": 70_000}
    assert mark_in_words(calm) == "disturbed for 70 µs by stops"
    assert mark_in_words({**calm, "disturbed_by": None}) == "events were lost meanwhile"
    marked = [spike, {**spike, "spike_cause": None}, calm, {**calm, "disturbed_by": None}]
    assert [marking_cause(one) for one in marked] == ["preempted", None, "stopped", "unknown"]
