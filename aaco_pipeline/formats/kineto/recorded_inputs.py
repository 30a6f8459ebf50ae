"""The inputs that a trace recorded of operators, as far as they may be kept: numbers and shapes, no free text.

What they say of the work is `aaco_pipeline.analysis.roofline.operators`.
"""

import json
import re
from typing import Final

import polars as pl

from aaco_pipeline.formats.kineto.events import MORE_OF_INPUTS, SHAPES

#: Columns of the table `operator_inputs` beside the call.
COLUMNS: Final = ("operator", *SHAPES.values(), *MORE_OF_INPUTS.values())
#: Values that are numbers, true, false, or lists of these; others are texts of the program.
_ONE: Final = r"(?:True|False|[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
_PLAIN: Final = re.compile(rf"{_ONE}|\[(?:{_ONE}(?:, ?{_ONE})*)?\]")


def kept(recorded: pl.DataFrame) -> pl.DataFrame:
    """The rows with their lists in one spelling, without white space of a trace that is written for people.

    In `values` an empty text stands for each that is neither number, truth nor a list of these. Every distinct text is
    looked at once. Rows whose shapes or types are no JSON are left out; other columns become null.
    """
    columns = [
        pl.col(name)
        .cast(pl.String)
        .replace_strict(
            {text: _spelled(text, plain=name == "values") for text in _distinct(recorded, name)},
            default=None,
            return_dtype=pl.String,
        )
        for name in COLUMNS[1:]
    ]
    return recorded.with_columns(columns).drop_nulls(list(SHAPES.values()))


def _distinct(recorded: pl.DataFrame, name: str) -> list[str]:
    return recorded.get_column(name).drop_nulls().unique().cast(pl.String).to_list()


def _spelled(text: str, *, plain: bool) -> str | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if plain:
        found = [one if isinstance(one, str) and _PLAIN.fullmatch(one) else "" for one in found]
    return json.dumps(found)
