"""Read `formulas.yaml`, beside this module, as Polars expressions by architecture.

The file declares a dispatch's work and the derived metrics, each with unit, source and a worked example. Expressions
are applied in `aaco_pipeline.analysis.roofline`.
"""

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

import polars as pl
import yaml

from aaco_pipeline.hardware.counters import AMOUNTS, RATIOS, TRAITS, Family

WORK: Final = "Work"
TERMS: Final = "Terms"
#: Figures of an architecture that formulas name as `Traits` does.
ARCHITECTURE_FIGURES: Final = ("l2_channels", "l2_bytes_per_request", "vl1d_bytes_per_access", "wavefronts_per_cu")
_UNKNOWN: Final = pl.lit(None, pl.Float64)
_OPERATORS: Final[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_FUNCTIONS: Final[Mapping[str, Callable[..., pl.Expr]]] = {
    "coalesce": pl.coalesce,
    "ratio": lambda above, below: pl.when(below > 0).then(above / below),
    "excess": lambda more, less: (more - less).clip(lower_bound=0),
    "sum_of_known": lambda *parts: pl.sum_horizontal(parts),
    "where_positive": lambda condition, value: pl.when(condition > 0).then(value),
}


@dataclass(frozen=True)
class Formula:
    """One row of the file. `text` alone is a counter as it is; every other formula has an example, inputs and result.

    `needs` are the architectures it holds on, or what they must have; empty for all.
    """

    section: str
    name: str
    unit: str
    text: str
    source: str
    inputs: Mapping[str, float | None]
    result: float | None
    needs: tuple[str, ...]
    note: str | None

    def holds_on(self, family: Family) -> bool:
        """Return whether the family has what the formula needs."""
        traits = TRAITS[family]
        has = (getattr(traits, need, need == family or need in traits.matrix_formats) for need in self.needs)
        return not self.needs or any(has)

    def parts(self, named: Mapping[str, pl.Expr]) -> tuple[pl.Expr, pl.Expr | None]:
        """Numerator and denominator; only a division by more than a number has one. `named` stand for their names."""
        tree = ast.parse(self.text, mode="eval").body
        if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Div) and not isinstance(tree.right, ast.Constant):
            return _value(tree.left, named), _value(tree.right, named)
        return _value(tree, named), None

    def expression(self, named: Mapping[str, pl.Expr]) -> pl.Expr:
        """The formula of one dispatch."""
        numerator, denominator = self.parts(named)
        return numerator if denominator is None else numerator / denominator


@dataclass(frozen=True)
class DerivedMetric:
    """A metric derived from counters: `numerator / denominator` of a dispatch, or of sums over several.

    Without a denominator it is an amount per dispatch.
    """

    name: str
    unit: str
    numerator: pl.Expr
    denominator: pl.Expr | None = None

    def columns(self) -> frozenset[str]:
        """The columns it reads."""
        expressions = (self.numerator,) if self.denominator is None else (self.numerator, self.denominator)
        return frozenset(name for expression in expressions for name in expression.meta.root_names())


def names_in(text: str) -> tuple[str, ...]:
    """The distinct names in a formula, in order."""
    nodes = sorted(
        (node for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Name)),
        key=lambda node: (node.lineno, node.col_offset),
    )
    return tuple(dict.fromkeys(node.id for node in nodes if node.id not in _FUNCTIONS))


@cache
def formulas() -> tuple[Formula, ...]:
    """Every row of the file in its order; ValueError naming the one that does not fit."""
    text = resources.files(__package__).joinpath("formulas.yaml").read_text(encoding="utf-8")
    content = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    sources = content["sources"]
    found = [_formula(title, row, sources) for title, key in ((TERMS, "terms"), (WORK, "work")) for row in content[key]]
    for part in content["metrics"]:
        counts = [
            {"name": name, "unit": unit, "formula": counter}
            for unit, listed in part.get("counts", {}).items()
            for name, counter in listed.items()
        ]
        rows = (*counts, *part.get("formulas", ()))
        found += [_formula(part["section"], {"source": part["source"], **row}, sources) for row in rows]
    return tuple(found)


def term(name: str, family: Family) -> pl.Expr:
    """A part of formulas by its name; null where the family's counters do not give it."""
    return _terms(family)[name]


@cache
def work_formulas(family: Family) -> Mapping[str, pl.Expr]:
    """Amounts of work and ratios of one dispatch, by their names in `AMOUNTS` and `RATIOS`; each float64 or null."""
    known = _first(WORK, family, _terms(family))
    return {name: known.get(name, _UNKNOWN) for name in (*AMOUNTS, *RATIOS)}


@cache
def derived_metrics(family: Family) -> tuple[DerivedMetric, ...]:
    """Every derived metric of a family."""
    fitting = [one for one in formulas() if one.section not in (TERMS, WORK) and one.holds_on(family)]
    return tuple(DerivedMetric(one.name, one.unit, *one.parts(_terms(family))) for one in fitting)


def read_size_is_assumed(family: Family) -> pl.Expr:
    """Return whether `fabric_read_bytes` rests on the assumption that every larger request was one of 128 bytes."""
    if family is not Family.GFX950:
        return pl.lit(False)
    by_bubble = (pl.col("TCC_BUBBLE") > 0).fill_null(False)
    is_known = pl.any_horizontal(term(f"bytes_by_{way}", family).is_not_null() for way in ("size", "destination"))
    return ~is_known & ~by_bubble & pl.col("TCC_EA_RDREQ").is_not_null()


@cache
def _terms(family: Family) -> Mapping[str, pl.Expr]:
    """Expressions by name in formulas: figures of the architecture, terms of counters, and unknowns."""
    figures = {name: pl.lit(getattr(TRAITS[family], name), pl.Float64) for name in ARCHITECTURE_FIGURES}
    every = dict.fromkeys((one.name for one in formulas() if one.section == TERMS), _UNKNOWN)
    return {**every, **_first(TERMS, family, {"unknown": _UNKNOWN, **figures})}


def _first(section: str, family: Family, named: Mapping[str, pl.Expr]) -> dict[str, pl.Expr]:
    """The section's formulas by name, the first of each that the family has; later rows may name earlier ones."""
    found = dict(named)
    mine: dict[str, pl.Expr] = {}
    for one in formulas():
        if one.section == section and one.name not in mine and one.holds_on(family):
            mine[one.name] = found[one.name] = one.expression(found)
    return found


def _formula(section: str, row: Mapping[str, Any], sources: Mapping[str, str]) -> Formula:
    name, text = row["name"], " ".join(row["formula"].split())
    named = names_in(text)
    if len(row.get("of", named)) != len(named):
        raise ValueError(f"formulas.yaml: {name}: the example has not a value for each of {', '.join(named)}")
    inputs: Sequence[float | None] = row.get("of", ())
    return Formula(
        section,
        name,
        row["unit"],
        text,
        sources[row["source"]],
        dict(zip(named, inputs, strict=False)),
        row.get("gives"),
        tuple(row.get("needs", ())),
        row.get("note"),
    )


def _value(node: ast.AST, named: Mapping[str, pl.Expr]) -> Any:
    match node:
        case ast.BinOp():
            return _OPERATORS[type(node.op)](_value(node.left, named), _value(node.right, named))
        case ast.Constant():
            return node.value
        case ast.Name():
            return named[node.id] if node.id in named else pl.col(node.id)
        case ast.Call(func=ast.Name(id=function)):
            return _FUNCTIONS[function](*(_value(argument, named) for argument in node.args))
    raise ValueError(f"formulas.yaml: {ast.unparse(node)} is no arithmetic")
