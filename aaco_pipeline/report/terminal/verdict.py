"""A campaign's verdict for a terminal; what it says is `aaco_pipeline.report.words.verdicts`."""

from typing import Any, TextIO

from aaco_pipeline.report.terminal.screen import open_screen, print_prose, print_table
from aaco_pipeline.report.words import verdicts as words

_COLOURS = {
    "regressed": "bold red",
    "regressed between nights": "bold red",
    "improved": "bold green",
    "equivalent": "bold green",
}


def print_verdict(document: dict[str, Any], stream: TextIO | None = None) -> None:
    """Print the verdict, why, what was selected differently, what the change is made of, and what to do next."""
    screen = open_screen(stream)
    print_prose(screen, f"{document['campaign_id']}  {words.title(document)}", "bold")
    print_prose(screen, words.sentence(document), _COLOURS.get(document["verdict"], "bold yellow"))
    placebo = words.placebo(document)
    opening = (words.asked(document), *([placebo] if placebo else []), *words.reasons(document))
    for line in (*opening, *words.kept(document), *words.selected(document)):
        print_prose(screen, line)
    print_table(screen, words.METRICS, document["verdicts"], names=(), spare=("*blocks",))
    made_of = "What the change is made of"
    print_table(screen, words.CAUSES, words.waterfall(document), names=("cause",), title=made_of)
    if (doubt := words.certainty(document)) is not None:
        print_prose(screen, doubt)
    if document["environment"]:
        print_prose(screen, "Environment that differs (no cause by itself):", "bold")
    for line in words.environment(document):
        print_prose(screen, line)
    if (advice := words.next_step(document)) is not None:
        print_prose(screen, advice, "bold")
    if (told := words.spent(document)) is not None:
        print_prose(screen, told)
