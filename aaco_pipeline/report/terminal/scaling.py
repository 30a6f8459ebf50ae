"""A campaign's scaling curve for a terminal; what it says is `aaco_pipeline.report.words.scaling`."""

from collections.abc import Sequence

from aaco_pipeline.report.terminal.screen import open_screen, print_table
from aaco_pipeline.report.words.scaling import Row, filled, sentences


def print_scaling(campaign: str, curve: Sequence[Row]) -> None:
    """Print the curve on standard output: the answer first, then the points."""
    screen = open_screen()
    screen.print(campaign, style="bold", markup=False)
    screen.print(sentences(curve), style="bold green", markup=False)
    columns = {("*" if column.numeric else "") + column.name: column.shown for column in filled(curve)}
    print_table(
        screen,
        {**columns, "session": lambda row: row["session_id"]},
        curve,
        spare=("*time", "*95 % interval", "*efficiency", "*first token"),
    )
