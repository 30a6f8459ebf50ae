"""The answer of a search in a sentence: it says what was measured, where, and what was not."""

from typing import Any

import pytest

from aaco_pipeline.report.words.optimization import is_decided, remarks, sentence

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
    }
    return found | changed


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            {"gain": GAIN, "resources": UNCHANGED, "attempts": [ACCEPTED]},
            "row_dot is 1.24 [1.21, 1.27] times faster on cpu-emulation; on gfx942 its static figures are unchanged; "
            "its speed on an AMD GPU was not measured.",
        ),
        (
            {"gain": GAIN, "resources": UNCHANGED | {"vgprs": [28, 34]}, "attempts": [ACCEPTED]},
            "row_dot is 1.24 [1.21, 1.27] times faster on cpu-emulation; on gfx942 it takes 34 instead of 28 VGPRs; "
            "its speed on an AMD GPU was not measured.",
        ),
        (
            {"gain": GAIN, "target": "amd", "executed_on": "AMD Instinct MI300X (gfx942)", "attempts": [ACCEPTED]},
            "row_dot is 1.24 [1.21, 1.27] times faster on AMD Instinct MI300X (gfx942).",
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
    assert sentence(document(**changed)) == told


def test_a_gain_is_told_though_the_search_ended_early() -> None:
    found = document(ended_by="baseline", reason="y is wrong", gain=GAIN, attempts=[ACCEPTED], patch="a/row_dot.patch")
    assert sentence(found).startswith("row_dot is 1.24")
    assert remarks(found) == [
        "The search ended early: y is wrong.",
        "The source is as it was; the patch is a/row_dot.patch in the lake.",
    ]


def test_what_the_gain_of_several_changes_is_is_told_and_a_workgroup_needs_no_patch() -> None:
    several = document(gain=GAIN | {"of": "whole"}, attempts=[ACCEPTED, ACCEPTED], whole_decision="accepted")
    told = remarks(several)
    assert told[0].startswith("2 changes were accepted") and told[0].endswith(
        "all of them, timed once more as a whole."
    )
    assert told[1].startswith("The source needs no change")
    untimed = several | {"gain": GAIN | {"of": "product"}, "whole_decision": "undecided"}
    assert remarks(untimed)[0].endswith(
        "the gain is the product of theirs: there was no time left to time them as a whole."
    )
    assert is_decided(several) and not is_decided(untimed)
    earlier = untimed | {"whole_decision": None}
    assert remarks(earlier)[0].endswith("the gain is the product of theirs.")


def test_changes_that_do_not_hold_as_a_whole_are_no_gain() -> None:
    fell = document(
        attempts=[ACCEPTED, ACCEPTED],
        whole_decision="rejected",
        whole_reason="2 % is not proved",
        patch="a/row_dot.patch",
    )
    assert sentence(fell) == (
        "row_dot was not changed: each of 2 changes was proved faster than the source before it, but all of them "
        "together were not proved faster than the source as it was: 2 % is not proved."
    )
    assert remarks(fell) == [
        "The source is as it was; what did not hold as a whole is kept as a/row_dot.patch in the lake."
    ]


def test_what_is_undecided_is_not_decided() -> None:
    assert is_decided(document())
    assert not is_decided(document(attempts=[UNDECIDED]))
    assert remarks(document(attempts=[UNDECIDED])) == [
        "1 candidate could not be decided in the time: give a larger --budget."
    ]
    assert not is_decided(document(ended_by="noise"))
