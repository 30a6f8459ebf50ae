"""CPU seconds of one tick of the inbox sensor beside 10,000 entries: waiting files and folders, taken ones."""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import dagster as dg

from aaco_pipeline.automation.inbox_runs import due
from aaco_pipeline.lake.layout import LakeFolder
from aaco_pipeline.pipeline.inbox import TAKEN_FOLDER, Memory
from benchmarks.common import ROOT

MOST_SECONDS: Final = 0.3
FILES_A_FOLDER: Final = 3


def files(folder: Path, count: int) -> None:
    """Plain files, each a capture."""
    for number in range(count):
        (folder / f"capture{number:05d}.json").write_bytes(b"{}")


def folders(folder: Path, count: int) -> None:
    """Folders with a few files, each a capture."""
    for number in range(count):
        place = folder / f"capture{number:05d}"
        place.mkdir()
        for file in range(FILES_A_FOLDER):
            (place / f"{file}.csv").write_bytes(b"x")


def taken(folder: Path, count: int) -> None:
    """The same folders in `taken`."""
    (folder / TAKEN_FOLDER).mkdir()
    folders(folder / TAKEN_FOLDER, count)


def ticks(inbox: Path, instance: dg.DagsterInstance, number: int, settled: str) -> list[float]:
    """CPU seconds of so many ticks, 30 s apart for the sensor; the first one has no cursor.

    Nothing comes to be asked for: the entries are never still for long enough, or count as `settled`.
    """
    cursor: str | None = None
    seconds = []
    for tick in range(number):
        began = time.process_time()
        memory = Memory.from_text(cursor)
        due(LakeFolder(inbox.parent / "lake"), instance, inbox, memory, float(tick))
        cursor = memory.to_text()
        seconds.append(time.process_time() - began)
        if settled:
            entries = {name: seen._replace(settled=settled) for name, seen in memory.entries.items()}
            cursor = Memory(entries, memory.next).to_text()
    return seconds


CASES: Final[dict[str, tuple[Callable[[Path, int], None], str]]] = {
    "files that wait": (files, ""),
    "folders that wait": (folders, ""),
    "folders taken, not movable": (folders, "taken, and cannot be moved"),
    "folders in taken/": (taken, ""),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the CPU seconds of a tick for each case; 1 when one costs more than promised."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--entries", type=int, default=10_000, help="how many captures lie in the inbox")
    parser.add_argument("--ticks", type=int, default=12, help="how many ticks are measured of each case")
    options = parser.parse_args(arguments)
    broken = False
    for name, (fill, settled) in CASES.items():
        with tempfile.TemporaryDirectory() as place:
            home, inbox = Path(place, "home"), Path(place, "inbox")
            home.mkdir()
            inbox.mkdir()
            (home / "dagster.yaml").symlink_to(ROOT / "dagster.yaml")
            fill(inbox, options.entries)
            with dg.DagsterInstance.from_config(str(home)) as instance:
                seconds = ticks(inbox, instance, options.ticks, settled)
        broken |= max(seconds) > MOST_SECONDS
        middle = sorted(seconds)[len(seconds) // 2]
        print(f"{options.entries:,} {name:<28} median {middle:.3f} s CPU a tick, most {max(seconds):.3f} s")
    print(f"at most {MOST_SECONDS} s: " + ("not kept" if broken else "kept"))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
