"""Targets that build and run a kernel's source: implementations of `aaco_pipeline.optimization.targets.Target`.

`gpu` and `emulated` share the code here: a process that takes commands as lines of JSON on standard input and answers
on a separate pipe.
"""

import json
import os
import secrets
import selectors
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


class AnsweringProcess:
    """A process that answers each command with a line; `shared` is the descriptor of the shared memory."""

    def __init__(self, process: "subprocess.Popen[str]", answers: int, shared: int, errors: Path) -> None:
        self.process, self.shared = process, shared
        self._answers, self._errors = answers, errors
        self._rest = b""

    def send(self, command: Mapping[str, Any]) -> str:
        """Send a command; return the nonce that its answer must contain."""
        nonce = secrets.token_hex(8)
        assert self.process.stdin is not None
        # If it has ended, its last answer or its exit status gives the reason.
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps({**command, "nonce": nonce}) + "\n")
            self.process.stdin.flush()
        return nonce

    def line(self, seconds: float, most_bytes: int) -> bytes | None:
        """Wait for a complete line; empty if the process ended without one, None after `seconds`.

        ValueError if it is longer than `most_bytes`.
        """
        deadline, pieces, total = time.monotonic() + seconds, [self._rest], 0
        with selectors.DefaultSelector() as selector:
            selector.register(self._answers, selectors.EVENT_READ)
            while b"\n" not in pieces[-1]:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return None
                piece = os.read(self._answers, 1 << 20)
                if not piece:
                    return b""
                total += len(piece)
                if total > most_bytes:
                    raise ValueError(f"an answer has more than {most_bytes} bytes")
                pieces.append(piece)
        line, _, self._rest = b"".join(pieces).partition(b"\n")
        return line

    def last_words(self, letters: int) -> str:
        """Return the end of its standard error, in one line."""
        return " ".join(self._errors.read_text(errors="replace").split())[-letters:] or "it wrote no reason"


@contextmanager
def answering_process(
    command: Callable[[int, int], Sequence[str]], environment: Mapping[str, str], folder: Path
) -> Iterator[AnsweringProcess]:
    """Start a fresh process in `folder`, with only `environment`; the caller ends it.

    `command` receives the descriptors of its answers and of the shared memory.
    """
    answers, answering = os.pipe()
    shared = os.memfd_create("aaco-target")
    errors = folder / "errors"
    try:
        try:
            with errors.open("wb") as stream:
                process = subprocess.Popen(
                    command(answering, shared),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=stream,
                    env=environment,
                    cwd=folder,
                    pass_fds=(answering, shared),
                    start_new_session=True,
                    text=True,
                )
        finally:
            os.close(answering)
        try:
            yield AnsweringProcess(process, answers, shared, errors)
        finally:
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.close()
    finally:
        os.close(answers)
        os.close(shared)
