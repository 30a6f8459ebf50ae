"""Who is told of a finding: `configs/notifications.yaml`, and running the command that it names.

What is told, and how often, is decided in `aaco_pipeline.automation.watching`.
"""

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from aaco_pipeline.resources.configuration import Form, expecting, load_form

FILE: Final = "notifications.yaml"
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
    """The file `configs/notifications.yaml`; what is null is only logged."""

    regression_found: Hook | None = None
    run_failed: Hook | None = None


def load_notifications(configs: Path) -> Notifications:
    """The settings of the folder; nothing is configured where there is no file. UsageError in one line."""
    return load_form(configs / FILE, Notifications) or Notifications()


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
