"""Numbers are in units that a person reads."""

import pytest

from aaco_pipeline.report import formatting


def test_numbers_are_in_units_a_person_reads() -> None:
    assert [formatting.duration(value) for value in (None, 0, 999, 1500, 2.5e6, 12_345_678_900_000)] == [
        None,
        "0 ns",
        "999 ns",
        "1.5 µs",
        "2.5 ms",
        "12,346 s",
    ]
    assert [formatting.size(value) for value in (None, 5, 2048, 3 << 30)] == [None, "5 B", "2.0 KiB", "3.0 GiB"]
    assert [formatting.work(value) for value in (None, 12, 2e9)] == [None, "12 flop", "2 Gflop"]
    assert [formatting.share(value) for value in (None, 0, 0.125)] == [None, "0.0 %", "12.5 %"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.42, "0.42 s"),
        (99.9, "100 s"),
        (119, "119 s"),
        (120, "2 min"),
        (150, "2.5 min"),
        (7_199, "120 min"),
        (7_200, "2 h"),
    ],
)
def test_a_time_that_one_plans_by(seconds: float, words: str) -> None:
    assert formatting.long_duration(seconds * 1e9) == words
    assert formatting.long_duration(None) is None
