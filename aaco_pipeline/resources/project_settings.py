"""Read a project's own settings: the folders it trusts, the command that gets notifications, and what retention keeps.

What is measured, and with what, is `aaco_pipeline.resources.configuration`; what is notified, and what goes, is decided
in `aaco_pipeline.automation.watching` and `aaco_pipeline.lake.retention`.
"""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from aaco_pipeline.errors import CaptureError, UsageError
from aaco_pipeline.formats.parsing.regular_files import open_regular
from aaco_pipeline.lake.retention import parse_age
from aaco_pipeline.resources.configuration import Form, expecting, load_form

TRUSTED_FOLDERS_FILE: Final = "trusted_folders.yaml"
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
            # Links may lead to the folder that the user named; below it none is followed.
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
    path = configs / TRUSTED_FOLDERS_FILE
    form = load_form(path, _TrustedFile)
    samples = Path(str(files(_SAMPLES)))
    return TrustedFolders(path, (*((form and form.folders) or ()), samples))


def _is_there(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long for any file
        return False


NOTIFICATIONS_FILE: Final = "notifications.yaml"
_LONGEST_REASON: Final = 200


class Hook(Form):
    """A command as a list of arguments: no shell reads it, so nothing in it is expanded."""

    command: Annotated[
        list[Annotated[str, Field(min_length=1)]],
        Field(min_length=1),
        expecting("a list of arguments, the program first, such as [/usr/local/bin/tell, --channel, perf]"),
    ] = Field(default=None, validate_default=True)
    timeout_seconds: Annotated[int, Field(ge=1, le=600), expecting("a whole number from 1 to 600")] = 30


class Notifications(Form):
    """The file `configs/notifications.yaml`; events without a hook are only logged."""

    regression_found: Hook | None = None
    run_failed: Hook | None = None


def load_notifications(configs: Path) -> Notifications:
    """The settings of the folder; nothing is configured where there is no file. UsageError in one line."""
    return load_form(configs / NOTIFICATIONS_FILE, Notifications) or Notifications()


def run_hook(hook: Hook, document: Mapping[str, Any]) -> str | None:
    """Run the command with the document as JSON on its standard input; None, or why it failed, in a line.

    What it prints on standard output is dropped. At the time limit the command goes with all that it started.
    """
    try:
        process = subprocess.Popen(
            hook.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return f"{hook.command[0]}: {error.strerror}"
    try:
        _, errors = process.communicate(json.dumps(document).encode(), timeout=hook.timeout_seconds)
    except subprocess.TimeoutExpired:
        return f"{hook.command[0]}: did not end within {hook.timeout_seconds} s"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode == 0:
        return None
    said = errors.decode(errors="replace").strip().splitlines()[-1:]
    return ": ".join([f"{hook.command[0]}: ended with {process.returncode}", *said])[:_LONGEST_REASON]


RETENTION_FILE: Final = "retention.yaml"


def _age(text: str) -> str:
    try:
        parse_age(text)
    except UsageError as error:
        raise ValueError(str(error)) from error
    return text


_Age = Annotated[str, AfterValidator(_age), expecting("an age such as 90d, 36h or 12w")]


class RetentionSettings(Form):
    """The limits of the schedule (null: no limit), and the `grace` of files that segments have replaced."""

    keep: _Age | None = "90d"
    keep_last: Annotated[int, Field(ge=1), expecting("a whole number from 1")] | None = 10
    keep_baselines: Annotated[bool, expecting("true or false")] = True
    grace: _Age = "1d"


def retention_settings(folder: Path) -> RetentionSettings:
    """The settings in the folder's file, or the defaults. UsageError for a file that is not in its form."""
    return load_form(folder / RETENTION_FILE, RetentionSettings) or RetentionSettings()
