"""Hand hostile paths to Dagster's jobs as source, harness and model; nothing outside the trusted folder may run.

Links at every depth, `..`, devices, look-alikes, and swaps by a thread or process while the path is used.
"""

import argparse
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import dagster as dg

from aaco_pipeline.automation.jobs import start_session
from aaco_pipeline.automation.optimization import optimization
from aaco_pipeline.automation.resources import LakeResource
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.optimization import samples
from aaco_pipeline.resources.measure.models import resolve_model
from aaco_pipeline.resources.measure.runner import InferenceRunner
from aaco_pipeline.resources.project_settings import TRUSTED_FOLDERS_FILE

Kind = Literal["source", "harness", "model"]
ENDING: Final[Mapping[Kind, str]] = {"source": ".hip", "harness": "_harness.py", "model": ".onnx"}
_SAMPLE: Final = "row_dot"
_QUIET: Final = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
#: Swaps what lies at two paths forever, in a process of its own.
_SWAPPER: Final = """
import os, sys
at, other, aside = sys.argv[1:]
print("ready", flush=True)
while True:
    os.rename(at, aside)
    os.rename(other, at)
    os.rename(aside, other)
"""


@dataclass(frozen=True)
class Place:
    """A trusted folder and a folder of an attacker beside it, with a harmless and a hostile file of one kind."""

    root: Path
    kind: Kind
    inside: bytes
    outside: bytes

    @property
    def trusted(self) -> Path:
        return self.root / "trusted"

    @property
    def hostile(self) -> Path:
        return self.root / "outside" / self.name

    @property
    def name(self) -> str:
        return f"{_SAMPLE}{ENDING[self.kind]}"

    def harmless(self, *folders: str) -> Path:
        """A harmless file below the trusted folder."""
        path = self.trusted.joinpath(*folders, self.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.inside)
        return path

    def link(self, target: Path | str, *parts: str) -> Path:
        """A link below the trusted folder."""
        path = self.trusted.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
        return path

    def copied_to(self, folder: str) -> Path:
        """The attacker's file in a folder that is called almost as the trusted one."""
        path = self.root / folder / self.name
        path.parent.mkdir()
        path.write_bytes(self.outside)
        return path


Make = Callable[[Place], "str | AbstractContextManager[str]"]


def _fifo(place: Place) -> str:
    os.mkfifo(path := place.trusted / place.name)
    return str(path)


@contextmanager
def _socket(place: Place) -> Iterator[str]:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path := place.trusted / "s"))
        yield str(path)


@contextmanager
def _descriptor(place: Place, folder: str) -> Iterator[str]:
    with place.hostile.open("rb") as file:
        yield f"{folder}/{file.fileno()}"


@contextmanager
def _link_to_descriptor(place: Place) -> Iterator[str]:
    with place.hostile.open("rb") as file:
        yield str(place.link(f"/proc/self/fd/{file.fileno()}", place.name))


@contextmanager
def _working_in_it(place: Place, text: str) -> Iterator[str]:
    before = Path.cwd()
    os.chdir(place.hostile.parent)
    try:
        yield text
    finally:
        os.chdir(before)


@contextmanager
def _at_home(place: Place, text: str) -> Iterator[str]:
    before = os.environ["HOME"]
    os.environ["HOME"] = str(place.hostile.parent)
    try:
        yield text
    finally:
        os.environ["HOME"] = before


@contextmanager
def _swapped(place: Place, *folders: str, whole: bool = False, process: bool = False) -> Iterator[str]:
    """A path at which a harmless file and a link to the hostile one, or such folders, take turns without pause."""
    path = place.harmless(*folders)
    at = place.trusted / folders[0] if whole else path
    (other := place.root / "other").symlink_to(place.hostile.parent if whole else place.hostile)
    aside = place.root / "aside"
    if process:
        swapper = subprocess.Popen(
            [sys.executable, "-I", "-c", _SWAPPER, *map(str, (at, other, aside))], stdout=subprocess.PIPE
        )
        assert swapper.stdout is not None
        swapper.stdout.readline()
        try:
            yield str(path)
        finally:
            swapper.kill()
            swapper.wait()
            swapper.stdout.close()
        return
    ended = threading.Event()

    def swap() -> None:
        while not ended.is_set():
            at.rename(aside)
            other.rename(at)
            aside.rename(other)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield str(path)
    finally:
        ended.set()
        thread.join()


