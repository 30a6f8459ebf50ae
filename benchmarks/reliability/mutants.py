"""Seeded mutants of the package, judged by the tests that execute them: kill rate by room.

    python -m benchmarks.reliability.mutants RESULTS.jsonl --tree CHECKOUT --number 300 --seed 35

A draw depends on a function's own text alone, so checkouts that share a function share its mutant. A probe records
which tests execute each function. RESULTS.jsonl has a line per mutant and is resumed. TREE is copied, never changed.
"""

import argparse
import ast
import copy
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from typing import Any, Final

from benchmarks.common import SHARED

PACKAGE: Final = "aaco_pipeline"
#: Of the command, beside the tests of a mutant's room; those that are there.
SMOKE: Final = ("tests/cli/test_ingest.py", "tests/cli/test_run.py", "tests/cli/test_sessions.py")
#: Not tested as code: what users are shown, and what is handed to compilers.
LEFT_OUT: Final = ("optimization/samples/",)
GRACE_SECONDS: Final = 20
_MOST_SECONDS: Final = 7_200
#: pytest's exit code.
_NO_TESTS: Final = 5
#: From which line and column (in bytes) to which, and what stands there then.
Edit = tuple[tuple[int, int], tuple[int, int], str]
_TURNED: Final = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
#: Loaded into every process of a room's tests as they are: it notes in which test each function is executed.
_PROBE: Final = """
import mmap, os
HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.open(os.path.join(HERE, "hits"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
with open(os.path.join(HERE, "now"), "r+b") as file:
    now = mmap.mmap(file.fileno(), 8)
seen = set()

def hit(function):
    key = function, now[:]
    if key not in seen:
        seen.add(key)
        try:
            os.write(OUT, b"%d %d\\n" % (function, int.from_bytes(key[1], "big")))
        except OSError:
            pass  # a confined process may not write: what it executes is not known
"""
#: Loaded into pytest beside it: it says which test runs, or which fixture is made that several may share.
_PLUGIN: Final = """
import json, os, time
import pytest
from aaco_probe import HERE, now
contexts, uses, times, failed, spent = [""], {}, {}, set(), [0.0]

def enter(context):
    contexts.append(context)
    now[:] = (len(contexts) - 1).to_bytes(8, "big")

def pytest_runtest_protocol(item, nextitem):
    uses[item.nodeid] = list(item.fixturenames)
    enter(item.nodeid)

@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    if fixturedef.scope == "function":
        return (yield)
    before, begun = contexts[int.from_bytes(now[:], "big")], time.monotonic()
    enter("fixture " + fixturedef.argname)
    try:
        return (yield)
    finally:
        spent[0] += time.monotonic() - begun
        enter(before)

def pytest_runtest_logreport(report):
    times[report.nodeid] = times.get(report.nodeid, 0.0) + report.duration
    if report.failed:
        failed.add(report.nodeid)

def pytest_sessionfinish():
    told = {"contexts": contexts, "uses": uses, "times": times, "failed": sorted(failed), "fixtures": spent[0]}
    with open(os.path.join(HERE, "told.json"), "w") as file:
        json.dump(told, file)
"""
#: By name, what lies next to the package while its rooms' tests are probed.
_BESIDE: Final = {
    "aaco_probe.py": _PROBE,
    "aaco_probe_plugin.py": _PLUGIN,
    "sitecustomize.py": "import aaco_probe\n",
    "now": "\0" * 8,
}
_MADE: Final = ("hits", "told.json")


@dataclass(frozen=True)
class Function:
    """A function or method of the package: its module's path from the checkout, name, first line, text and syntax."""

    path: str
    name: str
    line: int
    text: str
    node: ast.FunctionDef | ast.AsyncFunctionDef

    @property
    def room(self) -> str:
        """The folder of its room's tests; the tests of a module on the ground floor are a file."""
        _, room, *rest = Path(self.path).parts
        return f"tests/{room}" if rest else f"tests/test_{room}"

    @property
    def known_as(self) -> str:
        """Names it among all functions of a checkout."""
        return f"{self.path}:{self.name}:{self.line}"

    @property
    def is_documented(self) -> bool:
        """Return whether the function has a docstring."""
        first = self.node.body[0]
        return isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)


