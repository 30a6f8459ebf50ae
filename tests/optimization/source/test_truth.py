"""Which loops may be unrolled, against a table made by hand for kernels written for the purpose."""

from pathlib import Path
from typing import Final, NamedTuple

import pytest

from aaco_pipeline.optimization.source import Loop, parse

HERE: Final = Path(__file__).parent
SOURCES: Final = sorted((HERE / "kernels").glob("*.hip"))
#: What the reason of a loop that may not be unrolled says, by the word that the table has for it.
SAID: Final = {
    "damaged": "not understand|not understood",
    "barrier": "a barrier",
    "cross_lane": "across lanes",
    "atomic": "an atomic",
    "volatile": "volatile",
    "dynamic_lds": "dynamic local data share",
    "assembly": "assembly",
    "exit": "leaves the loop|goto",
    "header": "changes",
    "unknown": "not known|is allocated|declared nowhere|through a value|no array|pasted",
    "pragma": "pragma|already carries",
}


class Row(NamedTuple):
    """A line of the table; `-` is None."""

    source: str
    kernel: str
    loop: str
    line: str
    safe: str
    innermost: str
    trips: str


def rows_of(name: str) -> list[Row]:
    return [Row(*line.split()) for line in (HERE / name).read_text().splitlines() if line[:1] != "#"]


TABLE: Final = rows_of("truth.txt")
#: What is said of some loops in place of what is true of them.
LESS: Final = {row[:3]: row for row in rows_of("less.txt")}


def row_of(source: str, kernel: str, loop: Loop) -> Row:
    """A loop as the table would have it; an unsafe one with the first word that its reason bears out."""
    words = [word for word, said in SAID.items() if any(each in (loop.reason or "") for each in said.split("|"))]
    trips = "-" if loop.trip_count is None else str(loop.trip_count)
    safe = "yes" if loop.safe else (words or [loop.reason or ""])[0]
    return Row(source, kernel, loop.identifier, str(loop.line), safe, "yes" if loop.innermost else "no", trips)


def found_in(path: Path) -> list[Row]:
    rows: list[Row] = []
    for kernel in parse(path.read_bytes()).kernels:
        loops = [row_of(path.stem, kernel.name, loop) for loop in kernel.loops]
        rows += loops or [Row(path.stem, kernel.name, *"-----")]
    return rows


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_every_loop_is_what_the_table_says(path: Path) -> None:
    assert found_in(path) == [LESS.get(row[:3], row) for row in TABLE if row.source == path.stem]


def test_what_is_said_in_place_of_the_truth_is_less_and_never_more() -> None:
    true = {row[:3]: row for row in TABLE}
    assert LESS.keys() <= true.keys()
    for key, row in LESS.items():
        assert row != true[key]
        assert row.line == true[key].line
        assert row.safe != "yes" or true[key].safe == "yes"
        assert row.trips in ("-", true[key].trips)


def test_no_unsafe_loop_is_called_safe_and_hardly_a_safe_one_unsafe() -> None:
    found = {row[:3]: row.safe == "yes" for path in SOURCES for row in found_in(path) if row.loop != "-"}
    true = {row[:3]: row.safe == "yes" for row in TABLE if row.loop != "-"}
    assert len(SOURCES) >= 30
    assert found.keys() == true.keys()
    said = {key for key, safe in found.items() if safe}
    right = {key for key, safe in true.items() if safe}
    assert len(right) >= 30
    assert len(true) - len(right) >= 30
    assert said - right == set(), "precision is 100 %"
    assert len(said & right) / len(right) >= 0.95
