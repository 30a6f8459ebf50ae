"""The answer of a search in words: which build, by how much, what is not known, and what was foretold."""

from typing import Any

import pytest

from aaco_pipeline.report.bisection import (
    campaign_plan,
    foretold,
    history,
    is_decided,
    remarks,
    search_plan,
    sentence,
    spent,
)

MINUTE = 60_000_000_000


def build(number: int, effect: float | None = None, **changed: Any) -> dict[str, Any]:
    interval = {} if effect is None else {"ci_low": effect - 0.007, "ci_high": effect + 0.007}
    row = {"build": number, "label": f"b{number}", "revision": None, "title": None, "state": "measured"}
    return {**row, "effect_ratio": effect, **interval, "reason": None, **changed}


def document(answer: str, after: int = 1, until: int = 2, **changed: Any) -> dict[str, Any]:
    effects = [None, 1.001, 1.031, 1.03]
    builds = [build(number, effect) for number, effect in enumerate(effects)]
    answered = {"answer": answer, "after": after, "until": until, "likeliest": until, "probability": 0.97}
    whole = {"effect_ratio": 1.03, "ci_low": 1.024, "ci_high": 1.036, "builds": builds, "pair": None}
    return {"answer": answered, **whole, **changed}


def test_a_step_names_the_build_with_its_effect_and_that_of_the_one_before() -> None:
    told = document("step")
    assert sentence(told) == "The change came with build 2 (b2): +3.1 % [2.4, 3.8] against build 1's +0.1 %."
    told["builds"][2] |= {"revision": "abc1234567", "label": "abc1234", "title": "Fuse it"}
    assert sentence(told) == (
        "The change came with build 2 (revision abc1234, “Fuse it”): +3.1 % [2.4, 3.8] against build 1's +0.1 %."
    )
    assert sentence(document("step", after=0, until=1)).endswith("+0.1 % [-0.6, 0.8] against the first build.")
    assert is_decided(told)


def test_a_range_says_between_which_builds_what_failed_and_which_is_the_likeliest() -> None:
    told = document("range", until=3)
    told["answer"] |= {"likeliest": 2, "probability": 0.811}
    told["builds"][2] |= {"state": "failed", "reason": "could not be made: make ended with status 2"}
    assert sentence(told) == "The change came after build 1 (b1), with build 3 (b3) at the latest: +3.0 % [2.4, 3.6]."
    assert remarks(told) == [
        "Most likely it was build 2 (b2), by a chance of 81 %.",
        "Build 2 (b2) could not be made: make ended with status 2.",
    ]
    assert not is_decided(told)


def test_of_many_that_failed_some_are_named() -> None:
    told = document("range", until=3)
    told["answer"]["likeliest"] = None
    told["builds"] = [build(number, state="failed", reason="could not be run: no") for number in range(7)]
    assert len(remarks(told)) == 6
    assert remarks(told)[-1] == "2 more could not be made or run; `--json` names them."


def test_several_steps_are_told_as_such() -> None:
    assert sentence(document("several steps")).startswith(
        "The change came in several steps, all of them after build 1 "
    )


@pytest.mark.parametrize(("low", "high", "decided"), [(0.995, 1.004, True), (0.98, 1.01, False), (1.0, 1.012, False)])
def test_no_change_is_an_answer_where_the_interval_rules_out_one(low: float, high: float, decided: bool) -> None:
    told = document("no change", after=0, until=3, effect_ratio=1.0004, ci_low=low, ci_high=high)
    assert sentence(told).startswith("No change was found between the first and the last build: +0.0 % [")
    assert is_decided(told) == decided
    assert (remarks(told) == []) == decided


def test_what_was_foretold_stands_beside_what_was_spent() -> None:
    told = document("step", pair={})
    told["spent"] = {"blocks": 45, "sessions": 120, "time_ns": 3 * MINUTE, "all_timed": False}
    told["foretold"] = {"blocks": 102, "time_ns": 130 * MINUTE, "detectable_ratio": 0.014}
    assert spent(told) == (
        "Spent: 45 blocks, 120 sessions with the two builds' own, at least 3 min. Foretold: 102 blocks and 2.2 h, for "
        "a change of 1.4 %, the least that is found four times in five; a larger one takes less."
    )
    assert foretold({"blocks": None}).startswith("Nothing was foretold: ")
    assert " and " not in foretold({"blocks": 102, "time_ns": None, "detectable_ratio": 0.014})


def test_a_plan_says_what_it_knows_and_from_what() -> None:
    known = {"campaigns": 2, "deviation": 0.013, "session_ns": 1_500_000_000, "traced_ns": None}
    none = {"campaigns": 0, "deviation": None, "session_ns": None, "traced_ns": None}
    assert history(known) == "From 2 campaigns on this host: blocks are spread by 1.3 %, a session takes 1.5 s."
    assert history({**known, "deviation": None}).startswith("From 2 campaigns on this host: none had the five blocks")
    assert history(none).startswith("No campaign of this workload")
    asked = {"workload": "m", "backend": "cpu", "blocks": 10, "arms": 2, "traced_blocks": 0, "history": known}
    told = campaign_plan({**asked, "foretold": {"time_ns": MINUTE // 2, "detectable_ratio": 0.02}})
    assert told[0] == "m on cpu: 10 blocks of 2 sessions."
    assert told[2] == "Foretold: 30 s, and a difference of 2 % found four times in five."
    bounds = {"builds": [build(0), build(1)], "most_measured": 1, "least_blocks": 10, "most_blocks": 60}
    unknown = {"blocks": None, "time_ns": None, "detectable_ratio": None}
    lines = search_plan({**asked, **bounds, "history": none, "foretold": unknown})
    assert lines[0] == "m on cpu: 2 builds, b0 to b1."
    assert "At most 1 of them is measured" in lines[1]
