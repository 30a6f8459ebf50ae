"""Write the recorder as a single file for hosts without this project, using only the standard library.

The file holds only what the recorder imports, and the AMD counter sets, which are YAML in this package and JSON in the
archive. Equal sets give the same bytes everywhere: nothing is compressed, because compression libraries differ in their
output.
"""

import ast
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import aaco_pipeline
from aaco_pipeline.errors import LakeError, UsageError
from aaco_pipeline.resources.rocprofv3 import counter_groups
from aaco_pipeline.resources.rocprofv3.counter_groups import CounterSets

NAME: Final = "aaco-record.pyz"
_ROOT: Final = Path(aaco_pipeline.__file__).parent
_ROOM: Final = _ROOT / "recording"
#: For the recorded program, which can import it if the archive is in PYTHONPATH.
_FOR_PROGRAMS: Final = "mark.py"
_FIRST_LINE: Final = b"#!/usr/bin/env python3\n"
_MAIN: Final = """import sys

if sys.version_info < (3, 11):
    sys.exit("aaco: the recorder needs Python 3.11 or newer; this is " + sys.version.split()[0])
from aaco_pipeline.recording.__main__ import main

sys.exit(main(sys.argv[1:]))
"""
_DAY: Final = (1980, 1, 1, 0, 0, 0)


def write_archive(target: Path, sets: CounterSets) -> int:
    """Write the archive, replacing an existing one, and return its size in bytes. LakeError if it cannot be written.

    `sets` are the AMD counter sets to include.
    """
    if target.is_dir():
        raise UsageError(f"{target}: a folder; name the file to write, such as {NAME}")
    temporary = target.with_name(f".{target.name}.part")
    try:
        with temporary.open("wb") as stream:
            stream.write(_FIRST_LINE)
            with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as packed:
                for name, data in contents(sets):
                    packed.writestr(zipfile.ZipInfo(name, _DAY), data)
        temporary.chmod(0o755)
        temporary.replace(target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise LakeError(f"{target}: {error.strerror}; the archive is not written") from error
    return target.stat().st_size


def contents(sets: CounterSets) -> Iterator[tuple[str, bytes]]:
    """Return every file of the archive with its bytes, sorted by name except for the first two."""
    yield "__main__.py", _MAIN.encode()
    packed = Path(counter_groups.__file__).with_name(counter_groups.PACKED).relative_to(_ROOT.parent)
    yield packed.as_posix(), counter_groups.packed(sets)
    data = {path for path in _ROOM.rglob("*") if path.is_file() and path.suffix in (".cpp", ".h")}
    for path in sorted({*modules(), *data}):
        yield path.relative_to(_ROOT.parent).as_posix(), path.read_bytes()


def modules() -> set[Path]:
    """Return all files of modules of this package that the recorder imports, directly or not, with their packages."""
    waiting = [path for path in _ROOM.rglob("*.py") if path != Path(__file__)]
    waiting += [path for path in (_ROOT / _FOR_PROGRAMS,) if path.is_file()]
    found: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        waiting += [parent / "__init__.py" for parent in path.parents if parent.is_relative_to(_ROOT)]
        waiting += [file for name in imported(path) if (file := _file(name)) is not None]
    return found


def imported(path: Path) -> Iterator[str]:
    """Return every name that a module imports; for `from a import b` both `a` and `a.b`, as `b` may be a module."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _file(module: str) -> Path | None:
    """Return the file of a module of this package; None for any other name."""
    place = _ROOT.parent.joinpath(*module.split("."))
    if not place.is_relative_to(_ROOT):
        return None
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)
