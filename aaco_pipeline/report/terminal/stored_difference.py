"""A session beside a baseline file for a terminal; what it says is `aaco_pipeline.report.words.stored_difference`."""

from typing import Any, TextIO

from aaco_pipeline.report.terminal.screen import open_screen, print_prose, print_table
from aaco_pipeline.report.words import stored_difference as words


def print_stored_difference(document: dict[str, Any], stream: TextIO | None = None) -> None:
    """Print that nothing is decided and why, the figures beside each other, what was refused, and what to run."""
    screen = open_screen(stream)
    print_prose(screen, words.title(document), "bold")
    print_prose(screen, words.sentence(document), "bold yellow")
    for line in words.lines(document):
        print_prose(screen, line)
    print_table(screen, words.METRICS, document["metrics"], names=())
    print_prose(screen, words.next_step(document), "bold")
