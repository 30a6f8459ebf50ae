"""Tables fit the width of the screen: ids stay whole, names are cut in the middle, what does not fit is counted.

What a statement gave fits the screen: its middle is left out and counted, ids and figures are never broken.
"""

import io
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from aaco_pipeline.report.terminal import open_screen, print_cells, print_prose, print_result

SESSION = "20261122T044130Z-2e851ad6-squeezenet_with_long_na"
MANGLED = "_ZN2at6native" + "x" * 300 + "_kernel_of_the_end"


def printed(width: int, columns: Sequence[str], rows: Sequence[Sequence[str | None]], **layout: Any) -> list[str]:
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        print_cells(open_screen(out), columns, rows, **layout)
    return out.getvalue().splitlines()


def test_a_pipe_is_as_wide_as_columns_says_and_else_as_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    for said, width in (("80", 80), ("200", 200), ("nonsense", 160), ("", 160)):
        monkeypatch.setenv("COLUMNS", said)
        assert open_screen(io.StringIO()).width == width
    monkeypatch.delenv("COLUMNS")
    assert open_screen(io.StringIO()).width == 160


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_an_id_is_never_broken_and_what_is_spare_goes_first(width: int) -> None:
    columns = ("session", "*started", "workload", "*p50", "*disk")
    row = (SESSION, "2026-11-22 04:41:30", MANGLED, "30.53 ms", "601.1 KiB")
    lines = printed(width, columns, [row], names=("workload",), spare=("*disk", "*started", "workload"))
    assert max(map(len, lines)) <= width
    (found,) = [line for line in lines if "20261122T" in line]
    assert found.split()[0] == SESSION
    assert "30.53 ms" in found
    assert any("left out, as the screen is narrow; --json has all of them" in line for line in lines) == (width < 160)


def test_a_long_name_is_one_line_that_keeps_its_beginning_and_its_end() -> None:
    lines = printed(80, ("kernel", "*total"), [(MANGLED, "1 ms"), (None, "2 ms")])
    (found,) = [line for line in lines if "_ZN2at6" in line]
    assert "…" in found
    assert "_kernel_of_the_end" in found
    assert found.endswith("1 ms")
    assert "–" in lines[-1]


def test_a_column_goes_before_a_short_text_is_wrapped_and_one_that_still_fits_comes_back() -> None:
    columns = ("kind of work", "*time", "heaviest", "*of the peak")
    row = ("elementwise kernels and copies", "8.456 ms", "x" * 40, "34.4 %")
    lines = printed(70, columns, [row], spare=("*of the peak", "heaviest"))
    assert lines[-2].split() == ["elementwise", "kernels", "and", "copies", "8.456", "ms", "34.4", "%"]
    assert lines[-1].startswith("1 column left out")


def test_names_and_words_of_sentences_give_way_before_a_figure_or_an_id_is_broken() -> None:
    row = (SESSION, "partial", "torch.profiler.tensorboard_trace_handler(DIR) is the call to make", "1.295 ms")
    lines = printed(100, ("session", "status", "why", "*time"), [row])
    assert max(map(len, lines)) <= 100
    assert lines[3].split()[:2] == [SESSION, "partial"]
    assert lines[3].endswith("1.295 ms")
    columns = ("operator", "inputs", "*time", "*rate", "*of its roof")
    lines = printed(80, columns, [("o" * 40, "i" * 40, "1.295 ms", "260.3 Gflop/s", "0.4 %")], names=columns[:2])
    assert sum("oooo" in line for line in lines) == 1
    assert lines[-1].endswith("1.295 ms   260.3 Gflop/s   0.4 %")


def test_no_line_ends_in_spaces() -> None:
    lines = printed(80, ("kernel", "why"), [("k", "a long reason"), ("k", "short")], title="Kernels")
    assert [line for line in lines if line != line.rstrip()] == []
    assert "" in lines


def test_columns_of_one_name_are_kept_apart() -> None:
    assert printed(80, ("same", "same"), [("one", "two")])[3].split() == ["one", "two"]


@given(
    st.lists(st.tuples(st.text(max_size=60), st.text(max_size=200)), min_size=1, max_size=4),
    st.integers(min_value=90, max_value=200),
)
def test_no_text_makes_a_table_wider_than_the_screen(rows: list[tuple[str, str]], width: int) -> None:
    for line in printed(width, ("kernel", "why"), rows):
        assert cell_len(line) <= width
        assert line.isprintable()


