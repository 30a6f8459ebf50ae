"""What a language model is asked, and how it fails to answer: all that a client over the network has to know."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal


class NoAnswer(Exception):
    """A model that was asked gave nothing that can be used; the reason is one line, without a key."""


@dataclass(frozen=True)
class Message:
    """One turn of the conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True)
class Question:
    """A conversation that the model is to continue, and the JSON schema that its answer is to have."""

    model: str
    messages: tuple[Message, ...]
    schema: Mapping[str, Any]

    def document(self) -> dict[str, Any]:
        """The question as plain values, for a file."""
        messages = [{"role": message.role, "content": message.content} for message in self.messages]
        return {"model": self.model, "messages": messages, "schema": dict(self.schema)}

    @property
    def sha256(self) -> str:
        """The digest of the whole question: equal questions have equal ones, on every host."""
        return hashlib.sha256(json.dumps(self.document(), sort_keys=True).encode()).hexdigest()


#: Asks the model: the text of its answer, in which JSON is to be found. NoAnswer when there is none.
Ask = Callable[[Question], str]
