"""The tables of formulas in docs/counters.md, made from their declarations; the text around them is written there.

No formula is written here; those are `formulas.yaml`. Run as `python -m aaco_pipeline.hardware.counters.page [--check]
PATH` to bring the page's tables up to date, or to check that they are.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from typing import Final

from aaco_pipeline.hardware.counters import TRAITS, Family
from aaco_pipeline.hardware.counters.formulas import ARCHITECTURE_FIGURES, TERMS, WORK, Formula, formulas

#: The page's place in the repository.
DEFAULT_PATH: Final = "docs/counters.md"
_BEGIN: Final = "<!-- Made from formulas.yaml by `python -m aaco_pipeline.hardware.counters.page docs/counters.md`. -->"
_END: Final = "<!-- End of what is made. -->"
_HEADER: Final = ("Figure", "Unit", "Formula", "Example", "Where")


def render(page: str) -> str:
    """The page with its tables as the declarations say; the same declarations and text give the same page."""
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"the page lacks the line {_END if begin else _BEGIN}")
    parts = [_architectures()]
    for section, members in groupby(formulas(), key=lambda one: one.section):
        listed = list(members)
        if section not in (TERMS, WORK):
            listed.sort(key=lambda one: one.name)
        sources = "; ".join(dict.fromkeys(one.source for one in listed))
        parts.append(f"### {section}\n\nSource: {sources}.\n\n{_grid(_HEADER, (_row(one) for one in listed))}")
    return f"{before}{_BEGIN}\n\n" + "\n".join(parts) + f"\n{_END}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Bring the tables of PATH up to date, or with --check return 1 when they are not."""
    parser = argparse.ArgumentParser(prog="python -m aaco_pipeline.hardware.counters.page", description=main.__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the tables are out of date")
    parser.add_argument("path", metavar="PATH", type=Path, help=f"the page, {DEFAULT_PATH} in the repository")
    options = parser.parse_args(arguments)
    path: Path = options.path
    page = path.read_text(encoding="utf-8")
    if render(page) == page:
        return 0
    if options.check:
        print(f"{path} is out of date; run: python -m aaco_pipeline.hardware.counters.page {path}", file=sys.stderr)
        return 1
    path.write_text(render(page), encoding="utf-8", newline="\n")
    return 0


def _architectures() -> str:
    named = [one.name for one in fields(TRAITS[Family.UNKNOWN]) if one.name in ARCHITECTURE_FIGURES]
    rows = (
        [family.value, *(_number(getattr(traits, name)) for name in named)]
        for family, traits in TRAITS.items()
        if family is not Family.UNKNOWN
    )
    return "### Figures of architectures\n\n" + _grid(["Architecture", *(f"`{name}`" for name in named)], rows)


def _row(formula: Formula) -> Sequence[str]:
    where = ", ".join(family.value for family in Family if formula.needs and formula.holds_on(family))
    inputs = ", ".join(_number(value) for value in formula.inputs.values())
    return (
        f"`{formula.name}`",
        formula.unit,
        f"`{formula.text}`",
        "" if formula.result is None else f"{inputs} → {_number(formula.result)}",
        "; ".join(filter(None, (where, formula.note))),
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,}"


def _grid(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
