"""The errors a person can cause or meet, one small class per exit code of the `aaco` command.

Nothing else belongs here: an error is raised where the fact is known, worded once there (what, where,
what to do), and the command only prints it and exits with `exit_code`.
"""

from typing import ClassVar


class AacoError(Exception):
    """Base of every expected error, told in one line. `exit_code` is what the `aaco` command exits with."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str) -> None:
        # What a library says, and what a file is called, may hold line ends.
        super().__init__(" ".join(message.splitlines()))


class UsageError(AacoError):
    """Bad usage or configuration: an option, a shape, a registry entry, an unknown session or model."""

    exit_code: ClassVar[int] = 2


class ModelError(AacoError):
    """The model cannot be loaded or run."""

    exit_code: ClassVar[int] = 3


class UnavailableError(AacoError):
    """Hardware, an execution provider or a tool that was asked for is not available."""

    exit_code: ClassVar[int] = 4


class CaptureError(AacoError):
    """A capture (a foreign file or folder) cannot be read."""

    exit_code: ClassVar[int] = 6


class SourceError(CaptureError):
    """The system could not read a capture's files (permissions, a disk, a copy still under way): no verdict on them."""


class IncompleteError(AacoError):
    """A recording contradicts itself, or its tool says that it is not whole: some answers it cannot carry."""

    exit_code: ClassVar[int] = 9


class LakeError(AacoError):
    """The lake cannot be read, written or locked."""

    exit_code: ClassVar[int] = 8


class PassingLakeError(LakeError):
    """The lake could not be read, written or locked just now: the same may succeed in a while, and nothing is torn."""


class ContractError(LakeError):
    """A table does not fulfil its contract, so it is not published."""


class Terminated(KeyboardInterrupt):
    """SIGTERM came, where an interrupt is SIGINT: whoever tidies up after the one does so after the other."""
