"""Share of harmless command-line arguments that redaction loses, over manual pages, package docs and captures.

Real passwords in examples count as lost too, so the true figure is lower.
"""

import argparse
import gzip
import json
import re
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import zip_longest
from pathlib import Path

from aaco_pipeline.formats.parsing.redaction import safe_command
from tests.places import SHARED

LEAST_LINES = 500
MOST_LOST = 0.01
#: A word in lower case, then words of which one begins with a dash.
COMMAND = re.compile(r"(?:[A-Z_]+=\S+ )*(?:\./|/)?[a-z][\w./+-]*(?: \S+)* --?[a-zA-Z][\w-]*.*")
PROSE = re.compile(r"[a-z]\.$|,$|\b(the|is|are|will|which|can|may|should|if)\b")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", type=int, default=20, help="how many lost arguments to print (default 20)")
    parser.add_argument("--most", type=int, default=20_000, help="look at so many lines at most (default 20000)")
    arguments = parser.parse_args()
    lines = list(dict.fromkeys([*captured(), *documented(), *manual()]))[: arguments.most]
    total = lost = 0
    for line in lines:
        words, kept = line.split(), safe_command(line).split()
        total += len(words)
        gone = [word for word, left in zip_longest(words, kept) if word is not None and word != left]
        lost += len(gone)
        if gone and arguments.show > 0:
            arguments.show -= 1
            print(f"  {' '.join(gone)!r} of {line!r}")
    share = lost / total if total else 1.0
    print(f"{len(lines)} command lines, {total} arguments, {lost} lost: {share:.3%} (at most {MOST_LOST:.0%})")
    if len(lines) < LEAST_LINES:
        print(f"fewer than {LEAST_LINES} lines: install manual pages", file=sys.stderr)
        return 1
    return int(share > MOST_LOST)


def captured() -> Iterator[str]:
    """The command lines of the shared captures."""
    for path in sorted((SHARED / "captures").rglob("*.db")):
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
            names = "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'rocpd_info_process%'"
            for (name,) in database.execute(names).fetchall():
                yield from (str(command) for (command,) in database.execute(f'SELECT command FROM "{name}"'))
    for path in sorted((SHARED / "captures").rglob("*_results.json.gz")):
        for process in json.loads(gzip.decompress(path.read_bytes()))["rocprofiler-sdk-tool"]:
            yield " ".join(process["metadata"]["command"])


def manual() -> Iterator[str]:
    """Lines of the installed manual pages."""
    for path in sorted(Path("/usr/share/man").glob("man[18]/*.gz")):
        try:
            text = gzip.decompress(path.read_bytes()).decode(errors="replace")
        except OSError:
            continue
        plain = re.sub(r"\\f[A-Z]|\\f\(..|\\f\[\w*\]|\\&|\\/|\\:", "", text).replace("\\-", "-").replace("\\(aq", "'")
        yield from commands(plain.replace("\\e", "\\").replace("\\(dq", '"').splitlines())


def documented() -> Iterator[str]:
    """Lines in the documentation of installed packages: their metadata, text files and docstrings."""
    for folder in (*map(Path, sys.path), Path("/usr/share/doc")):
        if not folder.is_dir() or folder == Path():
            continue
        for pattern in ("*.dist-info/METADATA", "*/README*", "*/*.rst", "*/*.md", "*/__init__.py", "*/cli*.py"):
            for path in sorted(folder.glob(pattern)):
                if path.is_file() and path.stat().st_size < 1 << 20:
                    content = path.read_bytes()
                    content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
                    yield from commands(content.decode(errors="replace").splitlines())


def commands(lines: list[str]) -> Iterator[str]:
    """The lines that are commands and not sentences."""
    for line in lines:
        stripped = line.strip().removeprefix("$ ").removeprefix("> ").strip("`")
        if 8 <= len(stripped) <= 500 and COMMAND.fullmatch(stripped) and not PROSE.search(stripped):
            yield stripped


if __name__ == "__main__":
    sys.exit(main())
