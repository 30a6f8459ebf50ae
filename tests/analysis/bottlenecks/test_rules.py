"""How a rule is judged: scores, required signals, tiers, ties, and what is said to be missing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.bottlenecks.rules import Condition, Rule, Rules, Signal, Undecided, judge


def rule(label: str, *conditions: Condition, tier: int = 0, runner_up_only: bool = False) -> Rule:
    return Rule(label, "kernel", conditions, f"mend {label}", tier=tier, runner_up_only=runner_up_only)


def condition(signal: str, **rest: object) -> Condition:
    return Condition(signal, "a test", **{"weight": 1.0, "at_least": 0.5, **rest})  # type: ignore[arg-type]


def known(**values: float | None) -> dict[str, Signal]:
    return {
        name: Signal(value, "ratio", "a_table", None if value is not None else "why") for name, value in values.items()
    }


def rules(*listed: Rule, undecided: tuple[Undecided, ...] = (), least: float = 0.1) -> Rules:
    return Rules(listed, least, undecided)


def test_a_score_is_the_weight_of_what_holds_over_all_of_it() -> None:
    one = rule("a", condition("x", weight=3.0), condition("y", weight=1.0))
    found = judge(known(x=0.9, y=0.1), rules(one), "kernel")
    assert found.rule is one
    assert found.score == pytest.approx(0.75)


def test_a_graded_condition_counts_by_its_value_and_no_more_than_wholly() -> None:
    graded = rules(rule("a", condition("x", graded=True, at_least=0.1)))
    assert judge(known(x=0.4), graded, "kernel").score == pytest.approx(0.4)
    assert judge(known(x=7.0), graded, "kernel").score == 1.0


def test_what_was_not_measured_adds_nothing_and_is_named() -> None:
    one = rules(rule("a", condition("x"), condition("y")))
    found = judge(known(x=1.0, y=None), one, "kernel")
    assert found.score == pytest.approx(0.5)
    assert found.missing == ("y",)
    assert [each.signal for each in found.evidence] == ["x"]


@pytest.mark.parametrize("value", [None, 0.4])
def test_without_what_it_requires_a_rule_is_out(value: float | None) -> None:
    required = rules(rule("a", condition("x"), condition("y", required=True)))
    found = judge(known(x=1.0, y=value), required, "kernel")
    assert (found.rule, found.score, found.runner_up) == (None, None, None)


def test_thin_support_is_no_label_and_tells_what_to_collect() -> None:
    found = judge(known(x=None, y=None), rules(rule("a", condition("x")), rule("b", condition("y"))), "kernel")
    assert found.rule is None
    assert found.missing == ("x", "y")


def test_the_second_label_is_the_runner_up_and_its_evidence_is_shown_after() -> None:
    found = judge(
        known(x=0.6, y=0.9),
        rules(rule("a", condition("x", graded=True)), rule("b", condition("y", graded=True))),
        "kernel",
    )
    assert found.rule is not None
    assert (found.rule.label, found.runner_up) == ("b", "a")
    assert [(one.signal, one.value, one.threshold, one.source) for one in found.evidence] == [
        ("y", 0.9, 0.5, "a_table"),
        ("x", 0.6, 0.5, "a_table"),
    ]


def test_of_equal_scores_the_first_rule_wins() -> None:
    both = rule("a", condition("x")), rule("b", condition("x"))
    for order in (both, both[::-1]):
        found = judge(known(x=1.0), rules(*order), "kernel")
        assert found.rule is order[0]


def test_a_lower_tier_goes_before_a_higher_score() -> None:
    physics = rule("roof", condition("x", graded=True))
    found = judge(known(x=0.6, y=1.0), rules(rule("shape", condition("y"), tier=1), physics), "kernel")
    assert found.rule is physics
    assert found.runner_up == "shape"


def test_a_label_with_two_rules_is_not_its_own_runner_up() -> None:
    found = judge(known(x=1.0), rules(rule("a", condition("x")), rule("a", condition("x"))), "kernel")
    assert found.runner_up is None


def test_more_time_unexplained_than_explained_leaves_no_label() -> None:
    unknown = (Undecided("z", "kernel", "a test"),)
    listed = rules(rule("a", condition("x", graded=True)), undecided=unknown)
    assert judge(known(x=0.5, z=0.4), listed, "kernel").rule is not None
    voided = judge(known(x=0.5, z=0.6), listed, "kernel")
    assert voided.rule is None
    assert "z" in [one.signal for one in voided.evidence]


@given(st.dictionaries(st.sampled_from("vwxyz"), st.none() | st.floats(-1, 2, allow_nan=False)))
def test_the_same_signals_always_give_the_same_judgement(values: dict[str, float | None]) -> None:
    listed = rules(*(rule(f"label_{name}", condition(name, graded=name < "x"), condition("v")) for name in "vwxyz"))
    signals = known(**values)
    backwards = dict(reversed(signals.items()))
    first = judge(signals, listed, "kernel")
    assert judge(signals, listed, "kernel") == first == judge(backwards, listed, "kernel")
    assert first.score is None or 0.1 <= first.score <= 1


def test_a_rule_for_the_runner_up_alone_gives_no_label() -> None:
    second = rule("a", condition("x"), runner_up_only=True)
    found = judge(known(x=1.0, y=1.0), rules(second, rule("b", condition("y"), tier=1)), "kernel")
    assert found.rule is not None
    assert (found.rule.label, found.runner_up) == ("b", "a")
    assert judge(known(x=1.0), rules(second), "kernel").rule is None


def test_what_is_only_shown_is_not_missed() -> None:
    one = rules(
        rule("a", condition("x"), condition("shown", weight=0.0), condition("needed", weight=0.0, required=True))
    )
    assert judge(known(x=1.0, shown=None, needed=1.0), one, "kernel").missing == ()
    assert judge(known(x=1.0, shown=None, needed=None), one, "kernel").missing == ("needed",)
