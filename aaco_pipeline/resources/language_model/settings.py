"""Where the language model is: `configs/language_model.yaml`. The key itself is only ever in the environment."""

import ipaddress
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from aaco_pipeline.errors import UsageError
from aaco_pipeline.resources.configuration import Form, expecting, load_form

FILE: Final = "language_model.yaml"
#: The error type whose words `load_form` prints after "expected".
_EXPECTED: Final = "expected"
_KEY: Final = re.compile(r"[\x21-\x7e]{1,4096}")


def _address(text: str) -> str:
    """An http or https address of a host and a folder, with nothing secret in it."""
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
    """An OpenAI-compatible endpoint. `timeout_seconds` is for one question with all that is tried again for it."""

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
            raise PydanticCustomError(
                _EXPECTED,
                "{words}",
                {"words": "https, as the host is not this one (or allow_http: true beside it)", "key": "base_url"},
            )
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
    """The endpoint that the folder's file names; None where there is no file or nothing in it. UsageError in a line."""
    file = load_form(configs / FILE, _File)
    return None if file is None else file.language_model


def key_of(settings: LanguageModel, environment: Mapping[str, str] = os.environ) -> str | None:
    """The key to send, or None where the settings name no variable.

    UsageError, without a word of what it holds, when the variable is not set or holds what cannot be sent.
    """
    if settings.key_variable is None:
        return None
    key = environment.get(settings.key_variable, "").strip()
    if not _KEY.fullmatch(key):
        state = "holds what cannot be a key" if key else "is not set"
        raise UsageError(f"{settings.key_variable}, which {FILE} names for the language model's key, {state}")
    return key
