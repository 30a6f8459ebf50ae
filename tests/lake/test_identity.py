"""Ids are made in one form, and only that form becomes a path.

Finding a session by a part of its id is tested in `test_store`.
"""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.layout import SESSION_ID, new_session_id, require_campaign_id, require_session_id

SESSION = "20250101T000000Z-0000000a"


def test_a_new_id_is_a_valid_id_of_this_moment() -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    made = new_session_id()
    assert require_session_id(made) == made
    assert before <= datetime.strptime(made[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC) <= datetime.now(UTC)


def test_an_id_names_the_moment_in_utc_wherever_it_was_made() -> None:
    elsewhere = datetime(2025, 1, 1, 1, 30, tzinfo=timezone(timedelta(hours=2)))
    assert new_session_id(now=elsewhere).startswith("20241231T233000Z-")


def test_ids_of_one_second_differ_and_ids_sort_by_time() -> None:
    moment = datetime(2025, 1, 1, tzinfo=UTC)
    made = [new_session_id(now=moment) for _ in range(50)]
    assert len(set(made)) == len(made)
    assert all(SESSION_ID.fullmatch(identifier) for identifier in made)
    assert max(made) < new_session_id(now=moment + timedelta(seconds=1))


@pytest.mark.parametrize(
    ("workload", "end"),
    [
        ("squeezenet", "-squeezenet"),
        ("Llama 3.1 (8B), FP8", "-llama-3-1-8b-fp8"),
        ("../../etc", "-etc"),
        ("x" * 23 + " yz", "-" + "x" * 23),
        ("x" * 99, "-" + "x" * 24),
        ("größe", "-gr-e"),
        ("模型", ""),
        ("", ""),
        (None, ""),
    ],
)
def test_an_id_ends_with_what_a_person_calls_the_workload(workload: str | None, end: str) -> None:
    made = new_session_id(workload)
    assert require_session_id(made) == made
    assert made[25:] == end


@pytest.mark.parametrize(
    "text",
    ["", "latest", "../x", SESSION + "/..", SESSION.upper(), SESSION + "\n", SESSION[:-1], "２" + SESSION[1:], "*"]
    + [f"{SESSION}{end}" for end in ("-", "--a", "-A", "-a_b", "-a/b", "-" + "a" * 25, "-a\n", "squeezenet")],
)
def test_what_is_no_session_id_never_becomes_a_path(text: str) -> None:
    with pytest.raises(UsageError, match="is not a session id"):
        require_session_id(text)


@pytest.mark.parametrize("text", ["nightly", "20250101", "a-b_C", "x" * 128])
def test_a_campaign_may_have_a_plain_name(text: str) -> None:
    assert require_campaign_id(text) == text


@pytest.mark.parametrize("text", ["", "..", "a/b", "a b", "-x", "a\n", "x" * 129, "ä", "a'b"])
def test_what_is_no_campaign_id_never_becomes_a_path(text: str) -> None:
    with pytest.raises(UsageError, match="is not a campaign id"):
        require_campaign_id(text)