@dataclass(frozen=True)
class Mutant:
    """One change: from `begin` to `end`, as line and column in bytes, stands `after` in place of `before`."""

    path: str
    function: str
    line: int
    mutation: str
    before: str
    after: str
    begin: tuple[int, int]
    end: tuple[int, int]

    @property
    def key(self) -> str:
        """Names it among all mutants of a checkout."""
        return f"{self.path}:{self.line}:{self.begin[1]} {self.mutation}: {self.before}"


def functions(tree: Path) -> Iterator[Function]:
    """Every function that is not within another, by file and line."""
    for file in sorted((tree / PACKAGE).rglob("*.py")):
        path = file.relative_to(tree).as_posix()
        if not path.startswith(tuple(f"{PACKAGE}/{one}" for one in LEFT_OUT)):
            text = file.read_text()
            yield from _within(ast.parse(text).body, path, text.splitlines(), "")


def _within(body: Sequence[ast.stmt], path: str, lines: Sequence[str], inside: str) -> Iterator[Function]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _within(node.body, path, lines, f"{inside}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            own = "\n".join(lines[node.lineno - 1 : node.end_lineno])
            yield Function(path, inside + node.name, node.lineno, own, node)


def mutants(tree: Path, number: int, seed: int) -> list[tuple[Function, Mutant]]:
    """As many mutants, each of another function, in the order in which they are drawn."""
    drawn = sorted(functions(tree), key=lambda one: (_draw(seed, one.name, one.text), one.path))
    found = ((one, min(changes(one), key=lambda m: _draw(seed, *_place(one, m)), default=None)) for one in drawn)
    return list(islice(((one, mutant) for one, mutant in found if mutant is not None), number))


def _place(function: Function, mutant: Mutant) -> tuple[object, ...]:
    """Where in its function a change is, wherever that is in the file."""
    return (function.text, mutant.begin[0] - function.line, mutant.begin[1], mutant.mutation, mutant.after)


def _draw(seed: int, *what: object) -> str:
    return sha256(repr((seed, *what)).encode()).hexdigest()


def changes(function: Function) -> Iterator[Mutant]:
    """Every change of a function's body; none within a formatted string or an annotation."""
    waiting: list[ast.AST] = list(function.node.body[function.is_documented :])
    while waiting:
        node = waiting.pop()
        for mutation, at, after in _changed(node):
            begin, end = (at.lineno, at.col_offset), (at.end_lineno or 0, at.end_col_offset or 0)
            told = f"({after})" if isinstance(at, ast.expr) else after
            yield Mutant(function.path, function.name, at.lineno, mutation, ast.unparse(at), told, begin, end)
        if not isinstance(node, ast.JoinedStr):
            skipped = (node.annotation,) if isinstance(node, ast.AnnAssign | ast.arg) else ()
            waiting += [child for child in ast.iter_child_nodes(node) if child not in skipped]


def _changed(node: ast.AST) -> Iterator[tuple[str, ast.expr | ast.stmt, str]]:
    """The changes of one node: what is done, to what, and what stands there then."""
    if isinstance(node, ast.Compare):
        for number, operator in enumerate(node.ops):
            turned = copy.deepcopy(node)
            turned.ops[number] = _TURNED[type(operator)]()
            yield "comparison turned", node, ast.unparse(turned)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        other = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
        yield "+ and - exchanged", node, ast.unparse(ast.BinOp(node.left, other, node.right))
    elif isinstance(node, ast.BoolOp):
        joined = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield "and and or exchanged", node, ast.unparse(ast.BoolOp(joined, node.values))
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield "one more", node, str(node.value + 1)
        yield "one less", node, str(node.value - 1)
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        yield "condition negated", node.test, f"not ({ast.unparse(node.test)})"
    elif isinstance(node, ast.Return) and not (node.value is None or _is_none(node.value)):
        yield "None returned", node, "return None"
    elif isinstance(node, ast.AugAssign) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        yield "left out", node, "pass"


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def probe(function: Function, number: int) -> Edit:
    """Build the probe that records a function's execution, placed after its docstring."""
    call = f'(lambda probe: probe and probe.hit({number}))(__import__("sys").modules.get("aaco_probe"))'
    body = function.node.body[function.is_documented :]
    if not body:
        at = function.node.body[0]
        place = (at.end_lineno or 0, at.end_col_offset or 0)
        return place, place, f"; {call}"
    first = body[0]
    marks = getattr(first, "decorator_list", [])
    place = (marks[0].lineno if marks else first.lineno, first.col_offset)
    shares_a_line = function.node.body[0].lineno == function.node.lineno
    return place, place, f"{call}; " if shares_a_line else f"{call}\n{' ' * first.col_offset}"


def replaced(text: str, edits: Sequence[Edit]) -> str:
    """A module's text with other words from each line and column (in bytes) to another; the places do not overlap."""
    lines = text.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    whole = b"".join(lines)
    for begin, end, words in sorted(edits, reverse=True):
        first, last = starts[begin[0] - 1] + begin[1], starts[end[0] - 1] + end[1]
        whole = whole[:first] + words.encode() + whole[last:]
    return whole.decode()


class Judge:
    """A copy of a checkout in which mutants meet tests; what rooms' tests execute is kept in `kept`."""

    def __init__(self, tree: Path, folder: Path, kept: Path) -> None:
        self.tree, self.copy, self.kept = tree, folder / "copy", kept
        shutil.copytree(tree, self.copy, symlinks=True, ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__"))
        (self.copy / ".venv").symlink_to(tree / ".venv")
        self.every = list(functions(tree))

    def judge(self, function: Function, mutant: Mutant) -> dict[str, Any]:
        """Run the tests against one mutant: killed, timed out or survived, the number of tests, and CPU seconds."""
        rooms = [self.room(one) for one in dict.fromkeys((function.room, *SMOKE))]
        own = self._mirrored(function)
        chosen: dict[str, float] = {}
        for room in rooms:
            executing = room["executed"].get(function.known_as, ())
            of_its_own = (test for test in room["times"] if own and test.startswith(own))
            chosen |= {test: room["times"][test] for test in (*executing, *of_its_own) if test not in room["failed"]}
        order = sorted(chosen, key=lambda test: not (own and test.startswith(own)))
        told = {"key": mutant.key, "room": function.room, **asdict(mutant), "tests": len(order)}
        if not order:
            return {**told, "verdict": "survived", "by": None, "cpu": 0.0}
        file = self.copy / mutant.path
        whole = file.read_text()
        file.write_text(replaced(whole, [(mutant.begin, mutant.end, mutant.after)]))
        try:
            limit = 3 * (sum(chosen.values()) + sum(room["fixtures"] for room in rooms)) + GRACE_SECONDS
            code, said, cpu = self._pytest(order, int(limit), "-x")
        finally:
            file.write_text(whole)
        if code == _NO_TESTS:
            raise RuntimeError(f"{mutant.key}: none of its tests is there: {said[-2000:]}")
        failures = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
        by_time = code in (None, -signal.SIGXCPU, -signal.SIGKILL)
        verdict = "survived" if code == 0 else "killed by time" if by_time else "killed"
        return {**told, "verdict": verdict, "by": failures[0][:200] if failures else None, "cpu": round(cpu, 2)}

    def room(self, tests: str) -> dict[str, Any]:
        """Record which functions each test of a room executes, its duration, and tests that fail unmutated."""
        found = self.kept / f"{tests.replace('/', '.')}.json"
        if not found.exists():
            found.write_text(json.dumps(self._probed(tests)))
        read: dict[str, Any] = json.loads(found.read_text())
        return read

    def _probed(self, tests: str) -> dict[str, Any]:
        """Run tests on a package with a probe in every function."""
        if not (self.copy / tests).exists():
            return {"cpu": 0.0, "failed": [], "times": {}, "fixtures": 0.0, "executed": {}}
        edits, before = defaultdict[str, list[Edit]](list), dict[str, str]()
        for number, one in enumerate(self.every):
            edits[one.path].append(probe(one, number))
        for path, those in edits.items():
            before[path] = (self.copy / path).read_text()
            (self.copy / path).write_text(replaced(before[path], those))
        for name, text in _BESIDE.items():
            (self.copy / name).write_text(text)
        try:
            code, said, cpu = self._pytest([tests], _MOST_SECONDS, "-p", "aaco_probe_plugin")
            if not (self.copy / "told.json").exists():
                raise RuntimeError(f"{tests}: pytest ended with {code}: {said[-2000:]}")
            told = json.loads((self.copy / "told.json").read_text())
            hits = (self.copy / "hits").read_text().splitlines()
        finally:
            for path, text in before.items():
                (self.copy / path).write_text(text)
            for name in (*_BESIDE, *_MADE):
                (self.copy / name).unlink(missing_ok=True)
        executed = defaultdict[str, set[str]](set)
        users = defaultdict[str, set[str]](set)
        for test, fixtures in told["uses"].items():
            for fixture in fixtures:
                users[f"fixture {fixture}"].add(test)
        for hit in hits:
            number, context = map(int, hit.split())
            name = told["contexts"][context]
            executed[self.every[number].known_as] |= {name} if name in told["uses"] else users[name]
        return {
            "cpu": round(cpu, 1),
            "failed": told["failed"],
            "times": told["times"],
            "fixtures": told["fixtures"],
            "executed": {name: sorted(tests) for name, tests in sorted(executed.items())},
        }

    def _mirrored(self, function: Function) -> str | None:
        """The file or folder of tests that is the module's own."""
        inside = Path(function.path).relative_to(PACKAGE).with_suffix("")
        file, folder = f"tests/{inside.parent}/test_{inside.name}.py", f"tests/{inside}/"
        return next((one for one in (file, folder) if (self.tree / one).exists()), None)

    def _pytest(self, tests: Sequence[str], seconds: int, *options: str) -> tuple[int | None, str, float]:
        """Exit code of pytest, what it said and CPU seconds; None when it took six times its CPU time by the clock."""
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as listed, tempfile.TemporaryFile("w+") as out:
            listed.write("\n".join(tests))
            listed.flush()
            limited = ("sh", "-c", f'ulimit -S -t {seconds}; exec "$@"', "sh")
            python = str(self.tree / ".venv" / "bin" / "python")
            plain = (python, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider")
            command = [*limited, *plain, *options, f"@{listed.name}"]
            environment = {**os.environ, "PYTHONPATH": str(self.copy), "AACO_SHARED": str(SHARED)}
            environment |= {"PYTHONDONTWRITEBYTECODE": "1"}
            before = getrusage(RUSAGE_CHILDREN)
            process = subprocess.Popen(
                command, cwd=self.copy, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip
            try:
                code: int | None = process.wait(6 * seconds + 60)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            after = getrusage(RUSAGE_CHILDREN)
            out.seek(0)
            used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            return code, out.read(), used


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """The kill rate of each room and of all, then the survivors."""
    lines = [f"{'room':<24}{'mutants':>8}{'killed':>8}{'by time':>8}{'survived':>9}{'killed':>8}{'CPU s':>9}"]
    for room in [*sorted({row["room"] for row in rows}), "all"]:
        those = [row for row in rows if room in ("all", row["room"])]
        killed, by_time, survived = (
            sum(row["verdict"] == verdict for row in those) for verdict in ("killed", "killed by time", "survived")
        )
        cpu = sum(row["cpu"] for row in those)
        rate = (killed + by_time) / max(1, len(those))
        lines.append(f"{room:<24}{len(those):8}{killed:8}{by_time:8}{survived:9}{rate:8.1%}{cpu:9.1f}")
    for row in rows:
        if row["verdict"] == "survived":
            lines.append(f"{row['path']}:{row['line']} {row['function']}: {row['mutation']} ({row['tests']} tests)")
            lines.append(f"    {row['before'].splitlines()[0][:100]}  ->  {row['after'][:100]}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--tree", type=Path, required=True)
    parser.add_argument("--number", type=int, default=300)
    parser.add_argument("--seed", type=int, default=35)
    parser.add_argument("--room", action="append", help="only the mutants of these rooms, such as tests/lake")
    given = parser.parse_args(arguments)
    tree, results = given.tree.absolute(), given.results.absolute()
    kept = results.with_suffix(".rooms")
    kept.mkdir(exist_ok=True)
    rows = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    known = {row["key"] for row in rows}
    with tempfile.TemporaryDirectory(prefix="aaco_mutants_") as folder, results.open("a") as stream:
        judge = Judge(tree, Path(folder), kept)
        for function, mutant in mutants(tree, given.number, given.seed):
            if mutant.key in known or (given.room and function.room not in given.room):
                continue
            row = judge.judge(function, mutant)
            rows.append(row)
            stream.write(json.dumps(row) + "\n")
            stream.flush()
            print(
                f"{len(rows):4} {row['verdict']:<14} {row['cpu']:6.1f} s {row['tests']:5} tests  {mutant.key}"[:160],
                flush=True,
            )
    print(summary(rows))
    cost = {room.stem: json.loads(room.read_text())["cpu"] for room in sorted(kept.glob("*.json"))}
    print(f"tests as they are, CPU s by room: {cost}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
