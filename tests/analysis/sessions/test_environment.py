"""The facts that make sessions comparable, and the fingerprint of them."""

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.sessions.environment import NOT_IN_FINGERPRINT, environment, fingerprint
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.validation import conform

Fact = dict[str, str | None]

FACTS: list[Fact] = [
    {"category": "package", "key": "onnxruntime", "value": "1.31.1"},
    {"category": "host", "key": "name", "value": "alpha"},
    {"category": "package", "key": "aaco_pipeline", "value": "0.1.0"},
    {"category": "cpu", "key": "model", "value": "Some CPU"},
    {"category": "cpu", "key": "governor", "value": None},
]


def hash_of(facts: list[Fact]) -> str:
    return fingerprint(environment(facts))


def changed(category: str, key: str, value: str | None) -> list[Fact]:
    facts: list[Fact] = [
        {**fact, "value": value} if (fact["category"], fact["key"]) == (category, key) else fact for fact in FACTS
    ]
    assert facts != FACTS
    return facts


names = st.text("abc", min_size=1, max_size=2)
any_facts = st.dictionaries(st.tuples(names, names), st.none() | st.text(max_size=4), min_size=1, max_size=8).map(
    lambda facts: [Fact(category=c, key=k, value=v) for (c, k), v in facts.items()]
)


def test_equal_machines_of_another_name_and_an_upgraded_reader_stay_comparable() -> None:
    assert hash_of(changed("host", "name", "beta")) == hash_of(FACTS)
    assert hash_of(changed("package", "aaco_pipeline", "9.9.9")) == hash_of(FACTS)


@pytest.mark.parametrize(
    ("category", "key", "value"),
    [
        ("package", "onnxruntime", "1.31.2"),
        ("package", "onnxruntime", None),
        ("cpu", "model", "Another CPU"),
        ("cpu", "governor", "performance"),
        ("cpu", "governor", "None"),
    ],
)
def test_any_other_fact_that_changes_changes_the_fingerprint(category: str, key: str, value: str | None) -> None:
    assert hash_of(changed(category, key, value)) != hash_of(FACTS)


@given(facts=any_facts, data=st.data())
def test_the_fingerprint_changes_with_every_single_fact(facts: list[Fact], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(facts) - 1))
    field = data.draw(st.sampled_from(["category", "key", "value"]))
    other = [{**fact, field: f"{fact[field]}x"} if i == at else fact for i, fact in enumerate(facts)]
    assert hash_of(other) != hash_of(facts)
    assert hash_of(facts[:at] + facts[at + 1 :]) != hash_of(facts)


@given(facts=any_facts, data=st.data())
def test_the_order_of_the_facts_does_not_matter(facts: list[Fact], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(facts))
    assert environment(shuffled).equals(environment(facts))
    assert hash_of(shuffled) == hash_of(facts)
    rows = environment(facts)
    assert fingerprint(rows.reverse()) == fingerprint(rows)


def test_only_the_name_of_the_host_and_the_own_version_are_left_out() -> None:
    rows = environment(FACTS)
    left_out = rows.filter(~rows["in_fingerprint"]).select("category", "key").rows()
    assert set(left_out) == {("host", "name"), ("package", "aaco_pipeline")} == NOT_IN_FINGERPRINT
    same_words = environment([{"category": "name", "key": "host", "value": None}])
    assert same_words["in_fingerprint"].to_list() == [True]


def test_the_fingerprint_is_the_documented_hash() -> None:
    rows = [["cpu", "governor", None], ["cpu", "model", "Some CPU"], ["package", "onnxruntime", "1.31.1"]]
    assert hash_of(FACTS) == hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]


def test_every_fact_becomes_a_row_fit_for_the_lake() -> None:
    rows = environment(FACTS)
    published = conform(contract("environment"), rows, "session")
    assert published.drop("session_id").rows() == [
        ("cpu", "governor", None, True),
        ("cpu", "model", "Some CPU", True),
        ("host", "name", "alpha", False),
        ("package", "aaco_pipeline", "0.1.0", False),
        ("package", "onnxruntime", "1.31.1", True),
    ]


def test_no_facts_give_no_rows_and_still_a_fingerprint() -> None:
    assert environment([]).height == 0
    assert len(hash_of([])) == 16
