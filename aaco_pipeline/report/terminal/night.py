"""A night for a terminal; what it says is `aaco_pipeline.report.words.night`."""

from typing import Any, TextIO

from aaco_pipeline.report.terminal.screen import open_screen, print_prose, print_table
from aaco_pipeline.report.words import night as words


def print_night(document: dict[str, Any], stream: TextIO | None = None) -> None:
    """Print what the night came to, a row a benchmark, then service levels and what to do next, a line each."""
    screen = open_screen(stream)
    print_prose(screen, words.headline(document), "bold red" if document["regression"] else "bold")
    rows = document["benchmarks"]
    if rows:
        print_table(screen, words.COLUMNS, rows, names=("benchmark",))
    for row in rows:
        for level in row["service_levels"]:
            print_prose(screen, level["in_words"])
        if (advice := words.next_step(row)) is not None:
            print_prose(screen, f"{words.name(row)}: {advice}.", "bold")
