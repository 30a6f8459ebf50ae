"""Plant code in a cache as another user could: none of it runs, and the work still gets done. Run as root.

Every kind of cached code, every ownership, link and race; a control run without the checks must fire.
"""

import argparse
import hashlib
import io
import marshal
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aaco_pipeline import cache_folder
from benchmarks.common import ROOT

if TYPE_CHECKING:
    from aaco_pipeline.optimization.targets import Build
    from aaco_pipeline.resources.targets.cpu import CpuTarget

FIRED: Final = "PLANTED CODE RUNS"
WORKS: Final = "the work is done"
#: Users that are the victims, and who plants for each.
ROOT_USER: Final = 0
ORDINARY_USER: Final = 65534
PLANTS_FOR: Final = {ROOT_USER: 65534, ORDINARY_USER: 65533}
_SAYS: Final = (
    "#include <unistd.h>\n"
    f'__attribute__((constructor)) static void planted(void) {{ write(1, "{FIRED}\\n", {len(FIRED) + 1}); }}\n'
)
_KERNEL: Final = b'extern "C" __global__ void ones(float *out) { out[threadIdx.x] = 1.0f; }\n'
_CONTROL: Final = "oclc_isa_version_942.bc"
_DIGEST: Final = ".sha256"
INPUTS: Final = "PLANTED_CACHES_INPUTS"
_SECONDS: Final = 300

# ---- the work that needs each kind of code ---------------------------------------------------------------------------


def _worker(folder: Path) -> None:
    subprocess.run([_built(folder)[1].artefact], check=False)


def _flush(folder: Path) -> None:
    target, build = _built(folder)
    with target.start(build):
        pass


def _built(folder: Path) -> "tuple[CpuTarget, Build]":
    from aaco_pipeline.optimization.targets import Layout
    from aaco_pipeline.resources.targets.cpu import CpuTarget

    target = CpuTarget(flags=("-O1",))
    return target, target.build(_KERNEL, "ones", (), Layout(1), folder)


def _injection(folder: Path) -> None:
    """The compiler is a script that hands out a library: there are no headers of CUPTI here to compile against."""
    from aaco_pipeline.recording.profilers.cupti import Cupti, Injection, compiled

    one = Cupti((_inputs(),), _inputs() / "libcupti.so.13", 13, 130001)
    environment = Injection(compiled(str(_inputs() / "compiler"), one), one).environment(folder)
    program = "import ctypes, os; ctypes.CDLL(os.environ['CUDA_INJECTION64_PATH'])"
    subprocess.run([sys.executable, "-c", program], env={**os.environ, **environment}, check=True)


def _device_libraries(folder: Path) -> None:
    """Bitcode for a GPU is not run here: that it reaches the compiler is what counts."""
    from aaco_pipeline.resources.toolchains.amdgpu.compiling import Runner, compile_command
    from aaco_pipeline.resources.toolchains.amdgpu.finding import Toolchain

    copy = str(_inputs() / "copy")
    toolchain = Toolchain("debian", (copy,), (copy,), _inputs(), tools={"llvm-dis": copy, "llvm-as": copy})
    flag = compile_command(toolchain, "gfx942", Runner(toolchain, folder))[-1]
    print(Path(flag.partition("=")[2], _CONTROL).read_text(), flush=True)


def _inputs() -> Path:
    """Scripts that stand in for compilers, at one place for all processes: their paths are a part of the names."""
    return Path(os.environ[INPUTS])


def make_inputs(folder: Path) -> None:
    """Write what `_inputs` is about."""
    folder.mkdir()
    subprocess.run(["gcc", "-shared", "-x", "c", "/dev/null", "-o", folder / "good.so"], check=True)
    _script(folder / "compiler", f'while [ "$1" != -o ]; do shift || exit; done; cp {folder}/good.so "$2"')
    _script(folder / "copy", 'cp "$1" "$3"')
    (folder / "oclc_isa_version_940.bc").write_text("constant i32 9400")


def _model(folder: Path) -> None:
    import onnxruntime

    from aaco_pipeline.resources.measure.models import resolve_model

    path = resolve_model("control_flow", {}).path
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    print(session.get_modelmeta().producer_name, flush=True)


def _template(folder: Path) -> None:
    from aaco_pipeline.report.html.page import templates

    templates().get_template("page.html.jinja")


