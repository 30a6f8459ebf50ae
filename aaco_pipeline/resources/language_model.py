"""The language model that may propose changes to a kernel: its settings, a client with time and size limits, a record.

`aaco_pipeline.optimization.proposers` writes the questions and checks the answers. The key is only ever in the
environment; neither the key nor the address is recorded.
"""

import http.client
import io
import ipaddress
import json
import os
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.client import responses
from pathlib import Path
from typing import Annotated, Any, Final, Self, cast
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from aaco_pipeline.errors import UsageError
from aaco_pipeline.optimization.proposers.language_model import Ask, NoAnswer, Question
from aaco_pipeline.resources.configuration import Form, expected, expecting, load_form

FILE: Final = "language_model.yaml"
_KEY: Final = re.compile(r"[\x21-\x7e]{1,4096}")


def _address(text: str) -> str:
    """An http or https address of a host and a path, without any secrets."""
    try:
        parts = urlsplit(text)
        named = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        named = False
    plain = text.isascii() and text.isprintable() and " " not in text
    if not named or not plain or parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError
    return text.rstrip("/")


class LanguageModel(Form):
    """An OpenAI-compatible endpoint. `timeout_seconds` applies to one question including all retries."""

    base_url: Annotated[
        str,
        AfterValidator(_address),
        expecting("the address under which /chat/completions is, without a user or key, such as https://host/v1"),
    ] = Field(default=None, validate_default=True)
    model: Annotated[
        str,
        StringConstraints(pattern=r"^[\x21-\x7e]{1,200}$"),
        expecting("the name of a model, as the endpoint knows it"),
    ] = Field(default=None, validate_default=True)
    key_variable: (
        Annotated[
            str,
            StringConstraints(pattern=r"^[A-Z_][A-Z0-9_]{0,127}$"),
            expecting("the name of the environment variable that holds the key, never the key itself"),
        ]
        | None
    ) = None
    timeout_seconds: Annotated[float, Field(gt=0, le=3600), expecting("a number of seconds up to 3600")] = 120.0
    most_tokens: Annotated[int, Field(ge=1, le=1_000_000), expecting("a whole number from 1 to 1000000")] = 8192
    allow_http: Annotated[bool, expecting("true or false")] = False

    @model_validator(mode="after")
    def _encrypted_or_here(self) -> Self:
        if urlsplit(self.base_url).scheme == "http" and not self.allow_http and not _is_loopback(self.base_url):
            raise expected("https, as the host is not this one (or allow_http: true beside it)", key="base_url")
        return self


class _File(Form):
    language_model: LanguageModel | None = None


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def load_language_model(configs: Path) -> LanguageModel | None:
    """Return the endpoint in the folder's settings file; None if it is missing or empty. UsageError in one line."""
    file = load_form(configs / FILE, _File)
    return None if file is None else file.language_model


