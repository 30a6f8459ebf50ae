"""A file is searched for secrets only near what may begin one: what comes of it is what a search of all would give."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.formats.parsing.redaction import streams
from aaco_pipeline.formats.parsing.redaction.streams import redacted_pieces
from aaco_pipeline.formats.parsing.redaction.text import LONGEST, LONGEST_BEFORE, suspects

TOKEN = b"hf_" + b"aB3dE6gH9jK2mN5pQ8sT1"
WINDOW = 16 << 10
WINDOWS = 9
#: What lies between the secrets: nothing, one very long line, short lines, words, quotes, what is no ASCII.
FILLINGS = (b"\0", b"x", b"x\n", b"go ", b'"', "\u00e9".encode(), b"\xa0", b"\xff\x85")
SECRETS = (
    b" " + TOKEN + b" ",
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
        patch.setattr(streams, "suspects", lambda content, further: [(0, len(content))])
        assert narrowed == cleaned(content)


@pytest.mark.parametrize("offset", [-40, -20, -10, -3, -1, 0, 1])
@pytest.mark.parametrize("secret", SECRETS, ids=lambda one: one[:24])
def test_no_secret_stays_about_the_bound_of_a_window(secret: bytes, offset: int) -> None:
    clean = cleaned(planted(b"x\n", [(secret, 3, offset)]))
    assert b"redacted" in clean or b"OTHER" in secret
    assert not any(text in clean for text in (TOKEN, b"hunter2xQ9", b"MIIEvQ9x"))


@given(filling=st.sampled_from(FILLINGS))
def test_what_holds_no_beginning_is_not_searched(filling: bytes) -> None:
    assert suspects(planted(filling, [])) == []


def test_what_is_searched_holds_what_is_before_a_beginning_and_the_longest_secret_behind_it() -> None:
    at = 4 * WINDOW
    ((begin, stop),) = suspects(planted(b"x", [(b" " + TOKEN, 4, 0)]))
    assert begin <= at - LONGEST_BEFORE
    assert stop >= at + LONGEST
