"""Every known shape of a secret is hidden wherever it stands, and what only looks like one stays."""

import json
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.formats.parsing.redaction import (
    REDACTED,
    redacted_bytes,
    redacted_text,
    safe_command,
    safe_name,
    safe_prose,
    safe_text,
    safe_value,
)
from aaco_pipeline.formats.parsing.redaction.keys import Announced, announced
from tests.formats.parsing.redaction.harmless_lines import HARMLESS
from tests.formats.parsing.redaction.secret_shapes import shapes

SHAPES = shapes(7)
TOKEN = "hf_" + "aB3dE6gH9jK2mN5pQ8sT1"


def leaked(secret: str, text: str) -> bool:
    """Whether the secret, or the most of it, is still there."""
    return secret in text or (len(secret) > 12 and (secret[5:] in text or secret[:-5] in text))


def test_the_table_holds_sixty_shapes_and_more() -> None:
    assert len(SHAPES) >= 120
    assert len({line for line, _ in SHAPES}) == len(SHAPES)
    assert len(HARMLESS) >= 100


@pytest.mark.parametrize(("line", "secret"), SHAPES, ids=[line for line, _ in SHAPES])
def test_every_shape_is_hidden_in_a_command_line_in_words_and_in_text(line: str, secret: str) -> None:
    command = line.format(secret)
    assert not leaked(secret, safe_command(command))
    assert not leaked(secret, safe_prose(json.dumps({"extra": 1, "note": "ran " + command})))
    try:
        words = shlex.split(command)
    except ValueError:
        return
    assert not leaked(secret, safe_command(words))


@pytest.mark.parametrize("line", HARMLESS)
def test_what_holds_no_secret_stays_as_it_is(line: str) -> None:
    assert safe_command(line) == line
    assert safe_prose(line) == line
    assert redacted_text(line) == (line, 0)


@pytest.mark.parametrize(("line", "secret"), SHAPES[:40])
def test_to_hide_again_changes_nothing(line: str, secret: str) -> None:
    once = safe_command(line.format(secret))
    assert safe_command(once) == once


@given(st.binary(max_size=200), st.binary(max_size=200), st.sampled_from([b"ghp_" + b"a1B2" * 9, TOKEN.encode()]))
def test_a_token_between_any_bytes_never_passes(before: bytes, after: bytes, token: bytes) -> None:
    clean, hits = redacted_bytes(before + b" " + token + b" " + after)
    assert hits >= 1
    assert token not in clean


@given(st.text())
def test_any_text_can_be_asked(text: str) -> None:
    for asked in (safe_text, safe_command, safe_prose, safe_name):
        assert isinstance(asked(text), str)


@pytest.mark.parametrize(
    ("name", "surety"),
    [
        ("--max-tokens", Announced.NOTHING),
        ("pad_token", Announced.NOTHING),
        ("tokenizer", Announced.NOTHING),
        ("PWD", Announced.NOTHING),
        ("token_type", Announced.NOTHING),
        ("hfToken", Announced.LIKELY),
        ("X-Auth-Token", Announced.LIKELY),
        ("pass", Announced.PERHAPS),
        ("AWS_SECRET_ACCESS_KEY", Announced.SURELY),
        ("apiKey", Announced.SURELY),
    ],
)
def test_a_name_says_how_surely_a_secret_follows(name: str, surety: Announced) -> None:
    assert announced(name) is surety


def test_a_value_goes_by_its_name() -> None:
    assert safe_value("api_key", "plain") == REDACTED
    assert safe_value("hip_version", "60443483") == "60443483"


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("28_results.db", "28_results.db"),
        ("token_softmax_kernel2_trace.csv", "token_softmax_kernel2_trace.csv"),
        (f"run_{TOKEN}_results.db", "run_redacted_results.db"),
        ("api-key-hunter2x.json", "api-key-redacted.json"),
    ],
)
def test_a_files_name_loses_its_secret_alone(name: str, kept: str) -> None:
    assert safe_name(name) == kept


def test_an_escape_before_a_token_does_not_hide_it() -> None:
    for before in ("\\n", "\\t", "%3D", "\\u003d", "x_"):
        assert TOKEN not in safe_text(before + TOKEN)


def test_long_rubbish_is_judged_in_time_that_grows_with_it() -> None:
    for piece in ("token", "-----BEGIN A PRIVATE KEY-----", "://a:", "\"'\\", "password=", "eyJa.", "--api-key "):
        assert isinstance(safe_prose(piece * (20_000 // len(piece))), str)
