"""Hold `aaco ingest` of a large PyTorch trace, labels and all, to a quarter of the CPU of TraceLens, and to 700 MiB.

TraceLens loads the same file and computes its timeline, in the same run; `--peer PYTHON` names an interpreter that has
it (the project on GitHub: a package of that name elsewhere is another). A recorded trace of 1,500 launches is repeated
until it has the kernels asked for, each copy behind the one before it, with times, correlations and numbers of its own
and events of the whole trace once. It is written once, in about 10 s, and kept in `--folder`.

Run as `python -m benchmarks.performance.kineto_large --peer PYTHON --folder FOLDER`. CPU is user and system time of a process and
all its children from start to end, imports and freeing of memory included. Exits with 1 where the claim does not hold,
and where no peer is there to hold it to.
"""

import argparse
import gzip
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

SHARED: Final = Path(os.environ.get("AACO_SHARED", Path(__file__).parents[3] / "shared"))
TRACE: Final = SHARED / "gpu_sessions" / "traces" / "tiny_kernels_500.json.gz"
MOST_OF_PEER: Final = 0.25
MOST_BYTES: Final = 700 << 20
#: Between two copies of the trace.
_GAP_NS: Final = 1_000_000
#: Numbers in the arguments that are an event's own.
_OWN: Final = ("correlation", "External id", "Ev Idx")
_BARE: Final = re.compile(r'"@([^"@]*)@"')
_LOOKED_AT_SECONDS: Final = 0.05
_PEER: Final = (
    "import sys; from TraceLens import TreePerfAnalyzer; "
    "print(TreePerfAnalyzer.from_file(sys.argv[1]).get_df_gpu_timeline().to_string())"
)
Event = dict[str, Any]


@dataclass(frozen=True)
class Cost:
    """CPU seconds of a command with its children, and the most memory of any one of them and of all at once."""

    cpu: float
    largest: int
    together: int


def enlarged(kernels: int) -> Iterator[str]:
    """The recorded trace repeated until it has so many kernels, as text; decimals stay as they were written."""
    document = json.loads(gzip.decompress(TRACE.read_bytes()), parse_float=lambda text: f"@{text}@")
    events: list[Event] = document.pop("traceEvents")
    once = [event for event in events if event["ph"] in "Mi" or event.get("cat") in ("Trace", "overhead")]
    again = [event for event in events if event not in once]
    each = sum(event["cat"] == "kernel" for event in again)
    ends = [_ns(event["ts"]) + _ns(event.get("dur", 0)) for event in again]
    span = max(ends) - min(_ns(event["ts"]) for event in again) + _GAP_NS
    numbers = {key: 1 + max(event.get("args", {}).get(key, 0) for event in again) for key in _OWN}
    numbers["step"] = sum(event["name"].startswith("step#") for event in again if event["cat"] == "user_annotation")
    numbers["id"] = 1 + max(event.get("id", 0) for event in again)
    yield json.dumps(document)[:-1] + ', "traceEvents": ['
    yield ", ".join(_BARE.sub(r"\1", json.dumps(event)) for event in once)
    for copy in range(-(-kernels // each)):
        for event in again:
            yield ", " + _BARE.sub(r"\1", json.dumps(_moved(event, copy, span, numbers)))
    yield "]}"


def _moved(event: Event, copy: int, span: int, numbers: dict[str, int]) -> Event:
    """The event as the copy with this number has it."""
    whole, thousandths = divmod(_ns(event["ts"]) + copy * span, 1000)
    moved = {**event, "ts": f"@{whole}.{thousandths:03d}@"}
    if event["name"].startswith("step#"):
        moved["name"] = f"step#{int(event['name'].removeprefix('step#')) + copy * numbers['step']}"
    if "id" in event:
        moved["id"] = event["id"] + copy * numbers["id"]
    if "args" in event:
        own = {key: value + copy * numbers[key] for key, value in event["args"].items() if key in _OWN}
        moved["args"] = {**event["args"], **own}
    return moved


def _ns(stated: str | int) -> int:
    """Microseconds of at most three decimals, as they are written, in nanoseconds."""
    whole, _, decimals = str(stated).strip("@").partition(".")
    return int(whole) * 1000 + int(f"{decimals:0<3}")


def cost(command: Sequence[str]) -> Cost:
    """Run a command to its end and tell what it cost. CalledProcessError when it fails."""
    before, ended = resource.getrusage(resource.RUSAGE_CHILDREN), threading.Event()
    most = [0, 0]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:

        def watch() -> None:
            while not ended.wait(_LOOKED_AT_SECONDS):
                held = memory_of(process.pid)
                most[:] = max(most[0], *held, 0), max(most[1], sum(held))

        watcher = threading.Thread(target=watch)
        watcher.start()
        code = process.wait()
        ended.set()
        watcher.join()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if code:
        raise subprocess.CalledProcessError(code, command)
    return Cost(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, most[0], most[1])


def memory_of(root: int) -> list[int]:
    """Bytes of a process and of each below it; what two of them share counts half in each (PSS)."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _text(entry / "stat")):
            children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    held, waiting = [], [root]
    while waiting:
        number = waiting.pop()
        waiting += children.get(number, [])
        found = re.search(r"^Pss: +(\d+) kB", _text(Path(f"/proc/{number}/smaps_rollup")), re.MULTILINE)
        held.append(int(found[1]) << 10 if found else 0)
    return held


def _text(path: Path) -> str:
    """What /proc says; nothing of a process that has ended meanwhile."""
    try:
        return path.read_text()
    except OSError:
        return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=198_000)
    parser.add_argument("--peer", help="an interpreter that has TraceLens")
    parser.add_argument("--folder", type=Path, required=True, help="where the enlarged trace is kept")
    options = parser.parse_args()
    trace = options.folder / f"tiny_kernels_{options.kernels}.json"
    if not trace.exists():
        options.folder.mkdir(parents=True, exist_ok=True)
        unfinished = trace.with_suffix(".part")
        with unfinished.open("w") as file:
            file.writelines(enlarged(options.kernels))
        unfinished.rename(trace)
    print(f"{trace}: {trace.stat().st_size / 1e6:.0f} MB")
    with tempfile.TemporaryDirectory(dir=options.folder) as lake:
        command = [str(Path(sys.executable).with_name("aaco")), "ingest", str(trace), "--lake", lake]
        ours = cost(command)
    print(told("aaco ingest", ours))
    unit = cost([sys.executable, "-c", "import dagster"])
    print(f"import dagster {unit.cpu:.2f} s CPU: ingest is {ours.cpu / unit.cpu:.1f} of it")
    in_memory = ours.together <= MOST_BYTES
    if options.peer is None:
        print("TraceLens: peer not installed (--peer PYTHON names an interpreter that has it)")
        return 1
    peer = cost([options.peer, "-c", _PEER, str(trace)])
    print(told("TraceLens", peer))
    ratio = ours.cpu / peer.cpu
    print(
        f"{ratio:.2f} of the peer's CPU, at most {MOST_OF_PEER}; memory of all at once at most {MOST_BYTES >> 20} MiB"
    )
    return 0 if ratio <= MOST_OF_PEER and in_memory else 1


def told(who: str, spent: Cost) -> str:
    return (
        f"{who:12} {spent.cpu:6.2f} s CPU, {spent.largest >> 20} MiB in a process, {spent.together >> 20} MiB at once"
    )


if __name__ == "__main__":
    sys.exit(main())
