"""Count modules and lines of code: without blank lines, comments and docstrings.

    python docs/count.py                     # the package, by room, and its longest modules
    python docs/count.py tests benchmarks    # other folders

Standard library alone.
"""

import argparse
import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def code_lines(text: str) -> int:
    """Lines that hold code; a string over several lines counts with all of its lines that are not blank."""
    held: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _LAYOUT:
            held.update(range(token.start[0], token.end[0] + 1))
    blank = {number for number, line in enumerate(text.splitlines(), 1) if not line.strip()}
    return len(held - docstring_lines(text) - blank)


def docstring_lines(text: str) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                lines.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def counted(folder: Path) -> Iterator[tuple[str, str, int, int]]:
    """Room, module, lines of code and all lines of every module in a folder."""
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        within = path.relative_to(folder)
        room = within.parts[0] if len(within.parts) > 1 else "(top)"
        yield room, path.relative_to(folder.parent).as_posix(), code_lines(text), text.count("\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, default=[ROOT / "aaco_pipeline"])
    parser.add_argument("--longest", type=int, default=10, help="how many of the longest modules are listed")
    options = parser.parse_args()
    for folder in options.folders:
        rows = list(counted(folder.resolve()))
        rooms: dict[str, list[int]] = {}
        for room, _, code, lines in rows:
            total = rooms.setdefault(room, [0, 0, 0])
            total[:] = [total[0] + 1, total[1] + code, total[2] + lines]
        print(f"{folder.name:24}{'modules':>9}{'code':>9}{'lines':>9}")
        everything = [sum(column) for column in zip(*rooms.values(), strict=True)] or [0, 0, 0]
        for room, total in [*sorted(rooms.items()), ("all", everything)]:
            print(f"{room:24}" + "".join(f"{number:9,}" for number in total))
        for _, module, code, lines in sorted(rows, key=lambda row: (-row[3], row[1]))[: options.longest]:
            print(f"  {lines:5,} lines, {code:5,} code  {module}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
