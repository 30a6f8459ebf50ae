"""The search on stand-ins: the order of guards, acceptance, repairs, limits, and the lines of the journal."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aaco_pipeline.errors import UsageError
from aaco_pipeline.optimization.candidates import NotApplicable, Proposer, Refused
from aaco_pipeline.optimization.loop.means import Builder, Record, TimingStep, Version
from aaco_pipeline.optimization.loop.search import Outcome, optimize
from tests.optimization.loop.fakes import (
    SOURCE,
    FakeChecker,
    FakeTarget,
    FakeTimer,
    Repairing,
    Scripted,
    candidate,
    costing,
    means,
    question,
)


def searched(folder: Path, *proposers: Proposer, asked: Any = None, **more: Any) -> tuple[Outcome, list[Any]]:
    given, lines = means(folder, *proposers, **more)
    return optimize(asked or question(), given, {}), list(lines)


def attempts(lines: list[Any]) -> list[tuple[str, str]]:
    return [(line["decision"], line["guard"]) for line in lines if line["kind"] == "attempt"]


def test_a_faster_candidate_is_accepted_with_the_figures_of_the_confirmation(tmp_path: Path) -> None:
    outcome, lines = searched(tmp_path, Scripted(costing(80)))
    assert [line["kind"] for line in lines] == ["begin", "baseline", "aa", "attempt", "end"]
    assert attempts(lines) == [("accepted", "confirmation")]
    (attempt,) = [line for line in lines if line["kind"] == "attempt"]
    assert attempt["measured_in"] == "confirmation"
    assert attempt["speedup_ratio"] == attempt["timings"]["confirmation"]["ruling"]["speedup_ratio"]
    assert outcome.end == "searched" and outcome.held is not None and outcome.held.version.source == costing(80)


@pytest.mark.parametrize(
    ("source", "decision"),
    [
        (costing(50, "elsewhere"), ("rejected", "outside_kernel")),
        (costing(50, "syntax error"), ("rejected", "compile")),
        (costing(50, "fopen"), ("rejected", "symbols")),
        (costing(50, "keeps"), ("rejected", "symbols")),
        (SOURCE + b"// same\n", ("rejected", "no_effect")),
        (costing(200), ("rejected", "resources")),
        (costing(50, "wrong"), ("rejected", "outputs")),
        (costing(50, "hangs"), ("rejected", "time")),
        (costing(99), ("rejected", "not_faster")),
        (costing(100, "lucky"), ("rejected", "not_faster")),
        (costing(50, "astray"), ("rejected", "outputs")),
    ],
)
def test_each_guard_stops_what_it_is_for(tmp_path: Path, source: bytes, decision: tuple[str, str]) -> None:
    outcome, lines = searched(tmp_path, Scripted(source))
    assert attempts(lines) == [decision]
    assert outcome.held is not None and outcome.held.version.source == SOURCE
    assert all(line["reason"] for line in lines if line["kind"] == "attempt")


def test_a_gain_of_the_search_alone_is_not_accepted_and_the_confirmation_gives_the_figures(tmp_path: Path) -> None:
    _, lines = searched(tmp_path, Scripted(costing(100, "lucky")))
    attempt = lines[-2]
    assert attempt["timings"]["search"]["ruling"]["passed"]
    assert attempt["measured_in"] == "confirmation" and attempt["speedup_ratio"] == pytest.approx(1.0)


def test_the_confirmation_is_built_anew_and_in_other_layouts(tmp_path: Path) -> None:
    timer, target = FakeTimer(), FakeTarget()
    searched(tmp_path, Scripted(costing(80)), timer=timer, target=target)
    assert timer.seeds["search"] != timer.seeds["confirmation"]
    assert {one.parent.name for one in target.folders} == {"baseline", "aa", "search", "confirmation-1"}
    assert sum(one.parent.name == "confirmation-1" for one in target.folders) == 3


def test_what_the_search_found_faster_is_checked_deeply_before_it_is_timed_again(tmp_path: Path) -> None:
    timer = FakeTimer()
    _, lines = searched(tmp_path, Scripted(costing(50, "astray"), costing(99, "astray"), costing(80)), timer=timer)
    astray, slow, accepted = (line for line in lines if line["kind"] == "attempt")
    assert astray["stop"]["step"] == "deep_correctness" and astray["measured_in"] == "search"
    assert "confirmation" not in astray["timings"] and len(timer.seeds["confirmation"]) == 1
    assert slow["guard"] == "not_faster"
    assert accepted["deep_correctness"]["calls"] == 120
    assert accepted["deep_correctness"]["seed"] != accepted["correctness"]["seed"]


def test_a_note_of_the_check_is_shown_once(tmp_path: Path) -> None:
    class Noting(FakeChecker):
        def check(self, *what: Any, is_deep: bool = False) -> Record:
            return {**super().check(*what, is_deep=is_deep), **({} if is_deep else {"note": "few sizes"})}

    told: list[str] = []
    searched(tmp_path, Scripted(costing(99)), checker=Noting(), tell=told.append)
    assert told.count("note: few sizes") == 1


def test_a_candidate_of_another_workgroup_may_have_the_same_machine_code(tmp_path: Path) -> None:
    _, lines = searched(tmp_path, Scripted(candidate(SOURCE, block=(128, 1, 1))))
    assert attempts(lines) == [("rejected", "not_faster")]


def test_an_accepted_source_is_the_baseline_of_what_comes_after(tmp_path: Path) -> None:
    proposer = Scripted(costing(80), costing(79), costing(60))
    outcome, lines = searched(tmp_path, proposer)
    assert attempts(lines) == [
        ("accepted", "confirmation"),
        ("rejected", "not_faster"),  # 79 against 80: it would have been a gain against the first source
        ("accepted", "confirmation"),
    ]
    assert proposer.asked == [SOURCE, costing(80), costing(60)]
    assert outcome.held is not None and outcome.held.version.source == costing(60)
    assert [one.number for one in outcome.accepted] == [0, 2]


def whole_of(lines: list[Any]) -> Any:
    (whole,) = [line for line in lines if line["kind"] == "whole"]
    return whole


def test_several_accepted_changes_are_timed_once_more_as_a_whole_in_fresh_layouts(tmp_path: Path) -> None:
    timer, target = FakeTimer(), FakeTarget()
    outcome, lines = searched(tmp_path, Scripted(costing(80), costing(99), costing(60)), timer=timer, target=target)
    assert [line["kind"] for line in lines][-2:] == ["whole", "end"]
    whole = whole_of(lines)
    assert (whole["decision"], whole["attempts"], whole["measured_in"]) == ("accepted", [0, 2], "whole")
    # 100 against 60, which no attempt was: each was compared with the one before it
    assert whole["timings"]["confirmation"]["evidence"]["pairs_ns"][0] == [100, 60]
    assert (
        whole["baseline_sha256"] == lines[0]["source_sha256"] and whole["source_sha256"] == lines[-1]["source_sha256"]
    )
    assert len(set(timer.seeds["confirmation"])) == 3
    assert sum(one.parent.name == "whole" for one in target.folders) == 2
    assert outcome.is_kept and outcome.result == costing(60)


def test_one_accepted_change_was_timed_against_the_source_itself_already(tmp_path: Path) -> None:
    outcome, lines = searched(tmp_path, Scripted(costing(80)))
    assert outcome.whole is None and outcome.is_kept and "whole" not in [line["kind"] for line in lines]


def test_changes_that_do_not_hold_as_a_whole_are_not_the_result(tmp_path: Path) -> None:
    outcome, lines = searched(tmp_path, Scripted(costing(80), costing(60, "interferes")))
    assert attempts(lines) == [("accepted", "confirmation")] * 2
    assert (whole_of(lines)["decision"], whole_of(lines)["guard"]) == ("rejected", "not_faster")
    assert not outcome.is_kept and outcome.result == SOURCE
    assert lines[-1]["source_sha256"] == lines[0]["source_sha256"]


@pytest.mark.parametrize(
    ("fault", "decision", "result"),
    [
        (Refused("outputs", "y[3] is 2.0"), ("rejected", "outputs"), SOURCE),
        (UsageError("the unchanged kernel fails"), ("undecided", "baseline"), SOURCE),
        (Refused("budget", "the time was spent before it was decided"), ("undecided", "budget"), costing(60)),
    ],
)
def test_of_a_whole_that_was_not_timed_only_lacking_time_leaves_the_changes_accepted(
    tmp_path: Path, fault: Exception, decision: tuple[str, str], result: bytes
) -> None:
    class Failing(FakeTimer):
        def measure(self, step: TimingStep, builder: Builder, versions: tuple[Version, Version], seed: int) -> Record:
            if versions[0].source == SOURCE and versions[1].source == costing(60):
                raise fault
            return super().measure(step, builder, versions, seed)

    outcome, lines = searched(tmp_path, Scripted(costing(80), costing(60)), timer=Failing())
    assert attempts(lines) == [("accepted", "confirmation")] * 2
    assert (whole_of(lines)["decision"], whole_of(lines)["guard"]) == decision
    assert outcome.result == result and outcome.is_kept == (result != SOURCE)


def test_where_time_is_short_some_is_kept_back_to_time_the_whole(tmp_path: Path) -> None:
    class Taking(FakeTimer):
        """Every step takes ten seconds, and nothing else any time."""

        def measure(self, step: TimingStep, builder: Builder, versions: tuple[Version, Version], seed: int) -> Record:
            found = super().measure(step, builder, versions, seed)
            clock.append(clock[-1] + 10_000_000_000)
            return found

    clock = [0]
    offers = [costing(cost) for cost in range(95, 0, -5)]
    asked = question(seconds=100)
    outcome, lines = searched(tmp_path, Scripted(*offers), asked=asked, timer=Taking(), now_ns=lambda: clock[-1])
    assert attempts(lines) == [("accepted", "confirmation")] * 3 + [("undecided", "budget")]
    assert outcome.end == "time" and whole_of(lines)["decision"] == "accepted"
    assert lines[-1]["at_ns"] <= asked.limits.time_ns


def test_the_whole_keeps_its_bits_only_where_every_change_did(tmp_path: Path) -> None:
    inexact, exact = candidate(costing(80)), replace(candidate(costing(60)), bit_exact=True)
    _, lines = searched(tmp_path, Scripted(inexact, exact))
    assert whole_of(lines)["bit_exact"] is False
    _, lines = searched(tmp_path / "again", Scripted(replace(inexact, bit_exact=True), exact))
    assert whole_of(lines)["bit_exact"] is True


def test_a_gain_here_that_changes_nothing_on_a_gpu_is_marked(tmp_path: Path) -> None:
    _, lines = searched(tmp_path, Scripted(costing(80, "host alone")))
    assert attempts(lines) == [("accepted", "confirmation")]
    assert [line["static"]["is_unchanged"] for line in lines if line["kind"] == "attempt"] == [True]


def test_errors_do_not_add_up_over_accepted_changes(tmp_path: Path) -> None:
    """Every candidate's outputs are compared with the first source's, and bits only while all were kept."""

    class Watching(FakeChecker):
        def check(self, *what: Any, is_deep: bool = False) -> Record:
            _, baseline, version, _ = what
            if not is_deep:
                seen.append((baseline and baseline.source, version.bit_exact))
            return super().check(*what, is_deep=is_deep)

    seen: list[Any] = []
    inexact = candidate(costing(80))
    exact = replace(candidate(costing(60)), bit_exact=True)
    searched(tmp_path, Scripted(inexact, exact), checker=Watching())
    assert seen == [(None, False), (SOURCE, False), (SOURCE, False)]
    seen.clear()
    searched(tmp_path / "again", Scripted(exact, replace(exact, source=costing(40))), checker=Watching())
    assert seen == [(None, False), (SOURCE, True), (SOURCE, True)]


def test_an_input_on_which_the_baseline_fails_ends_the_search_undecided(tmp_path: Path) -> None:
    class Failing(FakeChecker):
        def check(self, *what: Any, is_deep: bool = False) -> Record:
            if what[1] is not None and not is_deep:
                raise UsageError("the unchanged kernel fails (size 7, nan)")
            return super().check(*what, is_deep=is_deep)

    outcome, lines = searched(tmp_path, Scripted(costing(80), costing(70)), checker=Failing())
    assert attempts(lines) == [("undecided", "baseline")] and outcome.end == "baseline"


def test_proposers_hear_what_became_of_their_candidates(tmp_path: Path) -> None:
    proposer = Scripted(costing(99), costing(50, "wrong"))
    searched(tmp_path, proposer)
    assert [len(heard) for heard in proposer.heard] == [1, 2]
    assert proposer.heard[-1][1] == "rejected (outputs): y[3] is 2.0 and should be 1.0"


def test_why_a_proposer_has_nothing_is_recorded_once(tmp_path: Path) -> None:
    why = NotApplicable("scripted", "no loop")
    _, lines = searched(tmp_path, Scripted(why, costing(80)))
    assert [line["reason"] for line in lines if line["kind"] == "not_applicable"] == ["no loop"]


def test_a_refused_candidate_may_be_mended_twice(tmp_path: Path) -> None:
    broken = [costing(80, f"syntax error {number}") for number in range(4)]
    proposer = Repairing(broken[0], *broken[1:])
    _, lines = searched(tmp_path, proposer)
    assert [line["repairs"] for line in lines if line["kind"] == "attempt"] == [0, 1, 2]
    assert proposer.refusals == ["compile: error: expected ';'"] * 2


def test_a_mend_that_works_is_accepted(tmp_path: Path) -> None:
    _, lines = searched(tmp_path, Repairing(costing(80, "wrong"), costing(80)))
    assert attempts(lines) == [("rejected", "outputs"), ("accepted", "confirmation")]


@pytest.mark.parametrize("mend", [NotApplicable("scripted", "no idea"), costing(80, "wrong")])
def test_a_mend_that_is_none_ends_it_with_a_reason(tmp_path: Path, mend: bytes | NotApplicable) -> None:
    _, lines = searched(tmp_path, Repairing(costing(80, "wrong"), mend))
    assert attempts(lines) == [("rejected", "outputs")]
    assert [line["kind"] for line in lines].count("not_applicable") == 1


def test_what_is_not_faster_is_not_mended(tmp_path: Path) -> None:
    proposer = Repairing(costing(99), costing(80))
    _, lines = searched(tmp_path, proposer)
    assert attempts(lines) == [("rejected", "not_faster")] and proposer.refusals == []


@pytest.mark.parametrize(("word", "element"), [("wrong", "y[3]"), ("astray", "y[877]")])
def test_a_baseline_that_fails_its_own_harness_is_reported_and_nothing_is_tried(
    tmp_path: Path, word: str, element: str
) -> None:
    proposer = Scripted(costing(80))
    outcome, lines = searched(tmp_path, proposer, asked=question(costing(100, word)))
    assert outcome.end == "baseline" and element in outcome.reason
    assert [line["kind"] for line in lines] == ["begin", "baseline", "end"]
    assert lines[1]["refused"]["guard"] == "outputs" and proposer.asked == []


def test_on_a_noisy_machine_nothing_is_decided(tmp_path: Path) -> None:
    outcome, lines = searched(tmp_path, Scripted(costing(80)), timer=FakeTimer(noisy=True))
    assert outcome.end == "noise" and "9 %" in outcome.reason
    assert [line["kind"] for line in lines] == ["begin", "baseline", "aa", "end"]


def test_as_many_candidates_are_tried_as_may_be(tmp_path: Path) -> None:
    outcome, lines = searched(tmp_path, Scripted(costing(99), costing(98), costing(50)), asked=question(attempts=2))
    assert len(attempts(lines)) == 2 and outcome.end == "attempts"


def test_no_step_is_begun_once_the_time_is_spent(tmp_path: Path) -> None:
    # The clock of the stand-ins moves on by a second whenever it is looked at.
    outcome, lines = searched(tmp_path, Scripted(costing(80), costing(70)), asked=question(seconds=9))
    assert attempts(lines) == [("undecided", "budget")]
    assert outcome.end == "time" and outcome.held is not None and outcome.held.version.source == SOURCE


def test_no_candidate_is_tried_twice_on_the_same_source(tmp_path: Path) -> None:
    _, lines = searched(tmp_path, Scripted(costing(99), costing(99), SOURCE))
    assert len(attempts(lines)) == 2