# ---- what is planted instead -----------------------------------------------------------------------------------------


def _planted_native(flags: Sequence[str], source: str) -> Callable[[bytes], bytes]:
    def made(_: bytes) -> bytes:
        text = (ROOT / source).read_text() + _SAYS
        with tempfile.TemporaryDirectory() as folder:
            command = ["gcc", *flags, "-x", "c", "-", "-o", f"{folder}/made"]
            subprocess.run(command, input=text.encode(), check=True)
            return Path(folder, "made").read_bytes()

    return made


def _planted_model(good: bytes) -> bytes:
    import onnx

    model = onnx.load_from_string(good)
    model.producer_name = FIRED
    return bytes(model.SerializeToString())


def _planted_template(good: bytes) -> bytes:
    from jinja2.bccache import bc_magic

    stream = io.BytesIO(good)
    stream.seek(len(bc_magic))
    pickle.load(stream)
    head = good[: stream.tell()]
    source = f"print({FIRED!r}, flush=True)\nimport marshal\nexec(marshal.loads({good[stream.tell() :]!r}))"
    return head + marshal.dumps(compile(source, "planted", "exec"))


@dataclass(frozen=True)
class Kind:
    """One kind of code: the work that executes it, and what is planted in the place of a good one."""

    work: Callable[[Path], None]
    planted: Callable[[bytes], bytes]
    suffix: str


_NATIVE: Final = "aaco_pipeline/resources/targets/cpu/native"
_SHARED: Final = ("-O1", "-fPIC", "-shared")
KINDS: Final[Mapping[str, Kind]] = {
    "worker.o": Kind(
        _worker, _planted_native(("-O2", "-fno-pie", "-fno-stack-protector", "-c"), f"{_NATIVE}/worker.c"), "worker.o"
    ),
    "flush.so": Kind(_flush, _planted_native(_SHARED, f"{_NATIVE}/flush.c"), "flush.so"),
    "CUPTI injection": Kind(_injection, _planted_native(_SHARED, "/dev/null"), ".so"),
    "AMD device libraries": Kind(_device_libraries, lambda _: FIRED.encode(), ".bc"),
    "generated model": Kind(_model, _planted_model, ".onnx"),
    "compiled templates": Kind(_template, _planted_template, ""),
}

# ---- the ways to plant it --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Planted:
    """A cache with planted files, all its victim's own until something is done to it, and who the others are."""

    top: Path
    files: Sequence[Path]
    other: int

    @property
    def folders(self) -> list[Path]:
        """Those of the files within the cache; the cache itself for files without."""
        return sorted({file.parent for file in self.files})

    def given_away(self, *paths: Path) -> None:
        for path in paths:
            os.chown(path, self.other, self.other, follow_symlinks=False)

    def moved(self, path: Path) -> Path:
        """Move what is there to a place of another user's and leave a link to it."""
        place = self.top.parent.with_name("elsewhere")
        place.mkdir(exist_ok=True)
        self.given_away(place)
        target = path.rename(place / f"{path.name}-{len(list(place.iterdir()))}")
        path.symlink_to(target)
        return target


def _each_with_digest(planted: Planted) -> Iterator[Path]:
    for file in planted.files:
        yield from (file, file.with_name(file.name + _DIGEST))


def _open_to(mode: int, of: Callable[[Planted], Sequence[Path]]) -> Callable[[Planted], None]:
    """All within is another user's, as it may be where that mode lets others write."""

    def plant(planted: Planted) -> None:
        for path in of(planted):
            path.chmod(mode)

    return plant


def _linked(of: Callable[[Planted], Sequence[Path]]) -> Callable[[Planted], None]:
    def plant(planted: Planted) -> None:
        for path in of(planted):
            target = planted.moved(path)
            planted.given_away(target, *(target.rglob("*") if target.is_dir() else ()))

    return plant


def _of_another(of: Callable[[Planted], Sequence[Path]]) -> Callable[[Planted], None]:
    return lambda planted: planted.given_away(*of(planted))


def _of_root(of: Callable[[Planted], Sequence[Path]]) -> Callable[[Planted], None]:
    def plant(planted: Planted) -> None:
        for path in of(planted):
            os.chown(path, 0, 0)

    return plant


def _named_twice(planted: Planted) -> None:
    for file in planted.files:
        os.link(file, planted.top.parent / f"name-{file.name}")


