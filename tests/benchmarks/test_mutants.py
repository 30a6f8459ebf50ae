"""Mutants are drawn by a function's text alone, and judged by the tests that execute it."""

import ast
import sys
from pathlib import Path

import pytest

from benchmarks.reliability.mutants import Judge, changes, functions, mutants, replaced, summary

MODULE = '''"""A module."""


def smallest(first: int, second: int) -> int:
    """Return the smaller one, with ä."""
    return first if first < second else second


def unseen(number: int) -> int:
    if number > 1 and "ä" != f'{ {"ä": number}["ä"] + 1 }':
        return number + 1
    return 0
'''
TESTS = """
from aaco_pipeline.lake.numbers import smallest, unseen


def test_smallest() -> None:
    assert (smallest(1, 2), smallest(2, 1), smallest(1, 1)) == (1, 1, 1)


def test_unseen() -> None:
    unseen(2)
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout with a module and its tests, in the environment of this process."""
    tree = tmp_path / "tree"
    files = {
        "pyproject.toml": "[tool.pytest.ini_options]\n",
        "aaco_pipeline/__init__.py": "",
        "aaco_pipeline/lake/__init__.py": "",
        "aaco_pipeline/lake/numbers.py": MODULE,
        "tests/lake/test_numbers.py": TESTS,
    }
    for file, text in files.items():
        (tree / file).parent.mkdir(parents=True, exist_ok=True)
        (tree / file).write_text(text)
    (tree / ".venv").symlink_to(sys.prefix)
    return tree


def test_every_change_is_another_module_that_parses(tree: Path) -> None:
    found = [change for function in functions(tree) for change in changes(function)]
    assert {one.mutation for one in found} == {
        *("comparison turned", "+ and - exchanged", "and and or exchanged", "one more", "one less"),
        *("condition negated", "None returned"),
    }
    changed = [ast.dump(ast.parse(replaced(MODULE, [(one.begin, one.end, one.after)]))) for one in found]
    assert len({ast.dump(ast.parse(MODULE)), *changed}) == len(found) + 1


def test_a_function_that_moves_takes_its_mutant_along(tree: Path) -> None:
    before = [_drawn(tree, seed) for seed in range(8)]
    moved = tree / "aaco_pipeline" / "capture" / "moved.py"
    moved.parent.mkdir()
    (tree / "aaco_pipeline" / "lake" / "numbers.py").unlink()
    moved.write_text(MODULE.replace('"""A module."""', '"""A module."""\n\nimport os'))
    assert [_drawn(tree, seed) for seed in range(8)] == before
    assert {mutant.path for _, mutant in mutants(tree, 2, 7)} == {"aaco_pipeline/capture/moved.py"}
    assert len(set(before)) > 1


def _drawn(tree: Path, seed: int) -> tuple[tuple[str, str, str], ...]:
    return tuple((mutant.function, mutant.mutation, mutant.after) for _, mutant in mutants(tree, 2, seed))


def test_tests_that_look_kill_and_tests_that_only_execute_do_not(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "rooms").mkdir()
    judge = Judge(tree, tmp_path, tmp_path / "rooms")
    by_name = {function.name: function for function in functions(tree)}
    turned = next(one for one in changes(by_name["smallest"]) if one.mutation == "condition negated")
    unseen = next(one for one in changes(by_name["unseen"]) if one.mutation == "and and or exchanged")
    killed, survived = judge.judge(by_name["smallest"], turned), judge.judge(by_name["unseen"], unseen)
    assert (killed["verdict"], survived["verdict"]) == ("killed", "survived")
    assert "test_smallest" in killed["by"]
    executed = judge.room("tests/lake")["executed"]
    assert executed == {
        "aaco_pipeline/lake/numbers.py:smallest:4": ["tests/lake/test_numbers.py::test_smallest"],
        "aaco_pipeline/lake/numbers.py:unseen:9": ["tests/lake/test_numbers.py::test_unseen"],
    }
    assert "unseen: and and or exchanged" in summary([killed, survived])
    assert (judge.copy / turned.path).read_text() == MODULE
