"""The answer of a search for a build on a terminal; what it says is `aaco_pipeline.report.words.bisection`."""

from typing import Any, TextIO

from aaco_pipeline.report.terminal.screen import open_screen, print_prose, print_table
from aaco_pipeline.report.terminal.verdict import print_verdict
from aaco_pipeline.report.words import bisection as words


def print_bisection(document: dict[str, Any], stream: TextIO | None = None) -> None:
    """Print which build it was, what is known of each, the verdict on the two beside it, and what all of it took."""
    screen = open_screen(stream)
    print_prose(screen, f"{document['bisection_id']}  {document['workload']} on {document['backend']}", "bold")
    style = "bold red" if document["regression"] else "bold green" if words.is_decided(document) else "bold yellow"
    print_prose(screen, words.sentence(document), style)
    for line in words.remarks(document):
        print_prose(screen, line)
    # Thousands of revisions of which a dozen were looked at: the others say nothing.
    looked_at = [row for row in document["builds"] if row["state"] != "skipped"]
    print_table(screen, words.BUILDS, looked_at, names=("what",))
    if (title := words.against_each_other(document)) is not None:
        screen.print()
        print_prose(screen, title, "bold")
        print_verdict(document["pair"], stream)
    screen.print()
    print_prose(screen, words.spent(document))
