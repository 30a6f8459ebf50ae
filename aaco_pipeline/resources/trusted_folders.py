"""The files that a run of Dagster may name to be executed or loaded: those in the folders of `trusted_folders.yaml`.

A file is opened once, part by part and through no link, and only what was opened is read: changing a name afterwards
changes nothing. The `aaco` command is a person's own shell and reads any path without this.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, ValidationInfo

from aaco_pipeline.errors import CaptureError, UsageError
from aaco_pipeline.formats.parsing.regular_files import open_regular
from aaco_pipeline.resources.configuration import Form, expecting, load_form

FILE: Final = "trusted_folders.yaml"
_SAMPLES: Final = "aaco_pipeline.optimization.samples"


def _folder(value: object, info: ValidationInfo) -> Path:
    """A relative path starts at the folder of the file that names it."""
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ValueError
    file: Path = (info.context or {})["folder"]
    return Path(os.path.normpath(file / Path(value).expanduser()))


_Folder = Annotated[Path, BeforeValidator(_folder), expecting("the path of a folder")]


class _TrustedFile(Form):
    folders: Annotated[list[_Folder], expecting("a list of folders")] | None = None


@dataclass(frozen=True)
class TrustedFolders:
    """The folders, those of the sample kernels last, and the file that names the others."""

    file: Path
    folders: tuple[Path, ...]

    def locate(self, text: str) -> Path:
        """The absolute path that a run's configuration means; a relative one starts at the first folder that has it.

        UsageError for one outside all folders, or with `..` or a null character in it.
        """
        path = Path(text)
        if "\0" not in text and ".." not in path.parts and path.parts:
            if path.is_absolute() and any(path != one and path.is_relative_to(one) for one in self.folders):
                return path
            if not path.is_absolute():
                return next((one / path for one in self.folders if _is_there(one / path)), self.folders[0] / path)
        raise self._refusal(text, "lies in no folder that a run of Dagster may name files of")

    def read(self, path: Path) -> bytes:
        """The bytes of a located file. UsageError when it may not be read, FileNotFoundError when it is not there."""
        with self._opened(path) as stream:
            return bytes(stream.read())

    def copy(self, path: Path, target: Path) -> None:
        """Write the bytes of a located file to a new one, whose folders are made. Raises as `read` does."""
        with self._opened(path) as stream:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as copy:
                shutil.copyfileobj(stream, copy)

    @contextmanager
    def _opened(self, path: Path) -> Iterator[Any]:
        located = self.locate(str(path))
        folder = next(one for one in self.folders if located.is_relative_to(one))
        try:
            # Links may lead to the folder that a person named; below it none is followed.
            stream = open_regular(folder.resolve(strict=True) / located.relative_to(folder))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._refusal(str(path), f"cannot be read ({error.strerror})") from error
        except (CaptureError, RuntimeError) as error:
            raise self._refusal(str(path), f"cannot be taken ({str(error).partition(': ')[2] or error})") from error
        with stream:
            yield stream

    def _refusal(self, path: str, what: str) -> UsageError:
        shown = path if len(path) <= 200 else f"{path[:200]}…"
        return UsageError(
            f"{shown!r} {what}; {self.file} names these folders: put the file itself into one of them, or add a line "
            "`- FOLDER` under `folders:` there"
        )


def trusted_folders(configs: Path) -> TrustedFolders:
    """The folders that the file in the folder of settings names, and the samples. UsageError for a wrong file."""
    path = configs / FILE
    form = load_form(path, _TrustedFile)
    samples = Path(str(files(_SAMPLES)))
    return TrustedFolders(path, (*((form and form.folders) or ()), samples))


def _is_there(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long for any file
        return False
