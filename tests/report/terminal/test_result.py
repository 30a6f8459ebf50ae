"""What a statement gave fits the screen: its middle is left out and counted, ids and figures are never broken."""

import io
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from aaco_pipeline.report.terminal.result import print_result
from aaco_pipeline.report.terminal.screen import open_screen

SESSION = "20261122T044130Z-2e851ad6-squeezenet_with_long_na"


def printed(
    width: int,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    numeric: Sequence[str] = (),
    goes_on: bool = False,
) -> list[str]:
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        print_result(open_screen(out), columns, rows, str, numeric=numeric, goes_on=goes_on)
    return out.getvalue().splitlines()


def test_columns_go_from_the_middle_and_are_counted() -> None:
    columns = [f"column_{place}" for place in range(11)]
    lines = printed(80, columns, [["1234567"] * 11], columns)
    assert lines[0].split() == ["column_0", "column_1", "column_2", "…", "column_8", "column_9", "column_10"]
    assert lines[2].split() == ["1234567"] * 3 + ["…"] + ["1234567"] * 3
    assert lines[-1] == "1 row, 11 columns (6 shown); --format csv or json has all of it"


def test_what_fits_is_whole_and_nothing_more_is_said() -> None:
    assert printed(80, ("a", "b"), [("x", None)])[-2:] == [" x   –", "1 row"]
    assert printed(80, ("a", "b"), [])[-1] == "0 rows"


def test_one_column_that_is_too_many_costs_one_column() -> None:
    lines = printed(80, ("session_id", "name", "total_ns", "share_ratio"), [(SESSION, "k" * 20, "1", "0.5")])
    assert lines[0].split() == ["session_id", "…", "total_ns", "share_ratio"]
    assert lines[-1].startswith("1 row, 4 columns (3 shown)")


def test_long_texts_are_cut_in_the_middle_and_that_there_is_more_is_said() -> None:
    name = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int)"
    lines = printed(80, ("session_id", "name"), [(SESSION, name)])
    (found,) = [line for line in lines if SESSION in line]
    assert found.split(maxsplit=1)[1].startswith("void at::n")
    assert found.endswith(">(int)")
    assert lines[-1] == "1 row; --format csv or json has all of it"


def test_of_many_rows_the_first_and_the_last_are_shown() -> None:
    lines = printed(80, ("n",), [(number,) for number in range(41)], ("n",))
    assert [line.strip() for line in lines[2:-1]] == [*map(str, range(20)), "…", *map(str, range(21, 41))]
    lines = printed(80, ("n",), [(number,) for number in range(41)], ("n",), goes_on=True)
    assert [line.strip() for line in lines[2:-1]] == [*map(str, range(40)), "…"]
    assert lines[-1].startswith("more than 41 rows (40 shown); ")


@given(
    st.integers(min_value=60, max_value=200),
    st.lists(st.sampled_from([SESSION, "1", "a text of several words " * 9, "_Z" + "x" * 300, "é\x1b[2J"]), min_size=1),
    st.integers(min_value=0, max_value=90),
)
def test_it_fits_the_screen_and_breaks_no_id(width: int, row: list[str], count: int) -> None:
    lines = printed(width, [f"column_{place}" for place in range(len(row))], [row] * count)
    assert max(map(cell_len, lines)) <= width
    assert all(line == line.rstrip() and line.isprintable() for line in lines)
    if row[0] == SESSION:
        assert sum(SESSION in line.split() for line in lines) == min(count, 40)
