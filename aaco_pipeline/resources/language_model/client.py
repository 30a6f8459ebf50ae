"""A chat completion from any endpoint that speaks OpenAI's protocol: which fields are sent, tried again and read.

Time, size and encryption of an exchange are `exchange`; recording is `recorded`.
"""

import json
import time
from collections.abc import Callable
from http import HTTPStatus
from http.client import responses
from typing import Any, Final

from aaco_pipeline.optimization.proposers.questions import NoAnswer, Question
from aaco_pipeline.resources.language_model.exchange import ExchangeError, Reply, post, read_json
from aaco_pipeline.resources.language_model.settings import LanguageModel

_TRIES: Final = 3
_FIRST_WAIT_SECONDS: Final = 1.0
_LONGEST_WAIT_SECONDS: Final = 30.0
_BUSY: Final = frozenset({408, 429, 500, 502, 503, 504, 529})
#: What an endpoint answers that does not know a field of the request.
_NOT_UNDERSTOOD: Final = frozenset({400, 422})
_LONGEST_REASON: Final = 200


class Client:
    """Asks the endpoint of `settings`. What it learns of an endpoint's dialect it keeps for the next question.

    A whole question, with all that is tried again, ends within `settings.timeout_seconds`. Redirects are not followed
    and proxies of the environment not used: the key goes to the configured host or nowhere.
    """

    def __init__(self, settings: LanguageModel, key: str | None, pause: Callable[[float], None] = time.sleep) -> None:
        self._settings = settings
        self._key = key
        self._pause = pause
        self._has_schema = True
        self._limit_name = "max_tokens"

    def __call__(self, question: Question) -> str:
        """The text of the answer. NoAnswer when none came, or none that is whole."""
        deadline = time.monotonic() + self._settings.timeout_seconds
        tries = 0
        while True:
            try:
                reply = self._post(question, deadline)
                if reply.status == HTTPStatus.OK:
                    return _text(read_json(reply.body))
                if reply.status in _NOT_UNDERSTOOD and self._learns_from(reply):
                    continue
                wait, reason = reply.retry_after_seconds, self._said(reply)
                again = reply.status in _BUSY
            except ExchangeError as error:
                wait, reason, again = None, str(error), error.again
            tries += 1
            if wait is None:
                wait = _FIRST_WAIT_SECONDS * 2 ** (tries - 1)
            out_of_time = time.monotonic() + wait >= deadline
            if not again or tries == _TRIES or wait > _LONGEST_WAIT_SECONDS or out_of_time:
                raise NoAnswer(f"{self._settings.base_url}: {reason}")
            self._pause(wait)

    def _post(self, question: Question, deadline: float) -> Reply:
        document = {
            "model": question.model,
            "messages": question.document()["messages"],
            self._limit_name: self._settings.most_tokens,
        }
        if self._has_schema:
            named = {"name": "change", "strict": True, "schema": dict(question.schema)}
            document["response_format"] = {"type": "json_schema", "json_schema": named}
        headers = {} if self._key is None else {"Authorization": f"Bearer {self._key}"}
        url = f"{self._settings.base_url}/chat/completions"
        return post(url, headers, json.dumps(document).encode(), deadline)

    def _learns_from(self, reply: Reply) -> bool:
        """Leave out what this endpoint does not know; False when there is nothing more to leave out."""
        if b"max_completion_tokens" in reply.body and self._limit_name == "max_tokens":
            self._limit_name = "max_completion_tokens"
            return True
        learned, self._has_schema = self._has_schema, False
        return learned

    def _said(self, reply: Reply) -> str:
        """The status in words. Of a refused key nothing more is told: some endpoints repeat part of it."""
        said = f"it answered {reply.status} ({responses.get(reply.status, 'no known status')})"
        if reply.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return f"{said}: is the key in {self._settings.key_variable or 'key_variable'} right?"
        if 300 <= reply.status < 400:
            return f"{said}: a redirect is not followed; configure the address that it leads to"
        try:
            message = read_json(reply.body)["error"]["message"]
        except (ExchangeError, LookupError, TypeError):
            return said
        if not isinstance(message, str):
            return said
        message = message if self._key is None else message.replace(self._key, "[key]")
        printable = "".join(character if character.isprintable() else " " for character in message)
        return f"{said}: {printable[:_LONGEST_REASON]}"


def _text(document: Any) -> str:
    """The text of the first choice. ExchangeError when there is none; NoAnswer when the model gave none."""
    try:
        choice = document["choices"][0]
        content = choice["message"]["content"]
        refusal = choice["message"].get("refusal")
        finished = choice.get("finish_reason")
    except (LookupError, TypeError, AttributeError) as error:
        raise ExchangeError("its answer is no chat completion", again=True) from error
    if finished == "length":
        raise NoAnswer("the answer was cut at most_tokens; a larger limit is needed")
    if refusal or not isinstance(content, str):
        raise NoAnswer("the model refused to answer" if refusal else "the answer holds no text")
    return content
