"""The answer of a search in a sentence: it says what was measured, where, and what was not."""

from typing import Any

import pytest

from aaco_pipeline.report.optimization.search import (
    ATTEMPTS,
    is_decided,
    remarks_optimization,
    search_in_a_line,
    sentence_optimization,
)

GAIN = {"of": "confirmation", "speedup_ratio": 1.2412, "ci_low": 1.2101, "ci_high": 1.2744}
UNCHANGED = {"of": "gfx942", "vgprs": [28, 28], "sgprs": [16, 16], "lds_bytes": [0, 0], "scratch_bytes": [0, 0]}
ACCEPTED = {"decision": "accepted", "guard": "confirmation"}
REJECTED = {"decision": "rejected", "guard": "not_faster"}
UNDECIDED = {"decision": "undecided", "guard": "budget"}


def document(**changed: Any) -> dict[str, Any]:
    found = {
        **{"kernel": "row_dot", "target": "cpu", "executed_on": "cpu-emulation", "ended_by": "searched"},
        **{"reason": "nothing is left to propose", "gain": None, "resources": None, "attempts": [REJECTED]},
        **{"patch": None, "is_applied": False, "whole_decision": None, "whole_reason": None},
        **dict.fromkeys(("session", "effect_scope", "critical_share_ratio", "shorter_ratio", "effect_reason")),
    }
    return found | changed


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            {"gain": GAIN, "resources": UNCHANGED, "attempts": [ACCEPTED]},
            "row_dot is 1.24 [1.21, 1.27] times as fast on cpu-emulation; on gfx942 its static figures are unchanged; "
            "its speed on an AMD GPU was not measured.",
        ),
        (
            {"gain": GAIN, "resources": UNCHANGED | {"vgprs": [28, 34]}, "attempts": [ACCEPTED]},
            "row_dot is 1.24 [1.21, 1.27] times as fast on cpu-emulation; on gfx942 it takes 34 instead of 28 VGPRs; "
            "its speed on an AMD GPU was not measured.",
        ),
        (
            {"gain": GAIN, "target": "amd", "executed_on": "AMD Instinct MI300X (gfx942)", "attempts": [ACCEPTED]},
            "row_dot is 1.24 [1.21, 1.27] times as fast on AMD Instinct MI300X (gfx942).",
        ),
        ({}, "No change was found that makes row_dot faster on cpu-emulation beyond doubt (1 candidate tried)."),
        (
            {"attempts": []},
            "No change was found that makes row_dot faster on cpu-emulation beyond doubt: no proposer had anything to "
            "propose.",
        ),
        (
            {"ended_by": "time", "reason": "its time is spent", "attempts": [UNDECIDED]},
            "Nothing was decided about row_dot: its time is spent.",
        ),
        (
            {"ended_by": "time", "reason": "its time is spent"},
            "No change was found that makes row_dot faster on cpu-emulation beyond doubt (1 candidate tried; its time "
            "was spent).",
        ),
        (
            {"ended_by": "noise", "reason": "identical code differs by 9 %"},
            "Nothing was decided about row_dot: identical code differs by 9 %.",
        ),
        (
            {"ended_by": "baseline", "reason": "the source as it is fails: compile: no ;"},
            "row_dot was not changed: the source as it is fails: compile: no ;.",
        ),
        (
            {"ended_by": None, "gain": GAIN},
            "The search for a faster row_dot was broken off; what it decided by then is below.",
        ),
    ],
)
def test_the_answer(changed: dict[str, Any], told: str) -> None:
    assert sentence_optimization(document(**changed)) == told


def test_a_gain_is_told_though_the_search_ended_early() -> None:
    found = document(ended_by="baseline", reason="y is wrong", gain=GAIN, attempts=[ACCEPTED], patch="a/row_dot.patch")
    assert sentence_optimization(found).startswith("row_dot is 1.24")
    assert remarks_optimization(found) == [
        "The search ended early: y is wrong.",
        "The source is as it was; the patch is a/row_dot.patch in the lake.",
    ]


def test_what_the_gain_of_several_changes_is_is_told_and_a_workgroup_needs_no_patch() -> None:
    several = document(gain=GAIN | {"of": "whole"}, attempts=[ACCEPTED, ACCEPTED], whole_decision="accepted")
    told = remarks_optimization(several)
    assert told[0].startswith("2 changes were accepted") and told[0].endswith(
        "all of them, timed once more as a whole."
    )
    assert told[1].startswith("The source needs no change")
    untimed = several | {"gain": GAIN | {"of": "product"}, "whole_decision": "undecided"}
    assert remarks_optimization(untimed)[0].endswith(
        "the gain is the product of theirs: there was no time left to time them as a whole."
    )
    assert is_decided(several) and not is_decided(untimed)
    earlier = untimed | {"whole_decision": None}
    assert remarks_optimization(earlier)[0].endswith("the gain is the product of theirs.")


