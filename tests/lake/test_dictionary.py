"""The data dictionary in the docs is the one the contracts give, and the command that checks it can be relied on.

What the contracts themselves promise is tested in `test_contracts`.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from aaco_pipeline.lake import dictionary
from aaco_pipeline.lake.contracts import all_tables
from tests.places import ROOT

REPOSITORY = ROOT
COMMAND = f"python -m aaco_pipeline.lake.dictionary {dictionary.DEFAULT_PATH}"


def test_page_in_docs_is_up_to_date() -> None:
    page = REPOSITORY / dictionary.DEFAULT_PATH
    assert page.is_file(), f"{dictionary.DEFAULT_PATH} does not exist; run: {COMMAND}"
    up_to_date = page.read_bytes() == dictionary.render().encode()
    assert up_to_date, f"{dictionary.DEFAULT_PATH} is out of date; run: {COMMAND}"


def test_page_names_every_table_and_column_with_its_meaning() -> None:
    page = dictionary.render()
    for table in all_tables().values():
        _, found, rest = page.partition(f"\n### {table.name}\n")
        assert found, table.name
        body = rest.partition("\n### ")[0]
        assert table.meaning in body
        for c in table.all_columns:
            nullable = "yes" if c.nullable else "no"
            meaning = c.meaning.replace("|", "\\|")
            assert f"| `{c.name}` | `{c.dtype}` | {c.unit} | {nullable} | {meaning} |" in body, (table.name, c.name)


def test_every_row_of_every_grid_has_as_many_cells_as_its_header() -> None:
    cells = 0
    for line in dictionary.render().splitlines():
        if not line.startswith("|"):
            cells = 0
            continue
        count = line.replace("\\|", "").count("|")
        cells = cells or count
        assert count == cells, line


def test_check_accepts_what_was_written_and_refuses_anything_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "docs" / "page.md"
    assert dictionary.main(["--check", str(page)]) == 1
    assert "does not exist; run: python -m aaco_pipeline.lake.dictionary" in capsys.readouterr().err
    assert dictionary.main([str(page)]) == 0
    assert dictionary.main(["--check", str(page)]) == 0
    page.write_text(dictionary.render() + "\n", encoding="utf-8")
    assert dictionary.main(["--check", str(page)]) == 1
    assert "is out of date; run: python -m aaco_pipeline.lake.dictionary" in capsys.readouterr().err


def test_runs_as_a_module(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    command = [sys.executable, "-m", "aaco_pipeline.lake.dictionary", str(page)]
    subprocess.run(command, check=True, cwd=REPOSITORY)
    assert page.read_bytes() == dictionary.render().encode()
