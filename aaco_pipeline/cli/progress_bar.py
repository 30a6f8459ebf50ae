"""The bar that commands draw on standard error while something takes long.

What is reported to it is `aaco_pipeline.resources.progress`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from aaco_pipeline.cli.output import console


@contextmanager
def progress_bar(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each thing that is done; nothing when quiet or when it is no terminal."""
    screen = console(stderr=True)
    if quiet or not screen.is_terminal:
        yield lambda doing, done, total: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Without automatic refresh: a thread that redraws would run beside what is measured.
    with Progress(*columns, console=screen, transient=True, auto_refresh=False) as bar:
        tasks: dict[str, Any] = {}

        def show(doing: str, done: int, total: int) -> None:
            if doing not in tasks:
                tasks[doing] = bar.add_task(doing, total=total or None)
            bar.update(tasks[doing], completed=done)
            bar.refresh()

        yield show
