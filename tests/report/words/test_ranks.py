"""Which rank is late in sentences, and what one rank alone can say."""

from typing import Any

from aaco_pipeline.report.words.ranks import per_repetition, told_of_ranks

REASON = (
    "rank 2 is late by 306 µs a collective (median), because its same kernels take 1.3 times as long: the others wait"
)


def rank(number: int, **more: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "process_id": number,
        "rank": number,
        "collectives": 30,
        "judged_count": 20,
        "compared_count": 20,
    }
    row |= {"repetitions": 10, "last_count": 0, "wait_ns": 4_000_000, "behind_first_ns": None, "clock_reason": None}
    return {**row, "expected_participants": 4, "participants": 4, **more}


def document(*rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    answer = {"class": "device", "reason": REASON, "window_rule": "10 repetitions of 7 activities"}
    return {"rank_waits": [*rows], "ranks_missing": [], "answers": [answer], **more}


def test_the_late_rank_is_told_with_how_late_it_comes_and_why() -> None:
    late = rank(2, last_count=18, wait_ns=0, behind_first_ns=5_000_000)
    assert told_of_ranks(document(rank(0), rank(1, last_count=2), late)) == [
        "Rank 2 comes last to 18 of 20 collectives; from the first rank’s arrival to its own pass 500 µs a repetition.",
        f"R{REASON[1:]}.",
    ]
    nothing = {
        **document(rank(0), late),
        "answers": [{"class": "incomplete", "reason": "no kernels", "window_rule": ""}],
    }
    assert len(told_of_ranks(nothing)) == 1


def test_a_rank_that_two_processes_state_names_neither() -> None:
    late = rank(2, last_count=18, wait_ns=0, behind_first_ns=5_000_000)
    assert told_of_ranks(document({**rank(0), "rank": 2}, late))[0].startswith("Process 2 comes last")


def test_amounts_are_of_the_window_where_nothing_repeats() -> None:
    late = rank(2, last_count=18, behind_first_ns=5_000_000, repetitions=None)
    assert "5 ms in the judged window" in told_of_ranks(document(rank(0, repetitions=None), late))[0]
    assert (per_repetition(None, late), per_repetition(50, {"repetitions": 10})) == (None, 5.0)


def test_ranks_that_come_together_have_no_late_one() -> None:
    told = told_of_ranks(document(rank(0), rank(1)))
    assert told == ["No rank comes last beyond the clocks’ uncertainty, in 20 collectives."]


def test_clocks_apart_say_why_nobody_can_be_named() -> None:
    apart = [rank(number, compared_count=0, wait_ns=None, clock_reason="too few collectives") for number in (0, 1)]
    assert told_of_ranks(document(*apart)) == ["Which of the 2 ranks is late cannot be told: too few collectives."]


def test_one_rank_alone_names_the_files_that_would_tell() -> None:
    alone = rank(0, compared_count=0, wait_ns=None, participants=1, expected_participants=8)
    (told,) = told_of_ranks(document(alone, ranks_missing=[{"mend": "a file for each rank"}]))
    assert told.startswith("Which rank is late cannot be told from one rank alone: this is rank 0 of 8")
    assert told.endswith("That takes a file for each rank.")
    unsaid = {**alone, "expected_participants": None, "rank": None}
    (told,) = told_of_ranks(document(unsaid))
    assert "this is process 0, and" in told
    assert "worker_name" in told


def test_without_collectives_nothing_is_said() -> None:
    assert told_of_ranks(document()) == []