def key_of(settings: LanguageModel, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the key to send, or None if the settings name no variable.

    Raises UsageError, without revealing the content, if the variable is not set or its content cannot be sent.
    """
    if settings.key_variable is None:
        return None
    key = environment.get(settings.key_variable, "").strip()
    if not _KEY.fullmatch(key):
        state = "holds what cannot be a key" if key else "is not set"
        raise UsageError(f"{settings.key_variable}, which {FILE} names for the language model's key, {state}")
    return key


LARGEST_ANSWER_BYTES: Final = 4 * 1024 * 1024
_CHUNK_BYTES: Final = 64 * 1024


class ExchangeError(Exception):
    """No complete answer arrived. `again` is True if a retry may succeed."""

    def __init__(self, reason: str, *, again: bool) -> None:
        super().__init__(reason)
        self.again = again


@dataclass(frozen=True)
class Reply:
    """An answer: its status, its body, and the delay in seconds that it requests before a retry, if any."""

    status: int
    retry_after_seconds: float | None
    body: bytes


def post(url: str, headers: Mapping[str, str], content: bytes, deadline: float) -> Reply:
    """Send `content` as JSON to `url` and read the complete answer before `deadline` of the monotonic clock.

    Raises ExchangeError if this does not finish in time or the HTTP answer is invalid.
    """
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    make = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = make(cast(str, parts.hostname), parts.port)
    connected: _Connected | None = None
    try:
        connected = _Connected(connection.host, connection.port, secure, deadline)
        connection.sock = cast(socket.socket, connected)
        connection.request("POST", parts.path, content, {"Content-Type": "application/json", **headers})
        response = connection.getresponse()
        return Reply(response.status, _seconds(response.headers.get("Retry-After")), _body(response))
    except TimeoutError as error:
        raise ExchangeError("it did not answer in time", again=False) from error
    except ConnectionRefusedError as error:
        raise ExchangeError("the connection was refused", again=False) from error
    except (socket.gaierror, ssl.SSLCertVerificationError) as error:
        raise ExchangeError(
            f"it cannot be reached ({error.strerror or 'no valid certificate'})", again=False
        ) from error
    except http.client.HTTPException as error:
        raise ExchangeError(f"what it sent is no HTTP answer ({type(error).__name__})", again=True) from error
    except OSError as error:
        raise ExchangeError(f"the connection broke ({error.strerror or type(error).__name__})", again=True) from error
    finally:
        connection.close()
        if connected is not None:
            connected.hang_up()


def _body(response: http.client.HTTPResponse) -> bytes:
    """Return the complete body. ExchangeError if it is too large or does not have its declared length."""
    declared = response.length
    body = bytearray()
    while chunk := response.read1(_CHUNK_BYTES):
        body += chunk
        if len(body) > LARGEST_ANSWER_BYTES:
            raise ExchangeError(f"its answer is larger than {LARGEST_ANSWER_BYTES} bytes", again=False)
    if declared is not None and len(body) != declared:
        raise ExchangeError(f"its answer ended after {len(body)} of {declared} bytes", again=True)
    return bytes(body)


def _seconds(text: str | None) -> float | None:
    """Return the seconds in a Retry-After header; a date, or anything else, is ignored."""
    return float(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 6 else None


def read_json(body: bytes) -> Any:
    """Return the body as plain values. ExchangeError, with a retry allowed, if it is not JSON in UTF-8."""
    try:
        return json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ExchangeError("its answer is not JSON", again=True) from error


class _Connected:
    """A connected socket, encrypted if `secure`; all operations share one deadline.

    A socket's own timeout applies to each operation, so it does not limit an answer that arrives byte by byte.
    """

    def __init__(self, host: str, port: int, secure: bool, deadline: float) -> None:
        self._deadline = deadline
        self._socket = socket.create_connection((host, port), self._left())
        if secure:
            context = ssl.create_default_context()
            try:
                self._socket.settimeout(self._left())
                self._socket = context.wrap_socket(self._socket, server_hostname=host)
            except BaseException:
                self._socket.close()
                raise

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def sendall(self, content: bytes) -> None:
        view = memoryview(content)
        while view:
            self._socket.settimeout(self._left())
            view = view[self._socket.send(view) :]

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Incoming(self))

    def receive_into(self, buffer: Any) -> int:
        self._socket.settimeout(self._left())
        return self._socket.recv_into(buffer)

    def close(self) -> None:
        """Do nothing: `http.client` closes the socket after the header of a final answer, before its body is read."""

    def hang_up(self) -> None:
        self._socket.close()


class _Incoming(io.RawIOBase):
    """Bytes that arrive on the socket, in the form that `http.client` reads."""

    def __init__(self, connected: _Connected) -> None:
        self._connected = connected

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._connected.receive_into(buffer)


_TRIES: Final = 3
_FIRST_WAIT_SECONDS: Final = 1.0
_LONGEST_WAIT_SECONDS: Final = 30.0
_BUSY: Final = frozenset({408, 429, 500, 502, 503, 504, 529})
#: Status codes of endpoints that do not know a field of the request.
_NOT_UNDERSTOOD: Final = frozenset({400, 422})
_LONGEST_REASON: Final = 200


class Client:
    """Ask the endpoint of `settings`, and remember its dialect for the next question.

    A question with all retries ends within `settings.timeout_seconds`. Redirects are not followed and proxies from the
    environment are not used: the key goes only to the configured host.
    """

    def __init__(self, settings: LanguageModel, key: str | None, pause: Callable[[float], None] = time.sleep) -> None:
        self._settings = settings
        self._key = key
        self._pause = pause
        self._has_schema = True
        self._limit_name = "max_tokens"

    def __call__(self, question: Question) -> str:
        """Return the text of the answer. NoAnswer if none arrived or it is incomplete."""
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
        """Drop a field that this endpoint does not know; False if there is nothing more to drop."""
        if b"max_completion_tokens" in reply.body and self._limit_name == "max_tokens":
            self._limit_name = "max_completion_tokens"
            return True
        learned, self._has_schema = self._has_schema, False
        return learned

    def _said(self, reply: Reply) -> str:
        """Describe the status. No further detail is reported for a refused key: some endpoints echo part of it."""
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
    """Return the text of the first choice. ExchangeError if there is none; NoAnswer if the model gave none."""
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


_LARGEST_FILE_BYTES: Final = 32 * 1024 * 1024


class Recorded:
    """Ask questions, and store each exchange in `folder` before its answer is used.

    A question that is already answered in the folder is not asked again, so the recorded answer is the one used.
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
        """Write a temporary file and rename it: a kill leaves either a complete file or none of that name."""
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
    """Answer only from the files in `folder`. UsageError for a question that is not recorded."""

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
    """Return the recorded exchange or None. UsageError if the file was not written by this class."""
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
