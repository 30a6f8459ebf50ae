"""Which work a library's kernel does, by its symbol, as read in the library's source: the table `symbols.yaml`.

A symbol there is compared with a function's qualified name, from its beginning or from behind any `::`, leading
underscores aside: `_fwd_kernel_stage1` and `ns::fwd_kernel_stage1` are both `fwd_kernel_stage*`.
"""

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib import resources
from typing import Any, Final, NamedTuple

import yaml

from aaco_pipeline.analysis.kernels.families import PHRASES
from aaco_pipeline.analysis.kernels.grammar import NUMBER_FORMATS

_FILE: Final = "symbols.yaml"
_OF_A_SOURCE: Final = {"library", "repository", "commit", "symbols", "formats"}
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_REPOSITORY: Final = re.compile(r"[\w.-]+/[\w.-]+")
_SYMBOL: Final = re.compile(r"[A-Za-z0-9*?:][\w*?:]*")
#: Fewer characters than these say nothing of a kernel.
_LEAST_CHARACTERS: Final = 3
#: Symbols are found by what they begin with; one that begins with a star is tried on every name.
_INDEXED_CHARACTERS: Final = 2
_STARTS: Final = re.compile(r"(?:^|(?<=::))_*(?!_)")


class Symbol(NamedTuple):
    """One row of the table: what a kernel whose name fits `pattern` does, and where that was read."""

    pattern: str
    kind: str
    library: str | None
    dtype: str | None
    repository: str
    commit: str


class _Row(NamedTuple):
    rank: int
    text: str
    symbol: Symbol


@lru_cache(maxsize=8192)
def symbol_of(head: str) -> Symbol | None:
    """The row for a function's qualified name without arguments: of those that fit, the one that says most of it.

    Bounded as the number of distinct functions of a few captures; a session has some hundreds.
    """
    index, best = _index(), None
    for start in _STARTS.finditer(head):
        begin = head[start.end() : start.end() + _INDEXED_CHARACTERS]
        for rows in (index.get(begin, ()), index.get("", ())):
            # Rows are in order of rank: the first that fits is the best of its list.
            found = next((row for row in rows if _compiled(row.text).fullmatch(head, start.end())), None)
            if found is not None and (best is None or found.rank < best.rank):
                best = found
    return None if best is None else best.symbol


@cache
def symbols() -> tuple[Symbol, ...]:
    """All rows, those that say most of a name first."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = resources.files(__package__).joinpath(_FILE).read_text(encoding="utf-8")
    return parsed(yaml.load(text, Loader=loader))


def parsed(sources: list[Mapping[str, Any]]) -> tuple[Symbol, ...]:
    """The rows of a table's content, those that say most of a name first; ValueError for one that is not well formed.

    Each source has `library` (null where the symbols do not tell it), `repository`, the `commit` that was read,
    `symbols` by kind of work and may have `formats`, which symbols state which number format.
    """
    rows: dict[str, Symbol] = {}
    for source in sources:
        _check_source(source)
        formats = {symbol: dtype for dtype, own in source.get("formats", {}).items() for symbol in own}
        for kind, own in source["symbols"].items():
            for pattern in own:
                _check_symbol(pattern, kind, rows)
                dtype = formats.pop(pattern, None)
                rows[pattern] = Symbol(pattern, kind, source["library"], dtype, source["repository"], source["commit"])
        if formats:
            raise ValueError(f"{_FILE}: {next(iter(formats))} has a number format and no kind of work")
    return tuple(sorted(rows.values(), key=lambda row: (-_characters(row.pattern), row.pattern)))


def _check_source(source: Mapping[str, Any]) -> None:
    """ValueError unless a source says where it was read, and of kinds and number formats that there are."""
    named = f"{_FILE}: the source {source.get('repository')}"
    if not _OF_A_SOURCE - {"formats"} <= set(source) <= _OF_A_SOURCE:
        raise ValueError(f"{named} needs {', '.join(sorted(_OF_A_SOURCE - {'formats'}))} and has {', '.join(source)}")
    if not _REPOSITORY.fullmatch(str(source["repository"])) or not _COMMIT.fullmatch(str(source["commit"])):
        raise ValueError(f"{named} does not say the repository and the commit of 40 digits that was read")
    unknown = set(source["symbols"]) - set(PHRASES) | set(source.get("formats", {})) - NUMBER_FORMATS
    if unknown:
        raise ValueError(f"{named} has {', '.join(sorted(unknown))}, which is no kind of work and no number format")


def _check_symbol(pattern: str, kind: str, rows: Mapping[str, Symbol]) -> None:
    """ValueError unless a symbol says something and stands once."""
    if not _SYMBOL.fullmatch(pattern) or _characters(pattern) < _LEAST_CHARACTERS:
        raise ValueError(f"{_FILE}: {pattern!r} ({kind}) is no symbol of at least {_LEAST_CHARACTERS} characters")
    if pattern in rows:
        raise ValueError(f"{_FILE}: {pattern} stands twice, as {rows[pattern].kind} and as {kind}")


def _characters(pattern: str) -> int:
    """How much of a name a symbol says."""
    return len(pattern) - pattern.count("*") - pattern.count("?")


@cache
def _compiled(text: str) -> re.Pattern[str]:
    """A symbol's pattern, compiled when a name first begins like it: a session asks for few of them."""
    return re.compile(text, re.DOTALL)


@cache
def _index() -> Mapping[str, tuple[_Row, ...]]:
    """The rows by what their symbols begin with."""
    index: dict[str, list[_Row]] = {}
    for rank, symbol in enumerate(symbols()):
        text = "".join({"*": ".*", "?": "."}.get(sign, re.escape(sign)) for sign in symbol.pattern)
        begin = symbol.pattern[:_INDEXED_CHARACTERS]
        begin = "" if "*" in begin or "?" in begin else begin
        index.setdefault(begin, []).append(_Row(rank, text, symbol))
    return {begin: tuple(rows) for begin, rows in index.items()}