#: Every hostile path by what is hostile in it.
CASES: Final[Mapping[str, Make]] = {
    "absolute, elsewhere": lambda at: str(at.hostile),
    "absolute, two slashes": lambda at: f"/{at.hostile}",
    "up and out": lambda at: f"{at.trusted}/../outside/{at.name}",
    "up and out, relative": lambda at: f"../outside/{at.name}",
    "up and out from a folder that is not there": lambda at: f"{at.trusted}/a/b/../../../outside/{at.name}",
    "up and out behind a file": lambda at: f"{at.harmless()}/../../outside/{at.name}",
    "up and out, dots between": lambda at: f"{at.trusted}/./././../outside/{at.name}",
    "up and out, percent-encoded": lambda at: f"{at.trusted}/%2e%2e/outside/{at.name}",
    "up and out, backslashes": lambda at: f"..\\outside\\{at.name}",
    "a link": lambda at: str(at.link(at.hostile, at.name)),
    "a relative link": lambda at: str(at.link(f"../outside/{at.name}", at.name)),
    "a link by its name alone": lambda at: at.link(at.hostile, at.name).name,
    "a link and a slash": lambda at: f"{at.link(at.hostile, at.name)}/",
    "a chain of links": lambda at: str(at.link(at.link(at.link(at.hostile, "two"), "one"), at.name)),
    "a link to itself": lambda at: str(at.link(at.name, at.name)),
    "a link to nothing": lambda at: str(at.link(at.hostile.parent / "none", at.name)),
    "a linked folder": lambda at: f"{at.link(at.hostile.parent, 'd')}/{at.name}",
    "a linked folder, relative": lambda at: f"d/{at.link('../outside', 'd') and at.name}",
    "a linked folder and a dot": lambda at: f"{at.link(at.hostile.parent, 'd')}/./{at.name}",
    "a linked folder at depth 2": lambda at: f"{at.link(at.hostile.parent, 'a', 'd')}/{at.name}",
    "a linked folder at depth 3": lambda at: f"{at.link(at.hostile.parent, 'a', 'b', 'd')}/{at.name}",
    "a linked folder at depth 9": lambda at: f"{at.link(at.hostile.parent, *'abcdefghd')}/{at.name}",
    "a link back to the folder above": lambda at: f"{at.link('..', 'd')}/outside/{at.name}",
    "a link to the root": lambda at: f"{at.link('/', 'd')}{at.hostile}",
    "an open descriptor in proc": lambda at: _descriptor(at, "/proc/self/fd"),
    "an open descriptor in dev": lambda at: _descriptor(at, "/dev/fd"),
    "a link to an open descriptor": _link_to_descriptor,
    "the root of the process": lambda at: f"/proc/self/root{at.hostile}",
    "a link to the root of the process": lambda at: f"{at.link('/proc/self/root', 'd')}{at.hostile}",
    "standard input": lambda at: "/dev/stdin",
    "a device": lambda at: "/dev/zero",
    "a link to a device": lambda at: str(at.link("/dev/zero", at.name)),
    "a named pipe": _fifo,
    "a socket": _socket,
    "a folder": lambda at: str(at.harmless("sub").parent),
    "the trusted folder": lambda at: str(at.trusted),
    "nothing": lambda at: "",
    "the root": lambda at: "/",
    "a very long path": lambda at: f"{at.trusted}/{'a/' * 3000}{at.name}",
    "a very long name": lambda at: f"{at.trusted}/{'a' * 3000}{at.name}",
    "a null character": lambda at: f"{at.harmless()}\0/../../outside/{at.name}",
    "a null character behind the hostile file": lambda at: f"{at.hostile}\0{at.harmless()}",
    "a folder whose name begins as the trusted one's": lambda at: str(at.copied_to("trusted-too")),
    "a folder in other letters": lambda at: str(at.copied_to("Trusted")),
    "a folder in Cyrillic letters": lambda at: str(at.copied_to("tru\u0455ted")),
    "a folder with a letter that is not seen": lambda at: str(at.copied_to("trusted\u200b")),
    "a slash that is none": lambda at: f"{at.trusted}\u2215..\u2215outside\u2215{at.name}",
    "a home": lambda at: _at_home(at, f"~/{at.name}"),
    "a variable": lambda at: _at_home(at, f"$HOME/{at.name}"),
    "an address": lambda at: f"file://{at.hostile}",
    "in the working folder": lambda at: _working_in_it(at, f"{at.root.name}{at.name}"),
    "in the working folder, with a dot": lambda at: _working_in_it(at, f"./{at.root.name}{at.name}"),
    "a file swapped by a thread": _swapped,
    "a file at depth 3 swapped by a thread": lambda at: _swapped(at, "a", "b", "c"),
    "a folder swapped by a thread": lambda at: _swapped(at, "d", whole=True),
    "a folder of folders swapped by a thread": lambda at: _swapped(at, "d", "e", whole=True),
    "a file swapped by a process": lambda at: _swapped(at, process=True),
    "a folder swapped by a process": lambda at: _swapped(at, "d", whole=True, process=True),
}