def _changed(planted: Planted) -> None:
    for file in planted.files:
        digest = file.with_name(file.name + _DIGEST)
        digest.write_text(hashlib.sha256(b"another").hexdigest())


def _cut(planted: Planted) -> None:
    for file in planted.files:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _pipe(planted: Planted) -> None:
    for file in planted.files:
        file.unlink()
        os.mkfifo(file)


def _folder(planted: Planted) -> None:
    for file in planted.files:
        file.unlink()
        file.mkdir()
        (file / "something").touch()


def _top(planted: Planted) -> list[Path]:
    return [planted.top]


def _above(planted: Planted) -> list[Path]:
    return [planted.top.parent]


def _in_it(planted: Planted) -> list[Path]:
    return planted.folders


def _files(planted: Planted) -> list[Path]:
    return list(_each_with_digest(planted))


def _everything(planted: Planted) -> list[Path]:
    return [planted.top, *planted.top.rglob("*")]


def _as_in_tmp(planted: Planted) -> None:
    planted.given_away(*_everything(planted))
    for path in (planted.top, *planted.folders):
        path.chmod(0o1777)


WAYS: Final[Mapping[str, Callable[[Planted], None]]] = {
    "everyone may write to the cache": _open_to(0o777, _top),
    "everyone may write to the cache, sticky": _open_to(0o1777, _top),
    "its group may write to the cache": _open_to(0o770, _top),
    "everyone may write above the cache": _open_to(0o777, _above),
    "its group may write above the cache": _open_to(0o770, _above),
    "everyone may write to the last folder": _open_to(0o777, _in_it),
    "the last folder is sticky": _open_to(0o1777, _in_it),
    "everyone may write to the file": _open_to(0o666, _files),
    "its group may write to the file": _open_to(0o660, _files),
    "the cache is another's": _of_another(_top),
    "the folder above is another's": _of_another(_above),
    "the last folder is another's": _of_another(_in_it),
    "the file is another's": _of_another(_files),
    "everything is another's, and open to all": _as_in_tmp,
    "a link leads to another's cache": _linked(_top),
    "a link leads to another's folder above": _linked(_above),
    "a link leads to another's last folder": _linked(_in_it),
    "a link leads to another's file": _linked(_files),
    "the file has another name": _named_twice,
    "the file is not what was made": _changed,
}
#: Nothing of these can be executed: the work must go on all the same.
HARMLESS: Final[Mapping[str, Callable[[Planted], None]]] = {
    "the file is cut": _cut,
    "the file is a pipe": _pipe,
    "the file is a folder": _folder,
}
#: For an ordinary user, whose others are another and root.
FOR_A_USER: Final[Mapping[str, Callable[[Planted], None]]] = {
    **{
        way: WAYS[way]
        for way in (
            "everyone may write to the cache, sticky",
            "the cache is another's",
            "the last folder is another's",
            "the file is another's",
            "everything is another's, and open to all",
            "a link leads to another's cache",
        )
    },
    "the cache is root's": _of_root(_top),
    "the file is root's": _of_root(_files),
}
CHANGING: Final = "a link changes all the time"

# ---- running ---------------------------------------------------------------------------------------------------------


def _script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def work(kind: str, *, is_checked: bool) -> None:
    """Do what needs that kind of code, in this process; without the checks as a control."""
    if not is_checked:
        _take_out_the_checks()
    with tempfile.TemporaryDirectory() as folder:
        KINDS[kind].work(Path(folder))
    print(WORKS)


def _take_out_the_checks() -> None:
    def folder(top: Path, name: str, *, is_shared: bool = False) -> Path:
        (path := top / name).mkdir(parents=True, exist_ok=True)
        return path

    def whole(path: Path) -> bytes | None:
        return path.read_bytes() if path.is_file() else None

    cache_folder._checked_folder = folder
    cache_folder._whole = whole