def test_changes_that_do_not_hold_as_a_whole_are_no_gain() -> None:
    fell = document(
        attempts=[ACCEPTED, ACCEPTED],
        whole_decision="rejected",
        whole_reason="2 % is not proved",
        patch="a/row_dot.patch",
    )
    assert sentence_optimization(fell) == (
        "row_dot was not changed: each of 2 changes was proved faster than the source before it, but all of them "
        "together were not proved faster than the source as it was: 2 % is not proved."
    )
    assert remarks_optimization(fell) == [
        "The source is as it was; what did not hold as a whole is kept as a/row_dot.patch in the lake."
    ]


PREDICTED = {
    **{"gain": GAIN, "attempts": [ACCEPTED], "session": "S", "effect_scope": "iteration", "critical_share_ratio": 0.12},
    **{"shorter_ratio": 0.0233, "shorter_low_ratio": 0.0208, "shorter_high_ratio": 0.0255},
}


def test_a_predicted_effect_is_told_with_its_interval_its_condition_and_how_to_measure_it() -> None:
    assert remarks_optimization(document(**PREDICTED))[0] == (
        "row_dot takes 12.0 % of an iteration of session S on its critical path: 1.24 [1.21, 1.27] times as fast would "
        "make it 2.3 [2.1, 2.5] % shorter, if the gain is the same at the session's sizes. This is predicted; after a "
        "run with the change `aaco diff S latest` shows what became of it, and `aaco compare` judges it."
    )
    held_back = remarks_optimization(document(**PREDICTED | {"shorter_ratio": 0.01, "effect_scope": "recording"}))[0]
    assert "of the recording of session S" in held_back and "% shorter, no more for the work beside it" in held_back


def test_where_no_effect_is_predicted_the_reason_stands_in_its_place() -> None:
    other = PREDICTED | {"shorter_ratio": None, "effect_reason": "the gain was measured on sm_90, and not there"}
    assert remarks_optimization(document(**other))[0] == (
        "row_dot takes 12.0 % of an iteration of session S on its critical path; what it would be shorter by is not "
        "predicted: the gain was measured on sm_90, and not there."
    )
    unknown = other | {"critical_share_ratio": None, "effect_scope": None}
    assert remarks_optimization(document(**unknown))[0].startswith(
        "What this does to session S is not predicted: the gain"
    )
    assert remarks_optimization(document(**other | {"gain": None, "attempts": [REJECTED]})) == [
        "row_dot takes 12.0 % of an iteration of session S on its critical path."
    ]


def test_a_search_is_one_line_on_the_page_of_a_sessions_kernel() -> None:
    row = {"optimization_id": "optimize-1", "attempts": 9, "accepted": 2, "executed_on": "cpu-emulation", **GAIN}
    untold = {"effect_scope": "iteration", "shorter_ratio": None}
    assert search_in_a_line(row | untold) == (
        "9 attempts on cpu-emulation, 2 accepted: 1.24 [1.21, 1.27] times as fast (optimize-1)"
    )
    assert "as fast; an iteration would be 2.3 % shorter (optimize-1)" in search_in_a_line(
        row | untold | {"shorter_ratio": 0.0233}
    )
    nothing = row | untold | {"speedup_ratio": None, "accepted": 0}
    assert search_in_a_line(nothing) == "9 attempts on cpu-emulation, 0 accepted (optimize-1)"


def test_what_is_undecided_is_not_decided() -> None:
    assert is_decided(document())
    assert not is_decided(document(attempts=[UNDECIDED]))
    assert remarks_optimization(document(attempts=[UNDECIDED])) == [
        "1 candidate could not be decided in the time: give a larger --budget."
    ]
    assert not is_decided(document(ended_by="noise"))


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("1.241 times as fast [1.210, 1.274], confirmed: 16 of 16 layouts hold", "confirmed: 16 of 16 layouts hold"),
        ("0.959 times as fast [0.953, 0.971] in the search: not in sight", "in the search: not in sight"),
        (
            "1.2 times as fast [1.1, 1.3], but beside the candidate",
            "1.2 times as fast [1.1, 1.3], but beside the candidate",
        ),
        (
            "in the confirming layouts: 1.1 times as fast [1.0, 1.2]",
            "in the confirming layouts: 1.1 times as fast [1.0, 1.2]",
        ),
    ],
)
def test_a_reason_does_not_repeat_the_figures_beside_it(reason: str, told: str) -> None:
    assert ATTEMPTS["reason"]({"reason": reason, "speedup_ratio": 1.0}) == told
