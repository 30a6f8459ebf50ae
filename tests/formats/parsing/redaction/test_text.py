"""Redaction of text: every known shape of a secret, and the search for places that may begin one."""

import json
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.formats.parsing import redaction
from aaco_pipeline.formats.parsing.redaction import (
    REDACTED,
    redacted_bytes,
    redacted_pieces,
    redacted_text,
    safe_command,
    safe_name,
    safe_prose,
    safe_text,
    safe_value,
)
from aaco_pipeline.formats.parsing.redaction.text import LONGEST, LONGEST_BEFORE, Announced, announced, suspects
from tests.formats.parsing.redaction.harmless_lines import HARMLESS
from tests.formats.parsing.redaction.secret_shapes import shapes

SHAPES = shapes(7)
TOKEN = "hf_" + "aB3dE6gH9jK2mN5pQ8sT1"


def leaked(secret: str, text: str) -> bool:
    """Return whether the secret, or most of it, is still there."""
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


WINDOW = 16 << 10
WINDOWS = 9
#: Text between the secrets: nothing, one very long line, short lines, words, quotes, what is no ASCII.
FILLINGS = (b"\0", b"x", b"x\n", b"go ", b'"', "\u00e9".encode(), b"\xa0", b"\xff\x85")
SECRETS = (
    b" " + TOKEN.encode() + b" ",
    b" AWS_SECRET_ACCESS_KEY=hunter2xQ9 ",
    b'{"db_password": "hunter2xQ9"}',
    b"\xc3\xa9password: hunter2xQ9\n",
    b" https://me:hunter2xQ9@host/ ",
    b"\nmysql -u root -phunter2xQ9 db\n",
    b"\nmysql " + b"a " * 1_000 + b"-phunter2xQ9 db\n",
    b" configure set \xa0my_api_key hunter2xQ9zT5 ",
    b'{"command": ["mysql", "-phunter2xQ9"], "environ": {"OTHER": "hunter2xQ9"}}',
    b"-----BEGIN PRIVATE KEY-----\n" + b"MIIEvQ9x\n" * 2_000 + b"-----END PRIVATE KEY-----\n",
)
#: Command lines of which not all is looked at as one.
LONG_LINES = (
    b"\nmysql " + b"a " * 1_500 + b"-phunter2xQ9 db\n",
    b"\nmysql " + b"a " * 3_000 + b"-p hunter2xQ9 db\n",
    b"\nmysql " + b"-phunter2xQ9 a " * 400 + b"\n",
)
#: From the bound of a window so far: about it, and about so far before it as is looked at again.
OFFSETS = st.integers(-100, 100) | st.integers(-100, 100).map(lambda at: at - LONGEST_BEFORE)
PLANTED = st.tuples(st.sampled_from(SECRETS + LONG_LINES), st.integers(0, WINDOWS), OFFSETS)


def planted(filling: bytes, secrets: list[tuple[bytes, int, int]]) -> bytes:
    size = WINDOWS * WINDOW
    content = (filling * (size // len(filling) + 1))[:size]
    for secret, window, offset in secrets:
        at = max(0, window * WINDOW + offset)
        content = content[:at] + secret + content[at + len(secret) :]
    return content


def cleaned(content: bytes) -> bytes:
    return b"".join(clean for clean, _ in redacted_pieces([content]))


@given(filling=st.sampled_from(FILLINGS), secrets=st.lists(PLANTED, min_size=1, max_size=4))
def test_a_search_near_beginnings_finds_what_a_search_of_all_finds(
    filling: bytes, secrets: list[tuple[bytes, int, int]]
) -> None:
    content = planted(filling, secrets)
    narrowed = cleaned(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redaction, "suspects", lambda content, further: [(0, len(content))])
        assert narrowed == cleaned(content)


@pytest.mark.parametrize("offset", [-40, -20, -10, -3, -1, 0, 1])
@pytest.mark.parametrize("secret", SECRETS, ids=lambda one: one[:24])
def test_no_secret_stays_about_the_bound_of_a_window(secret: bytes, offset: int) -> None:
    clean = cleaned(planted(b"x\n", [(secret, 3, offset)]))
    assert b"redacted" in clean or b"OTHER" in secret
    assert not any(text in clean for text in (TOKEN.encode(), b"hunter2xQ9", b"MIIEvQ9x"))


@given(filling=st.sampled_from(FILLINGS))
def test_what_holds_no_beginning_is_not_searched(filling: bytes) -> None:
    assert suspects(planted(filling, [])) == []


def test_what_is_searched_holds_what_is_before_a_beginning_and_the_longest_secret_behind_it() -> None:
    at = 4 * WINDOW
    ((begin, stop),) = suspects(planted(b"x", [(b" " + TOKEN.encode(), 4, 0)]))
    assert begin <= at - LONGEST_BEFORE
    assert stop >= at + LONGEST
