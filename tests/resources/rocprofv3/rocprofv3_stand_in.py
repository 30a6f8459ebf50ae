"""A stand-in for rocprofv3, for hosts without AMD GPUs: checks its arguments, runs the program, delivers given files.

It is no simulation: what it delivers is what the test put into the folder named by STAND_IN, either files of real
captures or texts that the test wrote. STAND_IN/settings.json: release, mode (ok, exec, fail, silent, hang).
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final, NoReturn

TRACES: Final = ("--kernel-trace", "--hip-runtime-trace", "--memory-copy-trace", "--marker-trace")
VALUES: Final = ("-d", "-o", "--output-format", "-i", "--kernel-include-regex", "--kernel-iteration-range")
SDK: Final = {"6.2": "0.4.0", "6.3": "0.5.0", "6.4": "0.6.0", "7.0": "1.0.0", "7.1": "1.1.0", "7.13": "1.3.0"}


def main(arguments: list[str]) -> int:
    home = Path(os.environ["STAND_IN"])
    settings: dict[str, Any] = json.loads((home / "settings.json").read_text())
    with (home / "calls.jsonl").open("a") as log:
        log.write(json.dumps(arguments) + "\n")
    if arguments == ["--version"]:
        print(settings.get("version") or version_text(settings["release"]))
        return 0
    if settings["mode"] == "fail":
        print("some warning\nFatal error: rocprof-trace-decoder library path not found in", file=sys.stderr)
        return 1
    kind, options, program = checked(arguments, settings["release"])
    if settings["mode"] == "hang":
        time.sleep(600)
    if settings["mode"] == "exec":  # as the real one does; its files are then written within the program
        deliver(home, kind, options, os.getpid())
        os.execv(program[0], program)
    with subprocess.Popen(program) as process:
        status = process.wait()
    if settings["mode"] != "silent":
        deliver(home, kind, options, process.pid)
    return status


def version_text(release: str) -> str:
    lines = {"version": SDK.get(release, "1.1.0"), "git_revision": "0", "rocm_version": f"{release}.0"}
    return "\n".join(f"    {key:>16}: {value}" for key, value in lines.items())


def checked(arguments: list[str], release: str) -> tuple[str, dict[str, str], list[str]]:
    """Tell the requested kind of pass; end the process when the release does not know it or kinds are mixed."""
    place = arguments.index("--") if "--" in arguments else refuse("no --")
    program = arguments[place + 1 :]
    options, flags, counters = sorted_out(arguments[:place])
    major, minor = (int(part) for part in release.split("."))
    if unknown := set(flags) - {*TRACES, "--att"}:
        refuse(f"unknown {unknown}")
    if options.get("--output-format") not in (("csv", "rocpd") if major >= 7 else ("csv",)):
        refuse("output format")
    if "-d" not in options or options.get("-o") != "out_%pid%":
        refuse("output place")
    if counters and (major, minor) < (6, 3):
        refuse("--pmc is of 6.3")
    if "-i" in options:
        words = Path(options["-i"]).read_text().split()
        counters = words[1:] if words[0] == "pmc:" else refuse("input file")
    asked = [kind for kind, is_asked in kinds(flags, counters).items() if is_asked]
    if len(asked) != 1:
        refuse(f"one thing at a time, not {asked}")
    if asked == ["base"] and set(flags) != set(TRACES):
        refuse("traces")
    if asked == ["thread_trace"] and (major < 7 or "--kernel-include-regex" not in options):
        refuse("thread trace")
    return asked[0], options, program


def sorted_out(arguments: list[str]) -> tuple[dict[str, str], list[str], list[str]]:
    """Options with a value, flags, and the counters after `--pmc`."""
    options: dict[str, str] = {}
    flags: list[str] = []
    counters: list[str] = []
    while arguments:
        one = arguments.pop(0)
        if one in VALUES:
            options[one] = arguments.pop(0)
        elif one == "--pmc":
            while arguments and not arguments[0].startswith("-"):
                counters.append(arguments.pop(0))
        else:
            flags.append(one)
    return options, flags, counters


def kinds(flags: list[str], counters: list[str]) -> dict[str, bool]:
    return {"base": any(f in TRACES for f in flags), "counters": bool(counters), "thread_trace": "--att" in flags}


def deliver(home: Path, kind: str, options: dict[str, str], process_id: int) -> None:
    """Copy the next file or folder meant for that kind of pass, named as this process would name it."""
    place = Path(options["-d"]) / ("pmc_1" if "-i" in options else "")
    place.mkdir(parents=True, exist_ok=True)
    waiting = sorted((home / kind).iterdir())
    for source in waiting if kind == "thread_trace" else waiting[:1]:
        suffix = source.name.partition("__")[2]
        target = place / (suffix if kind == "thread_trace" else f"out_{process_id}_{suffix}")
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copyfile(source, target)
        if kind == "counters":
            source.unlink()


def refuse(reason: str) -> NoReturn:
    print(f"stand-in: refused: {reason}", file=sys.stderr)
    sys.exit(64)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
