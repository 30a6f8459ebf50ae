"""The operators of a session with the shapes of their inputs, for a terminal: the answer first, then the table.

How a row is put into words is `aaco_pipeline.report.words.shapes`.
"""

from typing import Final, TextIO

from aaco_pipeline.report.terminal.screen import open_screen, print_prose, print_table
from aaco_pipeline.report.terminal.session import print_head
from aaco_pipeline.report.words import tables
from aaco_pipeline.report.words.session import Document, run_description
from aaco_pipeline.report.words.shapes import COLLECTIVES, SHAPES, shapes_answer
from aaco_pipeline.report.words.units import counted

_SHOWN: Final = 40
_SPARE: Final = ("roof", "*bandwidth", "*least bytes", "format", "*calls", "*work a call", "*share")


def print_shapes(document: Document, stream: TextIO | None = None) -> None:
    """Print the operators that took longest, on standard output unless told otherwise."""
    screen = open_screen(stream)
    rows = document["operator_shapes"]
    print_head(screen, document, run_description(document), shapes_answer(document))
    print_table(screen, SHAPES, rows[:_SHOWN], names=("operator", "inputs"), spare=_SPARE, whole="--json or --csv")
    if len(rows) > _SHOWN:
        print_prose(screen, f"{counted(len(rows) - _SHOWN, 'further row')}; `--csv` and `--json` have all", "dim")
    print_table(screen, COLLECTIVES, document["collective_rates"][:_SHOWN], title="Collectives (nccl-tests' bandwidth)")
    print_table(screen, tables.MISSING, document["missing"], title="What was missing")
