"""The cache folder, and the only access to code that is built once and executed later.

Anyone who can change such code, or the path to it, runs code as the user who executes it. Therefore nothing is executed
that another user could have put there: native code, models and compiled templates all come through `own_code` and
`kept_code`.
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

#: Candidates for a private folder if others can change the default folder for temporary files.
_TEMPORARY: Final = ("/tmp", "/var/tmp")
_OPEN_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Opening a pipe does not block until it has a writer.
_OPEN_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DIGEST: Final = ".sha256"


def default_cache_dir() -> Path:
    """The folder of the cache: `$AACO_CACHE`, else `$XDG_CACHE_HOME/aaco`, else `~/.cache/aaco`."""
    if chosen := os.environ.get("AACO_CACHE"):
        return Path(chosen)
    shared = os.environ.get("XDG_CACHE_HOME", "")
    if Path(shared).is_absolute():  # the XDG specification says to ignore relative paths
        return Path(shared) / "aaco"
    try:
        return Path.home() / ".cache" / "aaco"
    except RuntimeError as error:
        raise UsageError(
            "no home folder to keep files in that can be made again; set AACO_CACHE to a folder"
        ) from error


def own_folder(name: str) -> Path | None:
    """Return a cache folder that only this user and root can change or replace, or None; create it if missing.

    Its path contains no links and stays valid; see `_checked_folder`.
    """
    try:
        folder = _own_folder(name)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


def own_code(name: str, build: Callable[[Path], object]) -> Path:
    """Return the path of a code file that nobody else can have written or can change; `build` creates it if missing.

    If the cache does not belong to this user or is not writable, the file is created in a private folder that is
    removed when this process exits, and one line on standard error reports this.

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
    """Return the content of a file that `own_code` created in the cache, or None if none may be executed."""
    folder, _, file = name.rpartition("/")
    own = own_folder(folder)
    return None if own is None else _whole(own / file)


@cache
def private_folder() -> Path:
    """Return this process's folder for files the cache cannot hold; removed at exit, first use is reported.

    Raises UsageError if another user could replace every folder for temporary files.
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
    """Create a temporary folder that no other user may enter, rename or replace.

    Raises UsageError if another user could replace the content of every folder for temporary files.
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
    except UsageError as error:  # no home directory
        raise FileNotFoundError(errno.ENOENT, str(error)) from error


def _checked_folder(top: Path, name: str, *, is_shared: bool = False) -> Path:
    """Resolve `top / name` without links, creating missing folders; PermissionError if another user could replace any.

    `top` and its content must belong to this user, unless it `is_shared`; folders above belong to root or this user.
    """
    # Resolve links first, regardless of owner, then check and use only their targets. Only root and this user may
    # change the folders of the checked names, so the names stay safe afterwards.
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
    """Open a folder inside an open folder, creating it if missing."""
    try:
        return os.open(name, _OPEN_FOLDER, dir_fd=folder)
    except FileNotFoundError:
        with suppress(FileExistsError):  # another process created it first; its owner is checked
            os.mkdir(name, 0o700, dir_fd=folder)
    return os.open(name, _OPEN_FOLDER, dir_fd=folder)


def _is_own(status: os.stat_result, *, is_above: bool = False) -> bool:
    """Return whether only this user can change a file; access control lists show up in the group bits.

    A folder above the cache may belong to root, or be sticky like /tmp, so that nobody can replace another user's
    files.
    """
    if is_above and status.st_uid == 0:
        return not status.st_mode & 0o022 or bool(status.st_mode & stat.S_ISVTX)
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _made(folder: Path, name: str, build: Callable[[Path], object]) -> Path:
    """Return the file of that name in a private folder, built and renamed into place if it is missing."""
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
    """Return the content of a file if it matches its digest; a crash may leave a truncated file."""
    content, digest = _own_content(path), _own_content(path.with_name(path.name + _DIGEST))
    return content if content is not None and digest == _sha256(content).encode() else None


def _own_content(path: Path) -> bytes | None:
    """Return the content of a regular file in a private folder that belongs to this user and has no other hard link."""
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
    if os.getpid() == process:  # not in a forked process
        shutil.rmtree(folder, ignore_errors=True)
