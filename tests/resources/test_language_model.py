"""A language model: its settings, an endpoint that may be slow, broken or hostile, and recorded exchanges.

Each question ends in time, with an answer or one line that gives the reason and never the key.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest

from aaco_pipeline.errors import UsageError
from aaco_pipeline.optimization.candidates import Candidate, NotApplicable
from aaco_pipeline.optimization.proposers.language_model import LanguageModelProposer, Message, NoAnswer, Question
from aaco_pipeline.resources import language_model
from aaco_pipeline.resources.language_model import (
    FILE,
    Client,
    LanguageModel,
    Recorded,
    Replayed,
    key_of,
    load_language_model,
)
from aaco_pipeline.resources.project import DEFAULTS
from tests.optimization.proposers.kernels import ROW_DOT, task
from tests.resources.model_endpoint import Endpoint, Script, answer, completion, serving

LEAST = "language_model: {base_url: https://models.example/v1/, model: coder-7b}"


def loaded(text: str, folder: Path) -> LanguageModel | None:
    (folder / FILE).write_text(text)
    return load_language_model(folder)


def test_nothing_is_configured_without_a_file_and_by_the_template(tmp_path: Path) -> None:
    assert load_language_model(tmp_path) is None
    assert load_language_model(DEFAULTS / "configs") is None
    assert loaded("language_model: null", tmp_path) is None


def test_the_template_is_right_once_its_lines_are_uncommented(tmp_path: Path) -> None:
    lines = (DEFAULTS / "configs" / FILE).read_text().splitlines()
    start = lines.index("# language_model:")
    settings = loaded("\n".join(line.removeprefix("# ") for line in lines[start:]), tmp_path)
    assert settings is not None
    assert settings.key_variable == "MODEL_API_KEY"


def test_address_and_model_are_enough(tmp_path: Path) -> None:
    settings = loaded(LEAST, tmp_path)
    assert settings == LanguageModel(base_url="https://models.example/v1", model="coder-7b")
    assert key_of(settings, {}) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_on_this_host_http_is_enough_and_elsewhere_it_can_be_allowed(host: str) -> None:
    assert LanguageModel(base_url=f"http://{host}:8000/v1", model="m").base_url == f"http://{host}:8000/v1"
    assert LanguageModel(base_url="http://node7:8000/v1", model="m", allow_http=True).allow_http


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("language_model: {model: m}", "expected the address under which /chat/completions is"),
        ("language_model: {base_url: https://h/v1}", "expected the name of a model"),
        ("language_model: {base_url: http://node7/v1, model: m}", "base_url: .*expected https, as the host is not"),
        ("language_model: {base_url: 'http://localhost.evil.example/v1', model: m}", "expected https"),
        ("language_model: {base_url: 'https://me:word@h/v1', model: m}", "without a user or key"),
        ("language_model: {base_url: 'https://h/v1?key=1', model: m}", "without a user or key"),
        ("language_model: {base_url: 'file:///etc/passwd', model: m}", "expected the address"),
        ("language_model: {base_url: 'https://h:99999/v1', model: m}", "expected the address"),
        ("language_model: {base_url: https://h/v1, model: m, key_variable: sk-123}", "never the key itself"),
        ("language_model: {base_url: https://h/v1, model: m, timeout_seconds: 0}", "a number of seconds up to 3600"),
        ("language_model: {base_url: https://h/v1, model: m, key: sk-123}", "expected one of base_url"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(text: str, refusal: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=refusal) as raised:
        loaded(text, tmp_path)
    assert str(tmp_path / FILE) in str(raised.value)


def test_the_key_comes_from_the_environment_and_is_not_in_the_settings() -> None:
    settings = LanguageModel(base_url="https://h/v1", model="m", key_variable="THE_KEY")
    assert key_of(settings, {"THE_KEY": "sk-123\n"}) == "sk-123"
    assert "sk-123" not in repr(settings)


@pytest.mark.parametrize(
    ("held", "state"), [({}, "is not set"), ({"THE_KEY": "sk 12\n3"}, "holds what cannot be a key")]
)
def test_a_key_that_cannot_be_sent_is_not_repeated(held: dict[str, str], state: str) -> None:
    settings = LanguageModel(base_url="https://h/v1", model="m", key_variable="THE_KEY")
    with pytest.raises(UsageError, match=f"THE_KEY.* {state}$") as raised:
        key_of(settings, held)
    assert "sk" not in str(raised.value)


QUESTION: Final = Question("tiny", (Message("system", "Be brief."), Message("user", "Faster?")), {"type": "object"})
KEY: Final = "sk-very-secret"
TIMEOUT_SECONDS: Final = 0.2
BUSY: Final = answer(b"", "429 Too Many Requests", Retry_After="0")
BROKEN: Final = answer(b"oops", "500 Internal Server Error", Retry_After="0")


def client(endpoint: Endpoint, timeout_seconds: float = 5, waits: list[float] | None = None) -> Client:
    settings = LanguageModel(
        base_url=endpoint.url, model="tiny", key_variable="THE_KEY", timeout_seconds=timeout_seconds, most_tokens=77
    )
    return Client(settings, KEY, pause=(waits if waits is not None else []).append)


def refused(*scripts: Script, timeout_seconds: float = 5) -> tuple[str, Endpoint]:
    """The reason that there was no answer, without a key in it, and the endpoint."""
    with serving(*scripts) as endpoint, pytest.raises(NoAnswer) as raised:
        client(endpoint, timeout_seconds)(QUESTION)
    assert KEY not in str(raised.value)
    assert "\n" not in str(raised.value)
    return str(raised.value), endpoint


def test_the_question_goes_out_in_the_protocol_with_key_limit_and_schema() -> None:
    with serving(completion("yes")) as endpoint:
        assert client(endpoint)(QUESTION) == "yes"
    (request,), (head,) = endpoint.requests, endpoint.headers
    assert head.startswith("POST /v1/chat/completions HTTP/1.1")
    assert f"Authorization: Bearer {KEY}" in head
    assert request["model"] == "tiny"
    assert request["max_tokens"] == 77
    assert [one["content"] for one in request["messages"]] == ["Be brief.", "Faster?"]
    assert [one["role"] for one in request["messages"]] == ["system", "user"]
    assert request["response_format"]["json_schema"]["schema"] == {"type": "object"}


def test_without_a_key_no_authorization_is_sent() -> None:
    with serving(completion("yes")) as endpoint:
        settings = LanguageModel(base_url=endpoint.url, model="tiny")
        assert Client(settings, None)(QUESTION) == "yes"
    assert "authorization" not in endpoint.headers[0].lower()


@pytest.mark.parametrize("script", [BUSY, BROKEN, answer(b"not json"), answer(b"{}"), [b"what?\r\n\r\n"], [b""]])
def test_what_may_pass_is_tried_again(script: Script) -> None:
    with serving(script, completion("yes")) as endpoint:
        assert client(endpoint)(QUESTION) == "yes"
    assert len(endpoint.requests) == 2


def test_it_gives_up_after_three_tries_and_waits_longer_each_time() -> None:
    waits: list[float] = []
    script = answer(b"", "503 Service Unavailable")
    with serving(script) as endpoint, pytest.raises(NoAnswer, match="it answered 503"):
        client(endpoint, timeout_seconds=60, waits=waits)(QUESTION)
    assert len(endpoint.requests) == 3
    assert waits == [1.0, 2.0]


@pytest.mark.parametrize(("seconds", "limit"), [("31", 3000), ("99999", 3000), ("7", 5)])
def test_a_wait_that_is_too_long_or_ends_after_the_time_limit_is_not_begun(seconds: str, limit: float) -> None:
    waits: list[float] = []
    script = answer(b"", "429 Too Many Requests", Retry_After=seconds)
    with serving(script) as endpoint, pytest.raises(NoAnswer, match="429"):
        client(endpoint, timeout_seconds=limit, waits=waits)(QUESTION)
    assert (len(endpoint.requests), waits) == (1, [])


def drip(head: bytes, piece: bytes) -> Iterable[bytes | float]:
    """Longer than any busy machine takes to notice that the time is up."""
    yield head
    for _ in range(3_000):
        yield 0.02
        yield piece


@pytest.mark.parametrize(
    "script",
    [
        [60.0],
        list(drip(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", b" ")),
        list(drip(b"HTTP/1.1 200 OK\r\n", b"X-More: 1\r\n")),
        list(drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n")),
        list(drip(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n")),
    ],
    ids=["says nothing", "drips its body", "drips its head", "always continues", "drips chunks"],
)
def test_an_answer_that_does_not_end_is_cut_off_in_time(script: list[bytes | float]) -> None:
    with serving(script) as endpoint:
        with pytest.raises(NoAnswer, match="did not answer in time"):
            client(endpoint, TIMEOUT_SECONDS)(QUESTION)
        assert endpoint.answered == 0


def test_a_body_that_is_too_large_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language_model, "LARGEST_ANSWER_BYTES", 100_000)
    reason, endpoint = refused([b"HTTP/1.1 200 OK\r\n\r\n", b" " * 300_000])
    assert "larger than 100000 bytes" in reason
    assert len(endpoint.requests) == 1


def test_a_body_shorter_than_it_says_is_no_answer() -> None:
    whole = completion("yes")[0]
    assert isinstance(whole, bytes)
    reason, endpoint = refused(
        answer(whole.partition(b"\r\n\r\n")[2], length=100_000, Retry_After="0"), timeout_seconds=9
    )
    assert "bytes" in reason
    assert len(endpoint.requests) == 3


def test_a_body_longer_than_it_says_is_cut_and_so_no_answer() -> None:
    whole = completion("yes")[0]
    assert isinstance(whole, bytes)
    reason, _ = refused(answer(whole.partition(b"\r\n\r\n")[2], length=20), timeout_seconds=9)
    assert "not JSON" in reason


@pytest.mark.parametrize("elsewhere", ["http://127.0.0.2:9/v1", "/v1/elsewhere"])
def test_no_redirect_is_followed(elsewhere: str) -> None:
    reason, endpoint = refused(answer(b"", "307 Temporary Redirect", Location=elsewhere), completion("stolen"))
    assert "redirect is not followed" in reason
    assert len(endpoint.requests) == 1


def test_what_an_endpoint_does_not_know_is_left_out_from_then_on() -> None:
    unknown = answer(b'{"error": {"message": "response_format is not supported"}}', "400 Bad Request")
    with serving(unknown, completion("first"), completion("second")) as endpoint:
        asking = client(endpoint)
        assert [asking(QUESTION), asking(QUESTION)] == ["first", "second"]
    assert ["response_format" in request for request in endpoint.requests] == [True, False, False]


def test_a_newer_name_of_the_limit_is_learnt() -> None:
    unknown = answer(b'{"error": {"message": "use max_completion_tokens"}}', "400 Bad Request")
    with serving(unknown, completion("yes")) as endpoint:
        assert client(endpoint)(QUESTION) == "yes"
    assert endpoint.requests[1]["max_completion_tokens"] == 77
    assert "max_tokens" not in endpoint.requests[1]


def test_a_request_that_stays_bad_ends_with_what_the_endpoint_says() -> None:
    said = f'{{"error": {{"message": "no model tiny for {KEY}\\nat all"}}}}'.encode()
    reason, endpoint = refused(answer(said, "400 Bad Request"))
    assert "no model tiny for [key] at all" in reason
    assert len(endpoint.requests) == 2


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden"])
def test_of_a_refused_key_nothing_is_repeated(status: str) -> None:
    reason, endpoint = refused(answer(b'{"error": {"message": "incorrect key sk-ve***et"}}', status))
    assert "is the key in THE_KEY right?" in reason
    assert "sk-" not in reason
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        ({"finish_reason": "length"}, "cut at most_tokens"),
        ({"message": {"content": None, "refusal": "I would rather not"}}, "refused to answer"),
        ({"message": {"content": None}}, "holds no text"),
        ({"message": {"content": ["a", "b"]}}, "holds no text"),
    ],
)
def test_a_completion_without_a_whole_text_is_no_answer(choice: dict[str, Any], reason: str) -> None:
    said, endpoint = refused(completion("half", **choice))
    assert reason in said
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize("body", [b"[]", b"null", b'{"choices": 3}', b'{"choices": [null]}', b"[" * 100_000])
def test_other_json_is_no_completion(body: bytes) -> None:
    reason, _ = refused(answer(body), timeout_seconds=9)
    assert "is no chat completion" in reason or "is not JSON" in reason


def test_nobody_there_is_one_line() -> None:
    with serving(completion("yes")) as endpoint:
        pass
    with pytest.raises(NoAnswer, match="the connection was refused"):
        client(endpoint)(QUESTION)


def test_a_handshake_that_nobody_answers_ends_in_time() -> None:
    with serving([]) as endpoint:
        settings = LanguageModel(base_url=endpoint.url.replace("http:", "https:"), model="tiny", timeout_seconds=0.2)
        with pytest.raises(NoAnswer, match="did not answer in time"):
            Client(settings, KEY)(QUESTION)
    assert endpoint.requests == []


def question(text: str = "Faster?", model: str = "tiny") -> Question:
    return Question(model, (Message("user", text),), {"type": "object", "required": ["change"]})


def never(asked: Question) -> str:
    raise AssertionError("the network is not asked")


def silent(asked: Question) -> str:
    raise NoAnswer("it did not answer in time")


def test_an_exchange_is_one_file_named_by_the_question_and_answers_it_again(tmp_path: Path) -> None:
    assert Recorded(lambda asked: "yes \ud800", tmp_path / "new")(question()) == "yes \ud800"
    (path,) = (tmp_path / "new").iterdir()
    assert path.name == f"{question().sha256}.json"
    document = json.loads(path.read_text())
    assert document == {"question": question().document(), "answer": "yes \ud800", "failure": None}
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


UNROLL = json.dumps({"change": {"kind": "unroll", "loop": "loop1", "factor": 4}})


def test_what_was_answered_is_proposed_again_from_the_files(tmp_path: Path) -> None:
    broken = answer(b"", "500 Internal Server Error", Retry_After="0")
    with serving(broken, completion("I think so."), completion(f"```json\n{UNROLL}\n```")) as endpoint:
        settings = LanguageModel(base_url=endpoint.url, model="tiny", key_variable="THE_KEY", timeout_seconds=5)
        asked = LanguageModelProposer(Recorded(Client(settings, KEY), tmp_path), settings.model)
        first = list(asked.propose(task(ROW_DOT)))
    assert isinstance(first[0], Candidate)
    assert first[0].transformation == "unroll loop1 by 4"
    assert list(LanguageModelProposer(Replayed(tmp_path), "tiny").propose(task(ROW_DOT))) == first
    kept = "".join(path.read_text() for path in tmp_path.iterdir())
    assert KEY not in kept
    assert endpoint.url not in kept


def test_an_endpoint_that_is_away_is_a_line_in_the_journal(tmp_path: Path) -> None:
    with serving([]) as endpoint:
        pass
    settings = LanguageModel(base_url=endpoint.url, model="tiny", timeout_seconds=0.2)
    asked = LanguageModelProposer(Recorded(Client(settings, None), tmp_path), settings.model)
    assert list(asked.propose(task(ROW_DOT))) == [
        NotApplicable("language_model", f"{endpoint.url}: the connection was refused")
    ]
