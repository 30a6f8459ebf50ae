"""The tables of formulas in the docs are those that the declarations give."""

from pathlib import Path

import pytest

from aaco_pipeline.hardware.counters import page
from aaco_pipeline.hardware.counters.formulas import formulas
from tests.places import ROOT

COMMAND = f"python -m aaco_pipeline.hardware.counters.page {page.DEFAULT_PATH}"


def test_the_tables_in_the_docs_are_up_to_date() -> None:
    text = (ROOT / page.DEFAULT_PATH).read_text(encoding="utf-8")
    assert page.render(text) == text, f"{page.DEFAULT_PATH} is out of date; run: {COMMAND}"


def test_every_formula_is_listed_with_its_unit_and_source() -> None:
    text = page.render((ROOT / page.DEFAULT_PATH).read_text(encoding="utf-8"))
    for one in formulas():
        assert f"| `{one.name}` | {one.unit} | `{one.text}` |" in text, one.name
        assert one.source in text.partition(f"\n### {one.section}\n")[2].partition("\n| ")[0], one.name


def test_check_refuses_a_page_that_says_something_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "counters.md"
    text = (ROOT / page.DEFAULT_PATH).read_text(encoding="utf-8")
    copy.write_text(text.replace("| `ipc` |", "| `icp` |"), encoding="utf-8")
    assert page.main(["--check", str(copy)]) == 1
    assert "is out of date; run: python -m aaco_pipeline.hardware.counters.page" in capsys.readouterr().err
    assert page.main([str(copy)]) == 0
    assert copy.read_text(encoding="utf-8") == text
    copy.write_text("no table", encoding="utf-8")
    with pytest.raises(ValueError, match="lacks the line"):
        page.render("no table")
