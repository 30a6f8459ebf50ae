"""The file names an endpoint and the variable that holds its key; what is wrong with it is one line, never the key."""

from pathlib import Path

import pytest

from aaco_pipeline.errors import UsageError
from aaco_pipeline.resources.language_model.settings import FILE, LanguageModel, key_of, load_language_model
from aaco_pipeline.resources.project import DEFAULTS

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


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000/v1", "http://localhost:8000/v1", "http://[::1]:8000/v1"])
def test_on_this_host_http_is_enough(url: str) -> None:
    assert LanguageModel(base_url=url, model="m").base_url == url


def test_http_elsewhere_is_possible_where_it_is_asked_for() -> None:
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
