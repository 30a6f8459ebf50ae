"""Read a lake in a loop while another process publishes: readers see one whole generation after another."""

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import polars as pl

from aaco_pipeline.errors import AacoError
from aaco_pipeline.lake.sql import select_rows
from aaco_pipeline.lake.store import TraceLake
from benchmarks.common import reported, with_package
from benchmarks.reliability.kill_publishing import (
    EARLIER_SESSION,
    GENERATION_COLUMNS,
    ROWS,
    SESSION,
    STAGE,
    generation_frames,
)

#: One statement over all tables is one state of the session.
TOGETHER: Final = " UNION ALL ".join(
    f"SELECT '{table}', {column}, count(*) FROM {table} WHERE session_id = '{SESSION}' GROUP BY ALL"
    for table, column in GENERATION_COLUMNS.items()
)
OF_ALL: Final = f"SELECT session_id, {GENERATION_COLUMNS['iterations']}, count(*) FROM iterations GROUP BY ALL"


def write(lake: TraceLake, publications: int) -> None:
    """The writer: publish one generation after another; between them make the other session and remove it again."""
    for generation in range(publications):
        lake.publish(SESSION, STAGE, generation_frames(generation))
        with lake.new_view(SESSION, STAGE, lake.trace(SESSION), "it") as path:
            path.write_bytes(_content(generation))
        if generation % 2:
            lake.remove(EARLIER_SESSION)
        else:
            lake.publish(EARLIER_SESSION, STAGE, generation_frames(generation))
        if not generation:
            print("ready", flush=True)


def _content(generation: int) -> bytes:
    return f"{generation}\n".encode() * 1000


def shown(lake: TraceLake) -> dict[str, Callable[[], set[int]]]:
    """Each way of reading, with the generations that it shows: one, unless something is torn. ValueError for rows that
    are too few or too many."""

    def frame() -> set[int]:
        return _whole(lake.read("iterations", SESSION))

    def every_frame() -> set[int]:
        frames = lake.read("iterations").partition_by("session_id")
        found = {one.item(0, 0): _whole(one) for one in frames}
        return found[SESSION] if all(len(one) == 1 for one in found.values()) else set()

    def together() -> set[int]:
        rows = select_rows(lake, TOGETHER).rows
        if {(table, count) for table, _, count in rows} != {
            (table, 1 if table == "evidence" else ROWS) for table in GENERATION_COLUMNS
        }:
            raise ValueError(f"rows: {rows}")
        return {generation for _, generation, _ in rows}

    def of_all() -> set[int]:
        rows = select_rows(lake, OF_ALL).rows
        if any(count != ROWS for _, _, count in rows) or len({row[0] for row in rows}) < len(rows):
            raise ValueError(f"rows: {rows}")
        return {generation for session, generation, _ in rows if session == SESSION}

    def beside() -> set[int]:
        # None while the writer is between the file and its manifest: whoever asked would make it.
        while (content := lake.view(SESSION, lake.trace(SESSION), "it")) is None:
            pass
        generation = int(content.split(b"\n", 1)[0])
        if content != _content(generation):
            raise ValueError("the file beside the tables is torn")
        return {generation}

    return {"frame": frame, "frames of all": every_frame, "SQL": together, "SQL of all": of_all, "file": beside}


def _whole(frame: pl.DataFrame) -> set[int]:
    if frame.height != ROWS:
        raise ValueError(f"{frame.height} rows")
    return set(frame.get_column(GENERATION_COLUMNS["iterations"]).to_list())


def read_beside(lake: TraceLake, writer: "subprocess.Popen[str]") -> Iterator[tuple[str, str | None]]:
    """Read in every way in turn until the writer has ended: each way's name, and what was wrong."""
    newest: Counter[str] = Counter()
    while writer.poll() is None:
        for name, ask in shown(lake).items():
            try:
                generations = ask()
            except (AacoError, ValueError) as error:
                yield name, str(error)
                continue
            if len(generations) != 1 or min(generations) < newest[name]:
                yield name, f"shows generations {sorted(generations)} after {newest[name]}"
            else:
                newest[name] = min(generations)
                yield name, None


def main(arguments: Sequence[str] | None = None) -> int:
    """Read beside a writer and print what was seen; 1 when something was torn or wrong."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--publications", type=int, default=200)
    parser.add_argument("--child", metavar="LAKE", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        write(TraceLake(options.child), options.publications)
        return 0
    reads: Counter[str] = Counter()
    wrong: list[str] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="aaco-readers-") as folder:
        lake = TraceLake(Path(folder) / "lake")
        with _writer(lake, options.publications) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            for name, complaint in read_beside(lake, writer):
                reads[name] += 1
                wrong += [f"{name}: {complaint}"] if complaint is not None else []
        if writer.returncode != 0:
            wrong.append(f"the writer ended with {writer.returncode}")
    print(f"{options.publications} publications, {time.monotonic() - began:.0f} s")
    return reported([(f"read by {name}", count) for name, count in sorted(reads.items())], wrong) or not reads


def _writer(lake: TraceLake, publications: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "benchmarks.reliability.readers_beside_writers", "--child", str(lake.path)]
    command += ["--publications", str(publications)]
    return subprocess.Popen(command, env=with_package(), stdout=subprocess.PIPE, text=True)


if __name__ == "__main__":
    sys.exit(main())
