"""What was asked and answered is on file, and answers the same questions again without a network."""

import json
from pathlib import Path

import pytest

from aaco_pipeline.errors import UsageError
from aaco_pipeline.optimization.proposers.questions import Message, NoAnswer, Question
from aaco_pipeline.resources.language_model.recorded import Recorded, Replayed


def question(text: str = "Faster?", model: str = "tiny") -> Question:
    return Question(model, (Message("user", text),), {"type": "object", "required": ["change"]})


def never(asked: Question) -> str:
    raise AssertionError("the network is not asked")


def silent(asked: Question) -> str:
    raise NoAnswer("it did not answer in time")


def test_an_exchange_is_one_file_named_by_the_question(tmp_path: Path) -> None:
    assert Recorded(lambda asked: "yes \ud800", tmp_path / "new")(question()) == "yes \ud800"
    (path,) = (tmp_path / "new").iterdir()
    assert path.name == f"{question().sha256}.json"
    document = json.loads(path.read_text())
    assert document == {"question": question().document(), "answer": "yes \ud800", "failure": None}


def test_what_is_on_file_is_answered_from_there(tmp_path: Path) -> None:
    Recorded(lambda asked: "yes", tmp_path)(question())
    assert Recorded(never, tmp_path)(question()) == "yes"
    assert Replayed(tmp_path)(question()) == "yes"


def test_another_model_or_text_is_another_question(tmp_path: Path) -> None:
    Recorded(lambda asked: "yes", tmp_path)(question())
    for other in (question("Slower?"), question(model="big")):
        with pytest.raises(UsageError, match=f"has no answer to question {other.sha256}"):
            Replayed(tmp_path)(other)


def test_a_failure_is_replayed_as_one_and_asked_again_when_recording(tmp_path: Path) -> None:
    with pytest.raises(NoAnswer):
        Recorded(silent, tmp_path)(question())
    with pytest.raises(NoAnswer, match="it did not answer in time"):
        Replayed(tmp_path)(question())
    assert Recorded(lambda asked: "yes", tmp_path)(question()) == "yes"
    assert Replayed(tmp_path)(question()) == "yes"


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"question": {}, "answer": "other", "failure": null}', "[" * 9999]
)
def test_a_file_that_was_not_written_here_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / f"{question().sha256}.json").write_text(content)
    for ask in (Replayed(tmp_path), Recorded(never, tmp_path)):
        with pytest.raises(UsageError, match="is not a recorded exchange"):
            ask(question())


def test_the_digest_of_a_question_is_the_same_on_every_host() -> None:
    expected = "815a204f375387c6b1f8eb95f5610da6f25581aac2dcfcb7c6e08904328fcec9"
    assert question().sha256 == expected
