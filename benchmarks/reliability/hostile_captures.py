"""Ingest more than 250 hostile captures with the real command and check that none harms its host.

An end in time, bounded memory, no traceback, nothing of the host in the lake, one line and exit code 6.
`--results FILE` is resumed. Cases that may be taken, because what is hostile in them is left out, say why.
"""

import argparse
import gzip
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from aaco_pipeline.resources.project import HOME_VARIABLE, LAKE_VARIABLE
from benchmarks.common import append, rows_of, with_package
from benchmarks.reliability.hostile_files import (
    of_databases,
    of_documents,
    of_every_format,
    of_metrics,
    of_series,
    of_texts,
)
from benchmarks.reliability.hostile_folders import of_folders, of_taken
from benchmarks.reliability.hostile_parts import MARKER, Case, fill_host


def cases() -> list[Case]:
    """All of them, in one order."""
    found = [
        *of_every_format(),
        *of_databases(),
        *of_documents(),
        *of_texts(),
        *of_metrics(),
        *of_series(),
        *of_folders(),
        *of_taken(),
    ]
    assert len({one.name for one in found}) == len(found)
    return found


#: The command, which says at its end how much memory it took itself.
_ENTRY: Final = (
    "import atexit, os, resource\n"
    "atexit.register(lambda: os.write(int(os.environ['TOLD']), str(resource.getrusage(0).ru_maxrss).encode()))\n"
    "from aaco_pipeline.cli.main import entry\n"
    "entry()"
)
_REFUSED: Final = 6
_LONGEST_LINE: Final = 4_000


def tried(case: Case, place: Path, host: Path, seconds: float, memory: int) -> dict[str, Any]:
    """Outcome of one capture below an empty folder, and which promises were broken."""
    folder, lake, temporary = (place / name for name in ("stranger", "lake", "tmp"))
    for one in (folder, temporary):
        one.mkdir()
    path = case.make(folder, host)
    begun = time.monotonic()
    reading, writing = os.pipe()
    places = {LAKE_VARIABLE: str(lake), HOME_VARIABLE: str(place / "home"), "TMPDIR": str(temporary)}
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", _ENTRY, "ingest", str(path)],
        cwd=place,
        env=with_package(TOLD=str(writing), **places),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=(writing,),
        start_new_session=True,
    )
    os.close(writing)
    broken = []
    try:
        out, err = (text.decode(errors="replace") for text in child.communicate(timeout=seconds))
    except subprocess.TimeoutExpired:
        child.kill()
        out, err = (text.decode(errors="replace") for text in child.communicate())
        broken.append(f"no end within {seconds:.0f} s")
    with open(reading, "rb") as told:  # noqa: PTH123 - a pipe
        peak = int(told.read() or b"0") >> 10
    if peak > memory:
        broken.append(f"took {peak} MiB")
    if "Traceback" in out + err:
        broken.append("a traceback")
    if (found := _foreign(lake)) is not None:
        broken.append(f"a file of the host in {found}")
    if left := [one.name for one in temporary.iterdir()]:
        broken.append(f"left behind: {left}")
    state = "refused" if child.returncode == _REFUSED else "taken" if child.returncode == 0 else "failed"
    lines = err.splitlines()
    if case.harmless is None or state != "taken":
        broken += _not_one_line(lines, err)
        if child.returncode != _REFUSED:
            broken.append(f"exit code {child.returncode}")
    told_line = lines[0].replace(str(place), "…") if lines else ""
    return {
        **{"case": case.name, "state": state, "broken": broken, "line": told_line[:_LONGEST_LINE]},
        **{"seconds": round(time.monotonic() - begun, 1), "peak_mib": peak, "harmless": case.harmless},
    }


def _not_one_line(lines: list[str], text: str) -> list[str]:
    if len(lines) != 1 or not lines[0].startswith("aaco: "):
        return [f"{len(lines)} lines on standard error"]
    if not lines[0].isprintable() or len(text) > _LONGEST_LINE:
        return ["a line that is not for a terminal"]
    return []


def _foreign(lake: Path) -> str | None:
    """A file of the lake that holds what only the host's files do."""
    for file in sorted(lake.rglob("*")):
        if file.is_symlink():
            return str(file)
        if file.is_file():
            content = file.read_bytes()
            with suppress(OSError, EOFError, zlib.error):
                content += gzip.decompress(content) if content[:2] == b"\x1f\x8b" else b""
            if MARKER.encode() in content or b"root:x:0" in content:
                return str(file)
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, help="file of JSON lines that results are added to, and resumed from")
    parser.add_argument("--only", metavar="WORDS", help="only cases whose names hold these words")
    parser.add_argument("--seconds", type=float, default=300.0, help="longest of one capture (default: %(default)s)")
    parser.add_argument("--memory", type=int, default=1024, help="most MiB of the command (default: %(default)s)")
    arguments = parser.parse_args()
    results = arguments.results or Path(tempfile.mkdtemp()) / "hostile.jsonl"
    known = {line["case"]: line for line in rows_of(results)}
    wanted = [case for case in cases() if not arguments.only or arguments.only in case.name]
    with tempfile.TemporaryDirectory(prefix="aaco_host_") as host:
        fill_host(Path(host))
        for case in wanted:
            if case.name in known:
                continue
            place = Path(tempfile.mkdtemp(prefix="aaco_hostile_"))
            try:
                one = known[case.name] = tried(case, place, Path(host), arguments.seconds, arguments.memory)
            finally:
                shutil.rmtree(place, ignore_errors=True)
            append(results, one)
            mark = f"BROKEN: {', '.join(one['broken'])}" if one["broken"] else one["state"]
            print(f"{case.name}: {mark}, {one['seconds']} s, {one['peak_mib']} MiB: {one['line'][:160]}", flush=True)
    lines = [known[case.name] for case in wanted]
    states = Counter(line["state"] for line in lines)
    broken = [line for line in lines if line["broken"]]
    print(f"{len(lines)} captures: {dict(states)}; most memory {max(line['peak_mib'] for line in lines)} MiB, ", end="")
    print(f"longest {max(line['seconds'] for line in lines)} s; {len(broken)} with a broken promise")
    for line in lines:
        if line["state"] == "taken":
            print(f"taken: {line['case']}: {line['harmless']}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