def run_victim(kind: str, cache: Path, user: int, *, is_checked: bool = True) -> str:
    """Output of a fresh process of that user that does the work with that cache."""
    options = [] if is_checked else ["--unchecked"]
    done = subprocess.run(
        [*_becoming(user), sys.executable, "-m", "benchmarks.reliability.planted_caches", "--work", kind, *options],
        cwd=ROOT,
        env={**os.environ, "AACO_CACHE": str(cache), "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    return done.stdout


def _becoming(user: int) -> list[str]:
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []


def require_interpreter() -> None:
    """Exit where an ordinary user cannot run this interpreter, as where it lies in root's home."""
    again = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', '']).returncode)"
    ran = subprocess.run([*_becoming(ORDINARY_USER), sys.executable, "-c", again], capture_output=True, check=False)
    if ran.returncode != 0:
        raise SystemExit(f"{Path(sys.executable).resolve()}: an ordinary user cannot run it; chmod o+x its folders")


def made_once(kind: str, place: Path) -> Path:
    """A cache with good code of that kind, as root made it."""
    cache = place / kind.replace(" ", "_")
    said = run_victim(kind, cache, ROOT_USER)
    if WORKS not in said or FIRED in said:
        raise SystemExit(f"{kind}: the work fails without anything planted: {said}")
    return cache


def planted_in(case: Path, good: Path, kind: str, owner: int) -> Planted:
    """A copy of a good cache with planted code in place of each file of that kind, `owner`'s alone."""
    top = case / "above" / "cache"
    case.mkdir(mode=0o755)
    top.parent.mkdir(mode=0o700)
    shutil.copytree(good, top, symlinks=True)
    found = [file for file in sorted(top.rglob("*")) if file.is_file() and file.suffix != _DIGEST]
    files = [file for file in found if file.name.endswith(KINDS[kind].suffix)]
    for file in files:
        content = KINDS[kind].planted(file.read_bytes())
        file.write_bytes(content)
        file.with_name(file.name + _DIGEST).write_text(hashlib.sha256(content).hexdigest())
    for path in (case, top.parent, top, *top.rglob("*")):
        os.chown(path, owner, owner)
    return Planted(top, files, PLANTS_FOR[owner])


@contextmanager
def changing(planted: Planted, good: Path) -> Iterator[None]:
    """While the block runs, the cache's name leads to a good cache and to another user's, in turn."""
    target = planted.moved(planted.top)
    planted.given_away(target, *target.rglob("*"))
    planted.top.parent.chmod(0o755)
    planted.given_away(planted.top.parent)
    child = os.fork()
    if child == 0:
        other = planted.top.with_name("other")
        while True:
            for leads_to in (good, target):
                other.symlink_to(leads_to)
                other.rename(planted.top)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def is_applicable(way: str, planted: Planted) -> bool:
    """A kind without a folder of its own has the cache itself in its place."""
    return "last folder" not in way or planted.folders != [planted.top]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--work", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--unchecked", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.work, is_checked=not arguments.unchecked)
        return 0
    if os.geteuid() != 0:
        parser.error("only root can plant files of other users")
    require_interpreter()
    wrong = tried = fired = 0
    with tempfile.TemporaryDirectory(prefix="planted-", dir="/tmp") as name:
        place = Path(name)
        place.chmod(0o755)
        make_inputs(place / "inputs")
        os.environ[INPUTS] = str(place / "inputs")
        for kind in arguments.kinds:
            good = made_once(kind, place)
            cases = [(ROOT_USER, way, plant) for way, plant in (*WAYS.items(), *HARMLESS.items())]
            cases += [(ORDINARY_USER, way, plant) for way, plant in FOR_A_USER.items()]
            for number, (user, way, plant) in enumerate(cases):
                case = place / f"{kind.replace(' ', '_')}-{number}"
                planted = planted_in(case, good, kind, user)
                if is_applicable(way, planted):
                    plant(planted)
                    control = way in HARMLESS or FIRED in run_victim(kind, planted.top, ROOT_USER, is_checked=False)
                    said = run_victim(kind, planted.top, user)
                    tried, fired = tried + 1, fired + (FIRED in said)
                    if FIRED in said or WORKS not in said or not control:
                        wrong += 1
                        print(f"{kind}, uid {user}, {way}: control {control}: {said}", flush=True)
                shutil.rmtree(case)
            with changing(planted_in(place / "changing", good, kind, ROOT_USER), good):
                for _ in range(3):
                    said = run_victim(kind, place / "changing" / "above" / "cache", ROOT_USER)
                    tried, fired = tried + 1, fired + (FIRED in said)
                    if FIRED in said or WORKS not in said:
                        wrong += 1
                        print(f"{kind}, {CHANGING}: {said}", flush=True)
            shutil.rmtree(place / "changing")
            print(f"{kind}: done; so far {fired} of {tried} executed, {wrong} wrong", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
