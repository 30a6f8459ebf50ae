"""Read a project's own settings: trusted folders, the notification command, and retention.

`aaco_pipeline.resources.configuration` reads the settings for measurements; `aaco_pipeline.automation.watching` decides
on notifications and `aaco_pipeline.lake.retention` on removal.
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
    """Resolve a relative path against the folder of the file that contains it."""
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ValueError
    file: Path = (info.context or {})["folder"]
    return Path(os.path.normpath(file / Path(value).expanduser()))


_Folder = Annotated[Path, BeforeValidator(_folder), expecting("the path of a folder")]


class _TrustedFile(Form):
    folders: Annotated[list[_Folder], expecting("a list of folders")] | None = None


@dataclass(frozen=True)
class TrustedFolders:
    """The folders, those of the sample kernels last, and the file that lists the others."""

    file: Path
    folders: tuple[Path, ...]

    def locate(self, text: str) -> Path:
        """Resolve a path in a run's configuration; a relative path starts at the first folder that contains it.

        Raises UsageError for a path outside all folders, or with `..` or a null character in it.
        """
        path = Path(text)
        if "\0" not in text and ".." not in path.parts and path.parts:
            if path.is_absolute() and any(path != one and path.is_relative_to(one) for one in self.folders):
                return path
            if not path.is_absolute():
                return next((one / path for one in self.folders if _is_there(one / path)), self.folders[0] / path)
        raise self._refusal(text, "lies in no folder that a run of Dagster may name files of")

    def read(self, path: Path) -> bytes:
        """Return a located file's bytes. UsageError if it may not be read, FileNotFoundError if it does not exist."""
        with self._opened(path) as stream:
            return bytes(stream.read())

    def copy(self, path: Path, target: Path) -> None:
        """Write the bytes of a located file to a new file, creating its folders. Raises the same errors as `read`."""
        with self._opened(path) as stream:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as copy:
                shutil.copyfileobj(stream, copy)

    @contextmanager
    def _opened(self, path: Path) -> Iterator[Any]:
        located = self.locate(str(path))
        folder = next(one for one in self.folders if located.is_relative_to(one))
        try:
            # Links may lead to the configured folder; below it, no link is followed.
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
    """Return the folders listed in the settings file, and the samples. UsageError for an invalid file."""
    path = configs / TRUSTED_FOLDERS_FILE
    form = load_form(path, _TrustedFile)
    samples = Path(str(files(_SAMPLES)))
    return TrustedFolders(path, (*((form and form.folders) or ()), samples))


def _is_there(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # the name is too long for a file
        return False


NOTIFICATIONS_FILE: Final = "notifications.yaml"
_LONGEST_REASON: Final = 200


class Hook(Form):
    """A command as a list of arguments: no shell reads it, so nothing is expanded."""

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
    """Read the settings in the folder; without a file nothing is configured. UsageError in one line."""
    return load_form(configs / NOTIFICATIONS_FILE, Notifications) or Notifications()


def run_hook(hook: Hook, document: Mapping[str, Any]) -> str | None:
    """Run the command with the document as JSON on standard input; return None, or one line on why it failed.

    Its standard output is discarded. At the time limit, the command and all processes that it started are killed.
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
    """The limits of the schedule (null: no limit), and the `grace` period for files that segments have replaced."""

    keep: _Age | None = "90d"
    keep_last: Annotated[int, Field(ge=1), expecting("a whole number from 1")] | None = 10
    keep_baselines: Annotated[bool, expecting("true or false")] = True
    grace: _Age = "1d"


def retention_settings(folder: Path) -> RetentionSettings:
    """The settings in the folder's file, or the defaults. UsageError for a file that is not in its form."""
    return load_form(folder / RETENTION_FILE, RetentionSettings) or RetentionSettings()
