"""Why iterations of a session took longer, for a terminal: the answer first, then the spikes and what each cause did.

How a row is put into words is `aaco_pipeline.report.words.spikes`.
"""

from typing import Final, TextIO

from aaco_pipeline.report.terminal.screen import open_screen, print_prose, print_table
from aaco_pipeline.report.terminal.session import print_head
from aaco_pipeline.report.words import tables
from aaco_pipeline.report.words.session import Document, run_description
from aaco_pipeline.report.words.spikes import (
    CAUSE_FIGURES,
    FIGURES,
    SPIKES,
    both_figures,
    quietness,
    rule,
    spikes_answer,
)
from aaco_pipeline.report.words.units import counted

_SHOWN: Final = 20
_SPARE: Final = ("evidence", "*times", "*of it")


def print_spikes(document: Document, stream: TextIO | None = None) -> None:
    """Print the longest spikes with their causes, on standard output unless told otherwise."""
    screen = open_screen(stream)
    print_head(screen, document, run_description(document), spikes_answer(document))
    if (said := quietness(document)) is not None:
        print_prose(screen, said)
    spikes = document["spikes"]
    print_table(screen, SPIKES, spikes[:_SHOWN], title="Spikes, the longest first", names=("who",), spare=_SPARE)
    if len(spikes) > _SHOWN:
        print_prose(screen, f"{counted(len(spikes) - _SHOWN, 'further spike')}; `--json` has all", "dim")
    print_table(screen, CAUSE_FIGURES, document["delay_causes"], title="What each cause did to the measured iterations")
    if figures := both_figures(document):
        print_table(screen, FIGURES, figures, title="With and without disturbed iterations")
        print_prose(screen, rule(), "dim")
    print_table(screen, tables.MISSING, document["missing"], title="What was missing")
