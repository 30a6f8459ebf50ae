"""Changes that a language model proposes: asks, reads what it answers, and makes of it a candidate like any other.

Asking is passed in. An answer can do nothing but become a candidate's text, which every guard then sees.
"""

import json
from collections.abc import Iterator
from typing import Final

from aaco_pipeline.optimization.candidates import Candidate, NotApplicable, Refused, SignatureChange, Task
from aaco_pipeline.optimization.proposers import prompts
from aaco_pipeline.optimization.proposers.answers import (
    Change,
    LaunchBounds,
    Rewrite,
    Unroll,
    answer_schema,
    read_answer,
)
from aaco_pipeline.optimization.proposers.launch_bounds import with_launch_bounds
from aaco_pipeline.optimization.proposers.questions import Ask, Message, NoAnswer, Question
from aaco_pipeline.optimization.proposers.unrolling import unrolled
from aaco_pipeline.optimization.source import Kernel, parse

#: How many changes are asked for, one after the other.
_PROPOSALS: Final = 3


class LanguageModelProposer:
    """Asks for up to three changes, and for a repair of one that was refused."""

    name: Final = "language_model"

    def __init__(self, ask: Ask, model: str) -> None:
        """`ask` answers questions to the model called `model`."""
        self._ask = ask
        self._model = model

    def propose(self, task: Task) -> Iterator[Candidate | NotApplicable]:
        """Up to three different candidates, each asked for when it is wanted; ends at the first that does not come."""
        try:
            kernel = self._kernel(task)
            proposed: list[str] = []
            for _ in range(_PROPOSALS):
                change = self._asked(prompts.conversation(task, kernel, tuple(proposed)))
                text = json.dumps(change.model_dump(), sort_keys=True)
                if text in proposed:
                    yield NotApplicable(self.name, "the model proposed the same change again")
                    return
                proposed.append(text)
                yield self._candidate(task, kernel, change)
        except (NoAnswer, Refused) as error:
            yield NotApplicable(self.name, str(error))

    def repair(self, task: Task, candidate: Candidate, refused: Refused) -> Candidate | NotApplicable:
        """The candidate as it should have been, after `refused` said what was wrong with it."""
        try:
            kernel = self._kernel(task)
            end = len(candidate.source) - (len(task.source) - kernel.span.end)
            text = candidate.source[kernel.span.start : end]
            change = self._asked(prompts.repair(task, kernel, candidate, text, refused))
            return self._candidate(task, kernel, change)
        except (NoAnswer, Refused) as error:
            return NotApplicable(self.name, str(error))

    def _kernel(self, task: Task) -> Kernel:
        if len(task.source) > prompts.LONGEST_SOURCE_BYTES:
            raise NoAnswer(f"the source is longer than the {prompts.LONGEST_SOURCE_BYTES} bytes that are sent")
        return parse(task.source).kernel(task.kernel)

    def _asked(self, messages: tuple[Message, ...]) -> Change:
        """The model's change; what is no answer is asked again once. NoAnswer when the second is none either."""
        answer = self._ask(Question(self._model, messages, answer_schema()))
        try:
            return read_answer(answer)
        except ValueError as error:
            again = prompts.asked_again(messages, answer, str(error))
        try:
            return read_answer(self._ask(Question(self._model, again, answer_schema())))
        except ValueError as error:
            raise NoAnswer(f"the model answered twice what is no change: {error}") from error

    def _candidate(self, task: Task, kernel: Kernel, change: Change) -> Candidate | NotApplicable:
        """The source with the change; NotApplicable when it names what is not there."""
        signature: tuple[SignatureChange, ...] = ()
        match change:
            case Unroll(loop=identifier, factor=factor):
                loop = next((one for one in kernel.loops if one.identifier == identifier), None)
                if loop is None or not loop.safe:
                    state = "does not exist" if loop is None else f"is not safe to unroll: {loop.reason}"
                    return NotApplicable(self.name, f"the model chose a loop that {state}")
                source, words = unrolled(task.source, loop, factor), f"unroll {identifier} by {factor}"
            case LaunchBounds(most_work_items=most, resident=least):
                source, words = with_launch_bounds(task.source, kernel, most, least), "launch bounds"
                signature = ("launch_bounds",)
            case Rewrite(body=body):
                start, end = kernel.body
                source, words = task.source[:start] + body.encode() + task.source[end:], "rewritten body"
        if source == task.source:
            return NotApplicable(self.name, "the model's change is what the source has already")
        return Candidate(
            task.kernel,
            source,
            self.name,
            words,
            bit_exact=not isinstance(change, Rewrite),
            parameters={**change.model_dump(exclude={"kind", "body"}, exclude_none=True), "model": self._model},
            signature=signature,
        )
