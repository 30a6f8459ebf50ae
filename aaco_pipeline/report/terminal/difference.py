"""Two sessions beside each other for a terminal; what it says is `aaco_pipeline.report.words.difference`."""

from typing import Any, TextIO

from aaco_pipeline.report.terminal.screen import open_screen, print_prose, print_table
from aaco_pipeline.report.words import difference as words


def print_difference(document: dict[str, Any], stream: TextIO | None = None) -> None:
    """Print what was selected differently, how much slower it is, why, what else differs, and what to run next."""
    screen = open_screen(stream)
    print_prose(screen, f"{document['candidate']['session_id']} against {document['baseline']['session_id']}", "bold")
    for line in words.opening(document):
        print_prose(screen, line, "bold green")
    for line in words.verdict(document):
        print_prose(screen, line)
    print_table(screen, words.CAUSES, words.waterfall(document), names=("cause",), spare=("*iteration then",))
    if document["hardware_differs"]:
        print_table(screen, words.SIDES, words.sides(document), names=())
        print_table(
            screen, words.KINDS, document["kinds"], names=("kind of work",), title="Kinds of work, an iteration"
        )
    if document["environment"]:
        print_prose(screen, "Environment that differs (no cause by itself):", "bold")
    for line in words.environment(document):
        print_prose(screen, line)
    print_prose(screen, f"Next: {document['recommendation']}.", "bold")
