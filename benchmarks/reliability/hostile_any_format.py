"""Hostile captures of every format alike: links, pipes, devices, holes, halves and packed bombs in place of a file."""

import gzip
import os
import shutil
import stat
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.reliability.hostile_parts import HARMLESS, Case, bomb_of, example_of, put_socket
from tests.formats.examples import EXAMPLES

_TIB: Final = 1 << 40

#: A decoded thread trace is a folder of many files, and this is one of them.
_READ_WITHOUT: Final = "the folder is read without that file, which evidence states"


def of_every_format() -> Iterator[Case]:
    for name in EXAMPLES:
        for what, change in _CHANGES.items():
            harmless = _READ_WITHOUT if name == "thread_trace" else HARMLESS.get(what)
            yield Case(f"{name}: {what}", partial(_changed, name=name, change=change), harmless)


def _changed(folder: Path, host: Path, *, name: str, change: Callable[[Path, Path], None]) -> Path:
    file = example_of(name, folder)
    change(file, host / name / file.relative_to(folder / "in"))
    return folder / "in"


def _link(file: Path, host: Path) -> None:
    file.unlink()
    file.symlink_to(host)


def _link_in_its_folder(file: Path, host: Path) -> None:
    """The folder of the file is a link to the host's."""
    shutil.rmtree(file.parent)
    file.parent.parent.mkdir(exist_ok=True)
    if file.parent.name == "in":
        file.parent.mkdir()
        (file.parent / "deeper").symlink_to(host.parent)
    else:
        file.parent.symlink_to(host.parent)


def _fifo(file: Path, host: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def _device(file: Path, host: Path) -> None:
    """/dev/zero under the file's name; for those who may not make one, a link to it."""
    file.unlink()
    try:
        os.mknod(file, 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    except PermissionError:
        file.symlink_to("/dev/zero")


def _holes(file: Path, host: Path) -> None:
    os.truncate(file, _TIB)


def _half(file: Path, host: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _empty(file: Path, host: Path) -> None:
    file.write_bytes(b"")


def _wrong_magic(file: Path, host: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(b"\x7fELF\x02\x01\x01\0" + content[8:])


def _packed(file: Path, host: Path) -> None:
    """Two gigabytes of what the format skips come out of the whole capture and two megabytes more."""
    filler = b" " if file.suffix == ".json" else b"\0" if file.suffix in (".db", ".rpd", ".sqlite", ".bin") else b"\n"
    file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()) + bomb_of(filler))
    file.unlink()


def _packed_in_place(file: Path, host: Path) -> None:
    """As `_packed`, under the name of the plain file."""
    _packed(file, host)
    file.with_name(f"{file.name}.gz").rename(file)


def _packed_twice(file: Path, host: Path) -> None:
    file.write_bytes(gzip.compress(gzip.compress(bomb_of(b"\0"))))


def _zipped(file: Path, host: Path) -> None:
    with zipfile.ZipFile(file.with_suffix(".zip"), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../escaped", file.read_bytes())
    file.unlink()


_CHANGES: Final[dict[str, Callable[[Path, Path], None]]] = {
    "a link to a file of the host": _link,
    "in a folder that is a link to the host's": _link_in_its_folder,
    "a named pipe": _fifo,
    "a socket": put_socket,
    "a device without end": _device,
    "a terabyte of holes": _holes,
    "cut in half": _half,
    "empty": _empty,
    "the first bytes of a program": _wrong_magic,
    "two gigabytes packed into two megabytes": _packed,
    "a bomb under a plain name": _packed_in_place,
    "packed twice": _packed_twice,
    "in an archive": _zipped,
}