def prose(text: str, width: int, **options: Any) -> list[str]:
    out = io.StringIO()
    print_prose(Console(file=out, width=width, **options), text, "green")
    return out.getvalue().splitlines()


def test_a_command_in_a_sentence_is_never_broken() -> None:
    text = "It was not calibrated; run `aaco calibrate --threads 1` on that machine."
    assert prose(text, 40) == ["It was not calibrated; run", "`aaco calibrate --threads 1` on that", "machine."]
    assert prose(text, 200) == [text]


def test_a_number_and_its_unit_stand_in_one_line() -> None:
    assert prose("P99 is 19.77 ms; without", 14) == ["P99 is", "19.77 ms;", "without"]
    assert prose("it took 1.3 % of 2 samples", 11) == ["it took", "1.3 % of 2", "samples"]


def test_where_there_is_colour_a_command_has_one_of_its_own_and_no_backticks() -> None:
    (line,) = prose("run `aaco ls`; then", 80, force_terminal=True, color_system="standard")
    assert "`" not in line
    assert "\x1b[1;36maaco ls\x1b[0m" in line


@pytest.mark.parametrize("text", ["", "a ` b", "x" * 100, "`" + "y " * 50 + "`"])
def test_odd_sentences_lose_nothing(text: str) -> None:
    assert "".join("".join(prose(text, 20)).split()) == "".join(text.split())


def printed_result(
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
    lines = printed_result(80, columns, [["1234567"] * 11], columns)
    assert lines[0].split() == ["column_0", "column_1", "column_2", "…", "column_8", "column_9", "column_10"]
    assert lines[2].split() == ["1234567"] * 3 + ["…"] + ["1234567"] * 3
    assert lines[-1] == "1 row, 11 columns (6 shown); --format csv or json has all of it"


def test_what_fits_is_whole_and_nothing_more_is_said() -> None:
    assert printed_result(80, ("a", "b"), [("x", None)])[-2:] == [" x   –", "1 row"]
    assert printed_result(80, ("a", "b"), [])[-1] == "0 rows"


def test_one_column_that_is_too_many_costs_one_column() -> None:
    lines = printed_result(80, ("session_id", "name", "total_ns", "share_ratio"), [(SESSION, "k" * 20, "1", "0.5")])
    assert lines[0].split() == ["session_id", "…", "total_ns", "share_ratio"]
    assert lines[-1].startswith("1 row, 4 columns (3 shown)")


def test_long_texts_are_cut_in_the_middle_and_that_there_is_more_is_said() -> None:
    name = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int)"
    lines = printed_result(80, ("session_id", "name"), [(SESSION, name)])
    (found,) = [line for line in lines if SESSION in line]
    assert found.split(maxsplit=1)[1].startswith("void at::n")
    assert found.endswith(">(int)")
    assert lines[-1] == "1 row; --format csv or json has all of it"


def test_of_many_rows_the_first_and_the_last_are_shown() -> None:
    lines = printed_result(80, ("n",), [(number,) for number in range(41)], ("n",))
    assert [line.strip() for line in lines[2:-1]] == [*map(str, range(20)), "…", *map(str, range(21, 41))]
    lines = printed_result(80, ("n",), [(number,) for number in range(41)], ("n",), goes_on=True)
    assert [line.strip() for line in lines[2:-1]] == [*map(str, range(40)), "…"]
    assert lines[-1].startswith("more than 41 rows (40 shown); ")


@given(
    st.integers(min_value=60, max_value=200),
    st.lists(st.sampled_from([SESSION, "1", "a text of several words " * 9, "_Z" + "x" * 300, "é\x1b[2J"]), min_size=1),
    st.integers(min_value=0, max_value=90),
)
def test_it_fits_the_screen_and_breaks_no_id(width: int, row: list[str], count: int) -> None:
    lines = printed_result(width, [f"column_{place}" for place in range(len(row))], [row] * count)
    assert max(map(cell_len, lines)) <= width
    assert all(line == line.rstrip() and line.isprintable() for line in lines)
    if row[0] == SESSION:
        assert sum(SESSION in line.split() for line in lines) == min(count, 40)
