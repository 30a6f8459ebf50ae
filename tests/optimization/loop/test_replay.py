"""A journal decides itself again; whatever is changed in it is seen."""

import json
from pathlib import Path
from typing import Any

import pytest

from aaco_pipeline.optimization.journal import VERSION, Journal, JournalError, JournalWriter, read_journal
from aaco_pipeline.optimization.loop.replay import Replayed, replay
from aaco_pipeline.optimization.loop.search import optimize
from tests.optimization.loop.fakes import SOURCE, FakeTimer, Scripted, check_text, costing, means, question

OFFERS = (
    *(costing(50, "elsewhere"), costing(50, "syntax error"), costing(50, "fopen"), SOURCE + b"// same\n", costing(200)),
    *(costing(50, "wrong"), costing(50, "hangs"), costing(99), costing(100, "lucky"), costing(80), costing(70)),
    costing(50, "astray"),
)


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    """The journal of a search that met every guard."""
    with JournalWriter(tmp_path / "journal") as writer:
        given, _ = means(tmp_path / "work", Scripted(*OFFERS), record=writer.write)
        optimize(question(attempts=len(OFFERS) + 1), given, {})
    return (tmp_path / "journal").read_bytes()


def replayed(journal: Journal) -> list[Replayed]:
    return replay(journal, check_text, lambda begin: FakeTimer())


def test_every_decision_comes_out_as_it_was(content: bytes) -> None:
    again = replayed(read_journal(content))
    assert [one.kind for one in again] == ["aa", *["attempt"] * len(OFFERS), "whole"]
    assert [one.differs for one in again] == [None] * len(again)
    assert [one.guard for one in again[1:]] == [
        *("outside_kernel", "compile", "symbols", "no_effect", "resources", "outputs", "time"),
        *("not_faster", "not_faster", "confirmation", "confirmation", "outputs", "confirmation"),
    ]


def test_a_search_that_was_killed_is_replayed_as_far_as_it_came(content: bytes) -> None:
    again = replayed(read_journal(content[: len(content) // 2]))
    assert 1 < len(again) < 1 + len(OFFERS)
    assert all(one.differs is None for one in again)


def changed(content: bytes, change: Any, kind: str = "attempt") -> Journal:
    """The journal with the ninth attempt, or the line of another kind, changed."""
    lines = [json.loads(line) for line in content.splitlines()]
    change(next(line for line in lines if line["kind"] == kind and line.get("attempt", 9) == 9))
    return read_journal(b"".join(json.dumps(line).encode() + b"\n" for line in lines))


def wrong_in(journal: Journal) -> list[Replayed]:
    return [one for one in replayed(journal) if one.differs is not None]


@pytest.mark.parametrize("what", ["decision", "guard", "ci_low", "reason"])
def test_a_decision_that_does_not_follow_from_its_evidence_is_seen(content: bytes, what: str) -> None:
    wrong = wrong_in(changed(content, lambda line: line.update({what: "another"})))
    assert [one.attempt for one in wrong if one.kind == "attempt"] == [9] and what in str(wrong[0].differs)


def test_a_pair_that_was_changed_is_seen(content: bytes) -> None:
    def slower(line: Any) -> None:
        line["timings"]["confirmation"]["evidence"]["pairs_ns"][0][1] = 100

    assert [one.attempt for one in wrong_in(changed(content, slower))] == [9]


def test_the_whole_is_decided_again_from_its_own_pairs(content: bytes) -> None:
    def slower(line: Any) -> None:
        for pair in line["timings"]["confirmation"]["evidence"]["pairs_ns"]:
            pair[1] = pair[0]

    (wrong,) = wrong_in(changed(content, slower, "whole"))
    assert (wrong.kind, wrong.attempt, wrong.decision) == ("whole", None, "rejected")


@pytest.mark.parametrize(
    ("what", "value"), [("attempts", [10]), ("baseline_sha256", "0" * 64), ("source_sha256", "0" * 64)]
)
def test_a_whole_that_is_of_other_changes_is_seen(content: bytes, what: str, value: Any) -> None:
    (wrong,) = wrong_in(changed(content, lambda line: line.update({what: value}), "whole"))
    assert wrong.kind == "whole" and what in str(wrong.differs)


@pytest.mark.parametrize(
    ("change", "said"), [({"source": "void k() {}"}, "another hash"), ({"baseline_sha256": "0" * 64}, "does not hold")]
)
def test_a_text_that_was_changed_or_is_missing_is_no_journal(content: bytes, change: Any, said: str) -> None:
    with pytest.raises(JournalError, match=said):
        replayed(changed(content, lambda line: line.update(change)))


def test_machine_code_that_is_the_same_cannot_have_been_accepted(content: bytes) -> None:
    def same(line: Any) -> None:
        line["build"]["code_sha256"] = line["baseline_code_sha256"]

    (wrong,) = wrong_in(changed(content, same))
    assert wrong.guard == "no_effect"


def test_a_journal_of_no_attempt_has_nothing_to_decide() -> None:
    line = json.dumps({"line": 0, "kind": "begin", "version": VERSION}).encode() + b"\n"
    assert replayed(read_journal(line)) == []
