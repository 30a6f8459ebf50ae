"""The file of rules: the package's own is whole and the checkout's, and a wrong one is refused by file and key."""

from pathlib import Path

import pytest

from aaco_pipeline.analysis.bottlenecks.kernel_limits import ROOF_LABELS
from aaco_pipeline.analysis.bottlenecks.kernel_signals import KERNEL_SIGNALS
from aaco_pipeline.analysis.bottlenecks.rule_file import RULES_FILE
from aaco_pipeline.assets.classification import BUILT_IN_RULES, load_bottleneck_rules
from aaco_pipeline.errors import UsageError
from tests.places import CONFIGS

RULE = "{label: a, scope: kernel, recommendation: r, conditions: [{signal: s, because: b, weight: 1}]}"

FAMILY = "{label: [a, b], scope: kernel, conditions: [{like: whole, at_least: 0.6}]}"
SHARED = """
shared: {whole: {signal: "at_{label}", because: c, weight: 1, at_least: 0.9}}
recommendations: {a: do a, b: do b}
"""


def test_the_packages_rules_are_those_of_the_checkout() -> None:
    assert (CONFIGS / RULES_FILE).read_bytes() == BUILT_IN_RULES.read_bytes()


def test_without_a_file_the_packages_rules_hold(tmp_path: Path) -> None:
    assert load_bottleneck_rules(tmp_path / RULES_FILE) == load_bottleneck_rules(BUILT_IN_RULES)


def test_a_projects_own_file_holds_instead(tmp_path: Path) -> None:
    (tmp_path / RULES_FILE).write_text(f"least_score: 0.5\nrules: [{RULE}]\n")
    rules = load_bottleneck_rules(tmp_path / RULES_FILE)
    assert rules.least_score == 0.5
    assert [rule.label for rule in rules.rules] == ["a"]


def test_a_family_is_a_rule_for_each_of_its_labels(tmp_path: Path) -> None:
    (tmp_path / RULES_FILE).write_text(f"least_score: 0.5\nrules: [{FAMILY}]\n{SHARED}")
    found = load_bottleneck_rules(tmp_path / RULES_FILE).rules
    assert [(one.label, one.recommendation) for one in found] == [("a", "do a"), ("b", "do b")]
    conditions = [condition for one in found for condition in one.conditions]
    assert [(one.signal, one.at_least, one.because) for one in conditions] == [
        ("at_a", 0.6, "c"),
        ("at_b", 0.6, "c"),
    ]


def test_the_packages_rules_look_at_signals_that_exist_and_name_every_roof() -> None:
    rules = load_bottleneck_rules(BUILT_IN_RULES)
    named = {one.signal for rule in rules.of("kernel") for one in rule.conditions}
    assert named | {one.signal for one in rules.undecided if one.scope == "kernel"} == set(KERNEL_SIGNALS)
    labels = {rule.label for rule in rules.of("kernel")}
    assert labels >= set(ROOF_LABELS)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("rules: []\nleast_score: 0.1", "rules: Tuple should have at least 1 item"),
        (f"rules: [{RULE}]", "least_score: Field required"),
        (f"least_score: 2\nrules: [{RULE}]", "least_score: Input should be less than or equal to 1"),
        (f"least_score: 0.1\nrules: [{RULE.replace('weight: 1', 'weight: 0')}]", "can never score"),
        (f"least_score: 0.1\nrules: [{RULE.replace('because: b, ', '')}]", "because: Field required"),
        # A session's time is shared out exactly: rules of an earlier version that judged it are refused by name.
        (f"least_score: 0.1\nrules: [{RULE.replace('kernel', 'session')}]", "rules.0.scope: Input should be 'kernel'"),
        (
            f"least_score: 0.1\nrules: [{FAMILY}, {RULE.replace('weight: 1', 'weight: a')}]{SHARED}",
            "rules.1.conditions.0.weight: ",
        ),
        (f"least_score: 0.1\nrules: [{RULE.replace('signal: s', 'like: s')}]", "like: there is no 's' under shared"),
        ("- 1", "found no keys"),
        (f"least_score: 0.1\nrules: [{RULE}]\nrule: 1", "rule: Unexpected keyword argument"),
    ],
)
def test_a_wrong_file_is_refused_by_file_and_key(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / RULES_FILE
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_bottleneck_rules(path)
    assert str(path) in str(caught.value)
    assert told in str(caught.value)
