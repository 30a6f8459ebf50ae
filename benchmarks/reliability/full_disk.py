"""Fill the lake's disk at 25 instants of a run, an ingestion, a publication, a retention round, a campaign; make room.

The lake lies on a small tmpfs, filled so that the work runs out of room after a random part of what it needs. The work
must end with exit code 8 (or 0, where it fitted), nothing published may be torn, and with room again the same work and
`aaco doctor --mend` must succeed, with one whole session of the capture. Mounting needs root. Run as
`python -m benchmarks.reliability.full_disk --results /tmp/full_disk.jsonl`; a second run with the same file goes on where the first
one ended. It exits with 1 when a promise was broken.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from aaco_pipeline.errors import AacoError
from aaco_pipeline.lake.health import faults
from benchmarks.reliability.kill_campaigns import COMPARE, DESIGN
from benchmarks.reliability.kill_publishing import SESSION, STAGE, generation_frames
from benchmarks.reliability.kill_runs import Workplace
from tests.places import SHARED

CAPTURE: Final = SHARED / "gpu_sessions/traces/two_streams_overlap.json.gz"
#: What is in the lake before; all but the newest goes in a retention round.
EARLIER: Final = [SHARED / f"gpu_sessions/traces/{name}.json.gz" for name in ("graph_replay", "pageable_copies")]
DISK_BYTES: Final = 256 << 20
_BALLAST: Final = "ballast"
_FULL: Final = 8
RUN: Final = ("run", "--model", "squeezenet", "--iterations", "5", "--warmup", "1", "--json")


def ended(place: Workplace, *arguments: str) -> tuple[int, str]:
    """The exit code and the last line of `aaco` with these arguments."""
    done = place.call(*arguments)
    return done.returncode, (done.stderr.strip().splitlines() or [""])[-1]


def published(place: Workplace) -> tuple[int, str]:
    """As `ended`, of a publication."""
    try:
        place.lake.publish(SESSION, STAGE, generation_frames(1))
    except AacoError as error:
        return error.exit_code, str(error)
    return 0, ""


def compared(place: Workplace) -> tuple[int, str]:
    """As `ended`, of a campaign: what is left of it, or a new one where none was planned yet."""
    campaigns = [one.id for one in place.lake.manifests("campaign")]
    arguments = ("compare", "--resume", campaigns[0]) if campaigns else (*COMPARE, *DESIGN)
    return ended(place, *arguments, "--json")


WORKS: Final[dict[str, Callable[[Workplace], tuple[int, str]]]] = {
    "run": lambda place: ended(place, *RUN),
    "ingest": lambda place: ended(place, "ingest", str(CAPTURE)),
    "publish": published,
    "gc": lambda place: ended(place, "gc", "--keep-last", "1", "--json"),
    "compare": compared,
}


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A tmpfs at `folder`, for a block."""
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def free_bytes(folder: Path) -> int:
    state = os.statvfs(folder)
    return state.f_bavail * state.f_frsize


def fill(folder: Path, left: int) -> None:
    """Leave about `left` bytes free."""
    with (folder / _BALLAST).open("wb") as ballast:
        os.posix_fallocate(ballast.fileno(), 0, max(free_bytes(folder) - left, 1))


def complaints_of(place: Workplace, work: str, left: int) -> tuple[list[str], int, str]:
    """Do one work with so much room, make room, do it again: broken promises, exit code and line of the first try."""
    disk, wrong = place.folder, []
    fill(disk, left)
    code, line = WORKS[work](place)
    if code not in (0, _FULL):
        wrong.append(f"ended with {code}: {line}")
    # What is orphaned or half is no harm; what is torn is.
    wrong += [f"with the disk full: {one.kind}" for one in faults(place.lake) if not one.mendable or one.session]
    (disk / _BALLAST).unlink()
    again, line_again = WORKS[work](place)
    if again != 0:
        wrong.append(f"with room again ended with {again}: {line_again}")
    if work == "publish":
        place.lake.remove(SESSION)  # nobody asked for that session or captured it: it can only be half
    mended, line_mended = ended(place, "doctor", "--mend")
    if mended != 0:
        wrong.append(f"doctor --mend ended with {mended}: {line_mended}")
    wrong += [f"after mending: {one.kind}" for one in faults(place.lake)]
    wrong += [f"{session} is not whole" for session in place.lake.unfinished()]
    if work == "ingest" and len(place.lake.captured()) != 1 + len(EARLIER):
        wrong.append(f"{len(place.lake.captured())} captures, expected {1 + len(EARLIER)}")
    return wrong, code, line


def instants(folder: Path, count: int, seed: int, done: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What came of each instant that is not done yet; each has a lake of its own, and its own random number."""
    template, disk = folder / "template", folder / "disk"
    template.mkdir()
    prepared = Workplace(template)
    for capture in EARLIER:
        code, line = ended(prepared, "ingest", str(capture))
        if code != 0:
            raise RuntimeError(f"{capture}: cannot be taken in: {line}")
    needed: dict[str, int] = {}
    for number in range(len(done), count):
        work = list(WORKS)[number % len(WORKS)]
        with small_disk(disk):
            shutil.copytree(template, disk, dirs_exist_ok=True)
            place = Workplace(disk)
            if work not in needed:
                needed[work] = _need(folder, template, work)
            left = int(random.Random(seed + number).random() * needed[work])
            wrong, code, line = complaints_of(place, work, left)
        yield {"number": number, "work": work, "left": left, "code": code, "line": line, "wrong": wrong}


def _need(folder: Path, template: Path, work: str) -> int:
    """How many bytes a work adds to an undisturbed lake."""
    tried = folder / f"undisturbed-{work}"
    shutil.copytree(template, tried)
    before = _bytes_below(tried)
    code, line = WORKS[work](Workplace(tried))
    if code != 0:
        raise RuntimeError(f"{work} fails where there is room: {line}")
    return max(_bytes_below(tried) - before, 4096)


def _bytes_below(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill the disk and print what was found; 1 when a promise was broken, 2 where nothing can be mounted."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--instants", type=int, default=25)
    parser.add_argument("--seed", type=int, default=20260101)
    parser.add_argument("--results", type=Path, required=True, help="where to append, and what to go on from")
    options = parser.parse_args(arguments)
    if os.geteuid() != 0 or shutil.which("mount") is None or not CAPTURE.exists():
        print("this needs root, mount(8) and the shared captures", file=sys.stderr)
        return 2
    done = [json.loads(line) for line in options.results.read_text().splitlines()] if options.results.exists() else []
    with tempfile.TemporaryDirectory(prefix="aaco-full-") as folder:
        for one in instants(Path(folder), options.instants, options.seed, done):
            done.append(one)
            with options.results.open("a") as results:
                results.write(json.dumps(one) + "\n")
    codes = Counter((one["work"], one["code"]) for one in done)
    for (work, code), count in sorted(codes.items()):
        print(f"{work}: {count} times exit code {code}")
    broken = [f"instant {one['number']}, {one['work']}: {wrong}" for one in done for wrong in one["wrong"]]
    print(f"{len(done)} instants, broken promises: {len(broken)}")
    for line in broken:
        print(line, file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
