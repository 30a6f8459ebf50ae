"""A search by `aaco optimize` on a terminal; what it says is `aaco_pipeline.report.words.optimization`."""

from typing import Any, TextIO

from aaco_pipeline.report.terminal.screen import open_screen, print_prose, print_table
from aaco_pipeline.report.words import optimization as words


def print_optimization(document: dict[str, Any], stream: TextIO | None = None) -> None:
    """Print every attempt with what was decided and why, then the answer."""
    screen = open_screen(stream)
    print_prose(screen, words.title(document), "bold")
    print_table(screen, words.ATTEMPTS, document["attempts"], names=("what",), spare=words.SPARE)
    screen.print()
    style = "bold green" if document["gain"] is not None else "bold yellow"
    print_prose(screen, words.sentence(document), style)
    for line in (*words.remarks(document), words.spent(document), words.page(document)):
        print_prose(screen, line)


def print_replay(document: dict[str, Any], stream: TextIO | None = None) -> None:
    """Print every decision that was made again, and whether it is the recorded one."""
    screen = open_screen(stream)
    print_table(screen, words.REPLAYED, document["decisions"])
    screen.print()
    for note in document["notes"]:
        print_prose(screen, note)
    print_prose(screen, words.replayed(document), "bold green" if document["is_same"] else "bold red")
