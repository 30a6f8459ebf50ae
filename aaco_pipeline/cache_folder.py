"""The folder for what can be made again at any time, and the one door to code that is made once and executed later.

Who can change such code, or the way to it, runs as whoever executes it. So nothing is executed that another user could
have put there: native code, models and compiled templates all come through `own_code` and `kept_code`.
"""

import atexit
import errno
import hashlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import UsageError

#: Where a private folder may lie when the one for temporary files can be changed by others.
_TEMPORARY: Final = ("/tmp", "/var/tmp")
_OPEN_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Without waiting for whoever writes into a pipe.
_OPEN_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DIGEST: Final = ".sha256"


def default_cache_dir() -> Path:
    """Where is kept what can be made again: `$AACO_CACHE`, else `$XDG_CACHE_HOME/aaco`, else `~/.cache/aaco`."""
    if chosen := os.environ.get("AACO_CACHE"):
        return Path(chosen)
    shared = os.environ.get("XDG_CACHE_HOME", "")
    if Path(shared).is_absolute():  # the convention says to ignore a relative one
        return Path(shared) / "aaco"
    try:
        return Path.home() / ".cache" / "aaco"
    except RuntimeError as error:
        raise UsageError(
            "no home folder to keep files in that can be made again; set AACO_CACHE to a folder"
        ) from error


def own_folder(name: str) -> Path | None:
    """A folder in the cache that this user and root alone can change or replace; None where there is none.

    It is made where it is missing. Its path is without links and stays true: see `_checked_folder`.
    """
    try:
        folder = _own_folder(name)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


def own_code(name: str, build: Callable[[Path], object]) -> Path:
    """The path of a file of code that nobody else can have written or can change, made by `build` where it is missing.

    Where the cache is not this user's own, or cannot be written, the file is made in a private folder that goes with
    this process, and one line on standard error says so.

    Args:
        name: path within the cache; names all that the file is made from, by a digest.
        build: writes the file at the path that it is given.

    Raises:
        UsageError: there is no folder to keep the file in.

    """
    folder, _, file = name.rpartition("/")
    try:
        return _made(_own_folder(folder), file, build)
    except OSError:
        place = private_folder()
    try:
        return _made(_checked_folder(place, folder), file, build)
    except OSError as error:
        raise UsageError(
            f"{place / name}: cannot be written ({error.strerror or error}); set AACO_CACHE to a folder that can"
        ) from error


def kept_code(name: str) -> bytes | None:
    """The content of a file that `own_code` made in the cache, None where none is there that could be executed."""
    folder, _, file = name.rpartition("/")
    own = own_folder(folder)
    return None if own is None else _whole(own / file)


@cache
def private_folder() -> Path:
    """The folder of this process for what the cache cannot keep, removed when it ends; that it is used is said once.

    UsageError where another user could replace every folder for temporary files.
    """
    try:
        folder = temporary_folder("aaco-code-")
    except UsageError as error:
        raise UsageError(
            f"{_shown()} cannot be written, or another user could; set AACO_CACHE to a folder that only you can write "
            f"to; {error}"
        ) from error
    atexit.register(_remove_own, folder, os.getpid())
    sys.stderr.write(
        f"aaco: {_shown()} cannot be written, or another user could; what it would keep is made anew each time: "
        "set AACO_CACHE to a folder that only you can write to\n"
    )
    return folder


def temporary_folder(prefix: str) -> Path:
    """Make a folder that no other user may enter, rename or replace, where temporary files lie.

    UsageError where another user could replace what is in every folder for temporary files.
    """
    for place in dict.fromkeys((tempfile.gettempdir(), *_TEMPORARY)):
        with suppress(OSError):
            return Path(tempfile.mkdtemp(prefix=prefix, dir=_checked_folder(Path(place), "", is_shared=True)))
    raise UsageError(
        f"{tempfile.gettempdir()} cannot be written, or another user could replace what is in it; set TMPDIR to a "
        "folder that only you can write to"
    )


# ---- inside ----------------------------------------------------------------------------------------------------------


def _shown() -> str:
    try:
        return str(default_cache_dir())
    except UsageError:
        return "the cache in the home folder"


def _own_folder(name: str) -> Path:
    try:
        return _checked_folder(default_cache_dir(), name)
    except UsageError as error:  # no home
        raise FileNotFoundError(errno.ENOENT, str(error)) from error


def _checked_folder(top: Path, name: str, *, is_shared: bool = False) -> Path:
    """`top / name` without links, each missing folder made; PermissionError where another user could replace any of it.

    `top` and what is in it are this user's alone, unless it `is_shared`; what is above it is root's or this user's.
    """
    # Links above are resolved first, whoever made them: what is checked, and used from then on, is where they lead.
    # Each name checked lies in a folder that only root and this user may change, so none is another's afterwards.
    whole = Path(os.path.realpath(top))
    above = len(whole.parts) - (0 if is_shared else 1)
    path = Path("/")
    folder = os.open(path, _OPEN_FOLDER)
    try:
        for depth, part in enumerate((*whole.parts, *Path(name).parts)):
            if depth:
                path /= part
                below = _entered(folder, part)
                os.close(folder)
                folder = below
            if not _is_own(os.fstat(folder), is_above=depth < above):
                raise PermissionError(errno.EPERM, "another user owns it or may write to it", str(path))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(folder)
    return path


def _entered(folder: int, name: str) -> int:
    """The descriptor of a folder in one that is open, made where it is missing."""
    try:
        return os.open(name, _OPEN_FOLDER, dir_fd=folder)
    except FileNotFoundError:
        with suppress(FileExistsError):  # whoever was faster, its owner is looked at
            os.mkdir(name, 0o700, dir_fd=folder)
    return os.open(name, _OPEN_FOLDER, dir_fd=folder)


def _is_own(status: os.stat_result, *, is_above: bool = False) -> bool:
    """Return whether this user alone can change what is there: what an access list grants to others shows in the group's bits.

    Above a cache it may be root's, and one like /tmp: there everyone may add names and nobody replace another's.
    """
    if is_above and status.st_uid == 0:
        return not status.st_mode & 0o022 or bool(status.st_mode & stat.S_ISVTX)
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _made(folder: Path, name: str, build: Callable[[Path], object]) -> Path:
    """The file of that name in a folder of one's own: the one that is there, else a new one, put in place whole."""
    path = folder / name
    if _whole(path) is None:
        with tempfile.TemporaryDirectory(prefix=".building-", dir=folder) as scratch:
            new, digest = Path(scratch, name), Path(scratch, name + _DIGEST)
            build(new)
            new.chmod(0o600)
            digest.write_text(_sha256(new.read_bytes()))
            digest.chmod(0o600)
            new.replace(path)
            digest.replace(path.with_name(digest.name))
    return path


def _whole(path: Path) -> bytes | None:
    """A file's content where it is as it was made: a crash leaves some of it, or another's digest beside it."""
    content, digest = _own_content(path), _own_content(path.with_name(path.name + _DIGEST))
    return content if content is not None and digest == _sha256(content).encode() else None


def _own_content(path: Path) -> bytes | None:
    """The content of a regular file in a folder of one's own that is this user's, and has no second name elsewhere."""
    try:
        file = os.open(path, _OPEN_FILE)
    except OSError:
        return None
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or not _is_own(status):
        os.close(file)
        return None
    with os.fdopen(file, "rb") as stream:
        return stream.read()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _remove_own(folder: Path, process: int) -> None:
    if os.getpid() == process:  # and not in a process forked from it
        shutil.rmtree(folder, ignore_errors=True)
