"""What was asked of a language model and what it said: one JSON file an exchange, named by the question's digest.

Neither address nor key is in it. A folder of such files answers the same questions again without a network.
"""

import json
import os
from pathlib import Path
from typing import Any, Final

from aaco_pipeline.errors import UsageError
from aaco_pipeline.optimization.proposers.questions import Ask, NoAnswer, Question

_LARGEST_FILE_BYTES: Final = 32 * 1024 * 1024


class Recorded:
    """Asks, and keeps each exchange in `folder` before its answer is used.

    A question that the folder has an answer to is not asked again: what was recorded is what was used.
    """

    def __init__(self, ask: Ask, folder: Path) -> None:
        self._ask = ask
        self._folder = folder

    def __call__(self, question: Question) -> str:
        known = _read(self._folder, question)
        if known is not None and known["answer"] is not None:
            return str(known["answer"])
        try:
            answer = self._ask(question)
        except NoAnswer as error:
            self._keep(question, None, str(error))
            raise
        self._keep(question, answer, None)
        return answer

    def _keep(self, question: Question, answer: str | None, failure: str | None) -> None:
        """Written beside its place and moved there: a kill leaves a whole file or none of that name."""
        document = {"question": question.document(), "answer": answer, "failure": failure}
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{question.sha256}.json"
        partial = path.with_suffix(".partial")
        with partial.open("w", encoding="utf-8") as file:
            json.dump(document, file, indent=1, sort_keys=True)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)


class Replayed:
    """Answers from the files in `folder` alone. UsageError for a question that is not there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, question: Question) -> str:
        known = _read(self._folder, question)
        if known is None:
            raise UsageError(
                f"{self._folder} has no answer to question {question.sha256}; it was recorded for another source, "
                "another model or another release of the questions"
            )
        if known["answer"] is None:
            raise NoAnswer(str(known["failure"]))
        return str(known["answer"])


def _read(folder: Path, question: Question) -> dict[str, Any] | None:
    """The exchange on file; None where there is none. UsageError when the file is not what was written."""
    path = folder / f"{question.sha256}.json"
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE_BYTES + 1)
    except FileNotFoundError:
        return None
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not a recorded exchange; remove it, or bring it back as it was") from error
    is_whole = (
        isinstance(document, dict)
        and document.get("question") == question.document()
        and isinstance(document.get("answer"), str | None)
        and isinstance(document.get("failure"), str | None)
        and (document.get("answer") is None) != (document.get("failure") is None)
    )
    if not is_whole:
        raise UsageError(f"{path} is not a recorded exchange; remove it, or bring it back as it was")
    return dict(document)
