"""Expected errors, one small class per exit code of the `aaco` command.

Errors are raised and worded where the facts are known (what failed, where, and how to fix it); the command only prints
the message and exits with `exit_code`.
"""

from typing import ClassVar


class AacoError(Exception):
    """Base of every expected error, a one-line message. `exit_code` is the exit code of the command."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str) -> None:
        # Library messages and file names may contain line breaks.
        super().__init__(" ".join(message.splitlines()))


class UsageError(AacoError):
    """Bad usage or configuration: an option, a shape, a registry entry, an unknown session or model."""

    exit_code: ClassVar[int] = 2


class ModelError(AacoError):
    """The model cannot be loaded or run."""

    exit_code: ClassVar[int] = 3


class UnavailableError(AacoError):
    """Requested hardware, an execution provider or a tool is not available."""

    exit_code: ClassVar[int] = 4


class CaptureError(AacoError):
    """A capture (a file or folder from another tool) cannot be read."""

    exit_code: ClassVar[int] = 6


class SourceError(CaptureError):
    """The system could not read a capture's files (permissions, disk errors, an unfinished copy); they may be valid."""


class IncompleteError(AacoError):
    """A recording is inconsistent or incomplete and cannot answer some questions."""

    exit_code: ClassVar[int] = 9


class LakeError(AacoError):
    """The lake cannot be read, written or locked."""

    exit_code: ClassVar[int] = 8


class PassingLakeError(LakeError):
    """The lake could not be read, written or locked right now; retrying may succeed, and nothing is damaged."""


class ContractError(LakeError):
    """A table violates its contract and is not published."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, handled like the KeyboardInterrupt of SIGINT so that the same cleanup runs."""
