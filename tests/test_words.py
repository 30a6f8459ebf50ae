"""Words and openings that were retired stay so, in code, docs and tests: a native engineer would not write them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.places import ROOT

#: Each retired word with what to write instead.
RETIRED: Final = {
    r"\bheld against\b": "compared with, baseline",
    r"\bhold(?:s|ing)? (?:[^\s.;:|]+ ){1,8}against\b": "compare … with",
    r"\b(?:is|are|was|were) told\b": "reported",
    r"\b(?:is|are|was|were) said of\b": "reported for",
    r"(?<![\w`\"'])foret(?:old|ell)s?\b(?![\w`\"'])": "estimated",
    r"\bstretch(?:es)?\b": "interval, section",
    r"\b(?:is|are|was|were) made of\b": "breakdown, consists of",
    r"\b[Aa] person\b": "you, the user",
    r"\b[Ww]hat (?:[a-z_`]+ ){1,3}(?:is|are) of\b": "subject",
}
#: Retired words left at most, in quotations and names.
MOST_RETIRED: Final = 5
OPENINGS: Final = ("Of ", "What ", "Whether ", "Which ", "How ")
FOLDERS: Final = ("aaco_pipeline", "benchmarks", "docs", "tests")
SUFFIXES: Final = (".py", ".md", ".yaml", ".jinja", ".js")


def sources() -> Iterator[Path]:
    yield from sorted(ROOT.glob("*.md"))
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file() and path != Path(__file__):
                yield path


def retired_in(text: str) -> Iterator[tuple[int, str]]:
    """Line and words of each retired word; a phrase may go on over lines of text or of a comment."""
    joined = re.sub(r"\n[ \t]*(?:#:?[ \t]*)?", lambda match: "\n" + " " * (len(match[0]) - 1), text)
    for pattern in RETIRED:
        for match in re.finditer(pattern.replace(" ", r"\s+"), joined):
            yield joined.count("\n", 0, match.start()) + 1, " ".join(match[0].split())


def openings_in(text: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = ast.get_docstring(node) or ""
            # A stage opens with the question that it answers, which Dagster shows.
            if docstring.startswith(OPENINGS) and "?" not in docstring:
                yield getattr(node, "lineno", 1), docstring.splitlines()[0][:60]


def test_retired_words_do_not_come_back() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {words}"
        for path in sources()
        for line, words in retired_in(path.read_text(encoding="utf-8", errors="replace"))
    ]
    assert len(found) <= MOST_RETIRED, "\n".join([*found, f"{len(found)} retired words"])


def test_docstrings_open_with_a_verb_or_a_noun_phrase() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {words}"
        for path in sources()
        if path.suffix == ".py"
        for line, words in openings_in(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_retired_words_are_found_over_lines_and_names_are_not() -> None:
    text = "# What it is held\n#: against.\nforetold_ns = 1\n`foretold`\nA person waits.\n"
    assert sorted(retired_in(text)) == [(1, "held against"), (5, "A person")]
    assert list(openings_in('def f() -> None:\n    """Which one."""\n')) == [(1, "Which one.")]
