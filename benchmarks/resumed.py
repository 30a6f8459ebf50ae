"""Sessions of a benchmark that are kept as they are made, so that it goes on where it was left."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Row = dict[str, Any]


@contextmanager
def resumed(file: Path) -> Iterator[tuple[list[Row], set[tuple[str | None, int, int]], Callable[[Row], None]]]:
    """The rows that a file has, a line of JSON each; which kinds, threads and seeds they are of; what keeps another."""
    lines = file.read_text().splitlines() if file.exists() else []
    rows: list[Row] = [json.loads(line) for line in lines]
    with file.open("a") as stream:

        def keep(row: Row) -> None:
            rows.append(row)
            stream.write(f"{json.dumps(row)}\n")
            stream.flush()

        yield rows, {(row["kind"], row["threads"], row["seed"]) for row in rows}, keep