def laid_out(root: Path, kind: Kind, ran: Path) -> Place:
    """The two folders and the settings that name the one. A harness from outside would leave the file `ran`."""
    folder = Path(samples.__file__).parent
    (root / "outside").mkdir(parents=True)
    (root / "trusted").mkdir()
    (root / "configs").mkdir()
    (root / "configs" / TRUSTED_FOLDERS_FILE).write_text("folders: [../trusted]\n")
    if kind == "model":
        inside, outside = (resolve_model(name, {}).path.read_bytes() for name in ("control_flow", "gpt_tiny"))
    else:
        inside = (folder / f"{_SAMPLE}{ENDING[kind]}").read_bytes()
        mark = f"open({str(ran)!r}, 'w').close()\n".encode() if kind == "harness" else b"// from outside\n"
        outside = (
            inside.replace(b"import numpy as np\n", b"import numpy as np\n" + mark, 1)
            if kind == "harness"
            else mark + inside
        )
    place = Place(root, kind, inside, outside)
    for name in (place.name, f"{root.name}{place.name}"):
        (root / "outside" / name).write_bytes(outside)
    return place


def made(make: Make, place: Place) -> AbstractContextManager[str]:
    """The path of a case, for as long as the block lasts."""
    found = make(place)
    return nullcontext(found) if isinstance(found, str) else found


def handed_over(place: Place, path: str) -> bool:
    """Return whether a run of Dagster came to its good end with this path as source, harness or model."""
    lake = TraceLake(place.root / "lake")
    resources = {
        "lake": LakeResource(path=str(lake.path)),
        "runner": InferenceRunner(configs=str(place.root / "configs")),
    }
    with dg.DagsterInstance.ephemeral() as instance:
        if place.kind == "model":
            config: dict[str, Any] = {"ops": {"register_session": {"config": {"model": path}}}}
            done = start_session.execute_in_process(
                instance=instance, run_config={**config, **_QUIET}, resources=resources, raise_on_error=False
            )
        else:
            named = {"source": path, "harness": f"{_SAMPLE}_harness.py"}
            if place.kind == "harness":
                named = {"source": f"{_SAMPLE}.hip", "harness": path}
            config = {"ops": {"optimization": {"config": {**named, "target": "cpu", "budget_seconds": 1.0}}}}
            done = dg.materialize(
                [optimization],
                instance=instance,
                run_config={**config, **_QUIET},
                resources=resources,
                raise_on_error=False,
            )
    return bool(done.success)


def was_run(place: Place, ran: Path) -> bool:
    """Return whether anything of the attacker's was run, or is kept in the lake to be."""
    lake = TraceLake(place.root / "lake")
    if place.kind == "harness":
        return ran.exists()
    hostile = hashlib.sha256(place.outside).hexdigest()
    if place.kind == "source":
        return hostile in lake.read("optimizations").get_column("source_sha256").to_list()
    asked = [json.loads(lake.requested(session) or "{}") for session in lake.requests()]
    measured = [Path(one["artefact"] or one["model"]) for one in asked]
    return any(hashlib.sha256(one.read_bytes()).hexdigest() == hostile for one in measured)


def main() -> int:
    """Hand over every path, print what became of each, and count what was run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--races", type=int, default=5, help="how often each path that is swapped is handed over")
    parser.add_argument("--kind", choices=list(ENDING), action="append", help="only these kinds")
    asked = parser.parse_args()
    broken, tried, counts = 0, 0, dict.fromkeys(("refused", "harmless"), 0)
    for kind in asked.kind or ENDING:
        for name, make in CASES.items():
            for _ in range(asked.races if "swapped" in name else 1):
                folder = Path(tempfile.mkdtemp(prefix="aaco-paths-"))
                ran = folder / "ran"
                place = laid_out(folder / "place", kind, ran)
                with made(make, place) as path:
                    took = handed_over(place, path)
                executed = was_run(place, ran)
                tried += 1
                broken += executed
                counts["harmless" if took else "refused"] += not executed
                if executed:
                    print(f"RUN: {kind}: {name}")
                shutil.rmtree(folder)
    print(f"{broken} of {tried} hostile paths ({len(CASES)} kinds) executed; {counts}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
