"""The option `--wait` of every command that takes the measurement slot."""

from collections.abc import Callable
from typing import Any

import click


def wait_option(tell: Callable[[str], None]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add `--wait SECONDS` to a command that measures; call `tell` with the slot's holder while it waits."""

    def chosen(context: click.Context, parameter: click.Parameter, value: float | None) -> None:
        if not context.resilient_parsing:
            from aaco_pipeline.resources.measure.slot_holder import slot_patience

            context.with_resource(slot_patience(value, tell))

    return click.option(
        "--wait",
        metavar="SECONDS",
        type=click.FloatRange(min=0, max=1e6),
        expose_value=False,
        callback=chosen,
        help="Wait at most so long, each time, while another process measures on this host (default: until it is "
        "done); then exit with 4.",
    )
