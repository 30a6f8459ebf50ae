"""End `aaco ui` in every way there is: one line, the exit code, nothing left running."""

import os
import pty
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.reliability.web_door.counted import environment
from tests.user_interface import ENTRY, UserInterface, descendants, free_port, user_interface, wait_for

PATIENCE_SECONDS: Final = 60.0
#: As a shell starts what stands before `&`: the interrupt is ignored.
BACKGROUND: Final = ("sh", "-c", '"$@" & wait $!', "sh")
LAUNCH: Final = """mutation {
  launchPipelineExecution(executionParams: {
    selector: {repositoryLocationName: "aaco_pipeline", repositoryName: "__repository__", jobName: "start_session"},
    runConfigData: {ops: {register_session: {config: {model: "squeezenet", iterations: 100000}}}},
    mode: "default"
  }) { __typename }
}"""
RUNS: Final = "{ runsOrError { ... on Runs { results { jobName status } } } }"
STARTED: Final = {"jobName": "observe", "status": "STARTED"}


def command_of(running: UserInterface) -> int:
    """The process of the command itself, below a shell or not."""
    of_entry = [pid for pid, words in descendants(os.getpid()).items() if ENTRY in words and "sh -c" not in words]
    return min(of_entry)


def by(number: int) -> Callable[[UserInterface], None]:
    return lambda running: os.kill(command_of(running), number)


def killed(word: str) -> Callable[[UserInterface], None]:
    def end(running: UserInterface) -> None:
        os.kill(next(pid for pid, words in running.descendants().items() if word in words), signal.SIGKILL)

    return end


def in_the_middle_of_a_run(running: UserInterface) -> None:
    opener = running.signed_in()
    running.ask(opener, LAUNCH)
    wait_for(lambda: STARTED in running.ask(opener, RUNS)["runsOrError"]["results"], running.log.read_text)
    time.sleep(5)
    os.kill(command_of(running), signal.SIGTERM)


#: The name, words in front, how it is ended, the exit code, and the line in which it ends.
ENDINGS: Final = [
    ("SIGINT", (), by(signal.SIGINT), 130, "aaco: interrupted"),
    ("SIGTERM", (), by(signal.SIGTERM), 143, "aaco: terminated"),
    ("SIGINT in the background", BACKGROUND, by(signal.SIGINT), 130, "aaco: interrupted"),
    ("SIGTERM in the background", BACKGROUND, by(signal.SIGTERM), 143, "aaco: terminated"),
    ("SIGTERM in the middle of a run", (), in_the_middle_of_a_run, 143, "aaco: terminated"),
    ("SIGKILL", (), by(signal.SIGKILL), -9, ""),
    ("SIGKILL of its supervisor", (), killed("aaco_pipeline.resources.services"), 4, "supervisor .* SIGKILL"),
    ("SIGKILL of the code server", (), killed("code-server start"), 4, "code server of aaco_pipeline .* SIGKILL"),
    ("SIGKILL of the web server", (), killed("web.dagster_webserver"), 4, "Dagster's web server .* SIGKILL"),
    ("SIGKILL of the daemon", (), killed("dagster-daemon"), 4, "Dagster's daemon .* SIGKILL"),
]


def one_ending(
    folder: Path, before: tuple[str, ...], end: Callable[[UserInterface], None], code: int, line: str
) -> list[str]:
    """What was not as promised."""
    variables, _ = environment(folder)
    (folder / "empty").mkdir()
    broken = []
    with user_interface(folder / "empty", variables, before=before) as running:
        wait_for(running.is_up, running.log.read_text)
        time.sleep(3)  # so that the daemon has begun, too
        below = set(running.descendants())
        private = re.findall(r"/tmp/aaco-\w+", " ".join(running.descendants().values()))
        end(running)
        since = time.monotonic()
        below |= set(running.descendants())
        ended = running.process.wait(PATIENCE_SECONDS)
        left = below
        while left and time.monotonic() < since + PATIENCE_SECONDS:
            left = {pid for pid in below if Path(f"/proc/{pid}").exists()}
            time.sleep(0.1)
        took = time.monotonic() - since
        told = running.log.read_text().splitlines()[1:]
    broken += [f"exit code {ended}"] if ended != code else []
    broken += [f"left running: {left}"] if left else []
    broken += ["its folder is not known"] if not private else []
    broken += [f"left: {private}"] if any(Path(one).exists() for one in private) else []
    last = told[-1] if told else ""
    broken += [] if re.search(line, last) and bool(line) == bool(last) else [f"last line {last!r}"]
    broken += [f"{len(told)} lines: {told}"] if len(told) > 1 and "run" not in folder.name else []
    print(f"   gone after {took:.1f} s, {len(below)} processes")
    return broken


def on_a_terminal(folder: Path) -> list[str]:
    """Ctrl-C pressed at a terminal."""
    variables, _ = environment(folder)
    (folder / "empty").mkdir()
    port = free_port()
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder / "empty")
        command = [sys.executable, "-P", "-c", ENTRY, "ui", "--port", str(port)]
        os.execve(sys.executable, command, {**os.environ, **variables})
    shown = b""
    while b"token=" not in shown:
        shown += os.read(terminal, 4096)
    time.sleep(3)
    below = set(descendants(pid))
    os.write(terminal, b"\x03")
    try:
        while piece := os.read(terminal, 4096):
            shown += piece
    except OSError:
        pass  # the terminal's other end is closed: it has ended
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    left = {one for one in below if Path(f"/proc/{one}").exists()}
    lines = shown.decode().replace("^C", "").split("\r\n")[1:]
    broken = [f"exit code {code}"] if code != 130 else []
    broken += [f"left running: {left}"] if left else []
    return broken + ([f"printed {lines}"] if [one for one in lines if one] != ["aaco: interrupted"] else [])


def a_taken_port(folder: Path) -> list[str]:
    """A second one on the same port, and one on another port, beside the first."""
    variables, _ = environment(folder)
    for name in ("empty", "second", "third"):
        (folder / name).mkdir()
    broken = []
    with user_interface(folder / "empty", variables) as first:
        wait_for(first.is_up, first.log.read_text)
        with user_interface(folder / "second", variables, port=first.port) as second:
            code = second.process.wait(PATIENCE_SECONDS)
            told = second.log.read_text().splitlines()
            if code != 2 or len(told) != 1 or str(first.port) not in told[0]:
                broken.append(f"on a taken port: exit code {code}, {told}")
        with user_interface(folder / "third", variables) as third:
            wait_for(third.is_up, third.log.read_text)
            for one in (first, third):
                if not one.ask(one.signed_in(), "{ version }")["version"]:
                    broken.append("one of two does not answer")
    return broken


def main() -> int:
    wrong = 0
    with tempfile.TemporaryDirectory() as scratch:
        for name, before, end, code, line in ENDINGS:
            print(name)
            for broken in one_ending(Path(scratch) / name.replace(" ", "_"), before, end, code, line):
                print(f"   BROKEN: {broken}")
                wrong += 1
        for name, tried in (("Ctrl-C at a terminal", on_a_terminal), ("a taken port, and two at once", a_taken_port)):
            print(name)
            for broken in tried(Path(scratch) / name.replace(" ", "_").replace(",", "")):
                print(f"   BROKEN: {broken}")
                wrong += 1
    print(f"{len(ENDINGS) + 2} endings, {wrong} broken promises")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
