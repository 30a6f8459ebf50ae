"""Plant 200 secrets in captures and environments, take these in, and search every byte that the package leaves.

Databases row by row, Parquet column by column, archives unpacked; lake, Dagster's storage, logs and output.
"""

import argparse
import gzip
import json
import os
import random
import re
import signal
import sqlite3
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

import onnx
import polars as pl
from onnx import TensorProto, helper

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.project import HOME_VARIABLE, LAKE_VARIABLE
from benchmarks.common import ENTRY, ROOT
from benchmarks.performance.generate_rocpd import GUID, generate, insert
from tests.formats.examples import EXAMPLES
from tests.formats.parsing.redaction.secret_shapes import shapes

SECRETS: Final = 200
#: A secret that is a word is replaced by one that stands nowhere else.
_LEAST_UNIQUE: Final = 16
#: A key that nothing announces, and the texts where it may as well be a name: there it is kept, as SECURITY.md says.
_UNANNOUNCED: Final = "app {}"
_NAMES: Final = (
    *("rocpd string", "kineto metadata", "kineto annotation", "rocprofv3 JSON configuration", "rocprofv3 CSV marker"),
    *("rocprof-compute settings", "ORT profile argument"),
)
#: How many secrets a place has room for.
_MOST: Final = {"name of a model": 1, "measured variable": 14, "rocpd measured variable": 14}
#: What a file may be called.
_FILE_NAME: Final = re.compile(r"[\w.+=-]{8,120}")
_VARIABLES: Final = (
    *("HSA_TOOLS_LIB", "TRITON_CACHE_DIR", "MIOPEN_USER_DB_PATH", "HIPBLASLT_TUNING_FILE", "MIGRAPHX_PROBLEM_CACHE"),
    *("TRITON_HOME", "MIOPEN_CUSTOM_CACHE_DIR", "MIOPEN_SYSTEM_DB_PATH", "ROCBLAS_TENSILE_LIBPATH", "NCCL_DEBUG"),
    *("HIPBLASLT_TENSILE_LIBPATH", "ORT_MIGRAPHX_CACHE_PATH", "PYTORCH_TUNABLEOP_FILENAME", "MIGRAPHX_MLIR_TUNING_DB"),
)
_DAEMON_SECONDS: Final = 1800.0
_SUFFIX: Final = "_" + GUID.replace("-", "_")


@dataclass(frozen=True)
class Secret:
    """One planted secret: the text it stands in, what is looked for, and where it was put."""

    line: str
    needle: str
    shape: str
    place: str


def secrets(seed: int, number: int, places: Sequence[str]) -> list[Secret]:
    """`number` secrets over all shapes, each in another place than the time before."""
    made: list[Secret] = []
    rotating = count(seed)
    known: set[str] = set()
    for turn in count(seed):
        source = random.Random(turn)
        for shape, stated in shapes(turn):
            value = stated if len(stated) >= _LEAST_UNIQUE and " " not in stated else _unique(stated, source)
            if value in known:  # two shapes may hold the same token
                value = value[:-_LEAST_UNIQUE] + "".join(source.sample(value[-_LEAST_UNIQUE:], _LEAST_UNIQUE))
            known.add(value)
            line = shape.replace("{{", "{").replace("}}", "}").replace("{}", value)
            if not shape.count("{}"):
                continue
            for _ in places:
                place = places[next(rotating) % len(places)]
                if _fits(shape, line, place) and sum(one.place == place for one in made) < _MOST.get(place, number):
                    break
            # What of a key block no escape changes; of another secret all that no quote or escape can cut.
            needle = max(re.split(r"\\n|[^\w+/=.-]", value), key=len)
            made.append(Secret(line, needle, shape, place))
            if len(made) == number:
                return made
    raise AssertionError("there are always more")


def _fits(shape: str, line: str, place: str) -> bool:
    """Return whether a secret may be expected to be recognized at a place."""
    if place.startswith("name of"):
        return shape.startswith("x ") and _FILE_NAME.fullmatch(_last(line)) is not None
    return shape != _UNANNOUNCED or place not in _NAMES


def _last(line: str) -> str:
    """Parts of a line that may be a name: a token that says by itself what it is."""
    return line.rpartition(" ")[2]


def _unique(word: str, source: random.Random) -> str:
    letters = string.digits if word.isdigit() else string.ascii_letters + string.digits
    return word.replace(" ", "").replace("@", "") + "".join(source.choice(letters) for _ in range(_LEAST_UNIQUE))


# Where they are put.

Lines = Callable[[str], list[str]]
PLACES: Final = (
    *("rocpd command line", "rocpd environment", "rocpd measured variable", "rocpd extdata", "rocpd metadata"),
    *("rocpd string", "rocpd argument", "rocpd free page", "rocpd trigger, view, default", "rocpd table unknown yet"),
    *("kineto metadata", "kineto annotation", "rocprofv3 JSON command", "rocprofv3 JSON configuration"),
    *("rocprofv3 CSV marker", "rocprof-compute sysinfo", "rocprof-compute settings", "ORT profile argument"),
    *("name of a file", "name of a folder", "name of a model", "environment", "measured variable"),
)


def plant(folder: Path, lines: Lines) -> Path:
    """Captures with the lines in them, each format in a folder of its own; the file of the model."""
    _database(folder / "database", lines)
    for place, form in (("name of a file", "kineto"), ("name of a folder", "rocprofv3_csv")):
        for number, line in enumerate(lines(place)):
            name = _last(line)
            made = EXAMPLES[form](folder / f"named_{form}_{number}" / (name if place.endswith("folder") else "x"))
            if place.endswith("file"):
                made.rename(made.with_name(f"{name}.json"))
    _documents(folder, lines)
    return _model(folder.with_name("models"), lines)


def _database(folder: Path, lines: Lines) -> None:
    folder.mkdir(parents=True)
    path = folder / "1_results.db"
    generate(path, 6)
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA secure_delete = OFF")
        columns = ("id", "nid", "ppid", "pid", "start", "fini", "command", "environment", "extdata")
        variables = {f"X_{number}": line for number, line in enumerate(lines("rocpd environment"))}
        variables |= dict(zip(_VARIABLES, lines("rocpd measured variable"), strict=False))
        for number, line in enumerate(lines("rocpd command line")):
            row = (900 + number, 1966562287, 1, 900 + number, 1, 2, line, json.dumps(variables), "{}")
            insert(database, _SUFFIX, "info_process", columns, [row])
        extra = [json.dumps({"note": line, "argv": line.split()}) for line in lines("rocpd extdata")]
        insert(database, _SUFFIX, "info_stream", ("id", "nid", "pid", "name", "extdata"), [
            (500 + number, 1966562287, 28, "s", text) for number, text in enumerate(extra)
        ])  # fmt: skip
        insert(database, _SUFFIX, "metadata", ("tag", "value"), [
            ("note" if number % 2 else "command_line", line) for number, line in enumerate(lines("rocpd metadata"))
        ])  # fmt: skip
        insert(database, _SUFFIX, "string", ("id", "string"), [
            (700 + number, line) for number, line in enumerate(lines("rocpd string"))
        ])  # fmt: skip
        insert(database, _SUFFIX, "arg", ("event_id", "position", "type", "name", "value"), [
            (1, 9, "char const*", "text", line) for line in lines("rocpd argument")
        ])  # fmt: skip
        database.execute("CREATE TABLE of_a_later_release (what TEXT, n INTEGER)")
        unknown = [(line, 1) for line in lines("rocpd table unknown yet")]
        database.executemany("INSERT INTO of_a_later_release VALUES (?, ?)", unknown)
        for number, line in enumerate(lines("rocpd trigger, view, default")):
            text = line.replace("'", "''")
            database.execute(f"CREATE VIEW v{number} AS SELECT '{text}' AS x")
            database.execute(f"CREATE TABLE t{number} (a TEXT DEFAULT '{text}', b TEXT CHECK (b <> '{text}'))")
            database.execute(f"CREATE TRIGGER g{number} AFTER INSERT ON t{number} BEGIN SELECT '{text}'; END")
        database.execute("CREATE TABLE gone (what TEXT)")
        database.executemany("INSERT INTO gone VALUES (?)", [(line,) for line in lines("rocpd free page")])
        database.commit()
        database.execute("DROP TABLE gone")
        database.commit()


def _documents(folder: Path, lines: Lines) -> None:
    """The formats that are text."""
    (folder / "ort_profile").mkdir()
    path = EXAMPLES["kineto"](folder / "kineto")
    document = json.loads(path.read_text())
    document |= {f"note {number}": line for number, line in enumerate(lines("kineto metadata"))}
    annotations = [
        {"ph": "X", "cat": "user_annotation", "name": line, "pid": 1, "tid": 1, "ts": 2, "dur": 1, "args": {"x": line}}
        for line in lines("kineto annotation")
    ]
    document["traceEvents"] += annotations
    path.write_text(json.dumps(document))

    path = EXAMPLES["rocprofv3_json"](folder / "rocprofv3_json")
    document = json.loads(path.read_text())
    (process,) = document["rocprofiler-sdk-tool"]
    process["metadata"]["command"] = [word for line in lines("rocprofv3 JSON command") for word in line.split()]
    configuration = {f"note {number}": line for number, line in enumerate(lines("rocprofv3 JSON configuration"))}
    process["metadata"]["config"] = {**configuration, "environment": configuration}
    path.write_text(json.dumps(document))

    path = EXAMPLES["rocprofv3_csv"](folder / "rocprofv3_csv")
    marked = [f'"MARKER_CORE_RANGE_API","{_cell(line)}",1,1,{number},1,2\n'
              for number, line in enumerate(lines("rocprofv3 CSV marker"), 1)]  # fmt: skip
    head = "Domain,Function,Process_Id,Thread_Id,Correlation_Id,Start_Timestamp,End_Timestamp\n"
    path.with_name("1_marker_api_trace.csv").write_text(head + "".join(marked))

    path = EXAMPLES["rocprof_compute"](folder / "rocprof_compute")
    commands = " && ".join(line.replace("\n", "\\n") for line in lines("rocprof-compute sysinfo"))
    (path / "sysinfo.csv").write_text(f'command,host_name,gpu_soc\n"{_cell(commands)}",h,gfx942\n')
    settings = [f"  - {json.dumps(line)}\n" for line in lines("rocprof-compute settings")]
    (path / "profiling_config.yaml").write_text("remaining:\n" + "".join(settings))

    path = EXAMPLES["ort_profile"](folder / "ort_profile")
    events = json.loads(path.read_text())
    events[0]["args"] |= {f"x{number}": line for number, line in enumerate(lines("ORT profile argument"))}
    path.write_text("[\n" + ",\n".join(map(json.dumps, events)) + "\n]\n")


def _cell(line: str) -> str:
    return line.replace('"', '""')


def _model(folder: Path, lines: Lines) -> Path:
    """A small model whose file's name says what it should not. What a model holds is kept as it is."""
    folder.mkdir()
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "graph", ends[:1], ends[1:])
    path = folder / f"{_last(lines('name of a model')[0])}.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


# What is done with them.


def environment(place: Path, lines: Lines) -> dict[str, str]:
    """The environment of every process, with secrets."""
    variables = {f"X_{number}": line for number, line in enumerate(lines("environment"))}
    variables |= {
        line.partition("=")[0]: line.partition("=")[2]
        for line in lines("environment")
        if re.match(r"[A-Z_]+=\S+$", line)
    }
    variables |= dict(zip(_VARIABLES, lines("measured variable"), strict=False))
    places = {LAKE_VARIABLE: str(place / "lake"), HOME_VARIABLE: str(place / "home"), "TMPDIR": str(place / "tmp")}
    (place / "tmp").mkdir(parents=True)
    return {**os.environ, **variables, **places, "AACO_INBOX": str(place / "inbox")}


def by_command(place: Path, captures: Path, model: Path, variables: Mapping[str, str]) -> list[str]:
    """Ingest, run, show and report with the command; what went wrong."""
    wrong = []
    commands = [
        ["ingest", str(captures)],
        ["run", "--model", str(model), "--iterations", "3", "--warmup", "1"],
        *(["ls"], ["show", "latest"], ["doctor"], ["show", "no such session"]),
    ]
    for number, command in enumerate(commands):
        with (place / f"printed_{number}.log").open("wb") as printed:
            code = subprocess.call(
                [sys.executable, "-P", "-c", ENTRY, *command], cwd=ROOT, env=variables, stdout=printed, stderr=printed
            )
        if code != (2 if command[-1] == "no such session" else 0):
            wrong.append(f"aaco {command[0]} ended with {code}; see {place / f'printed_{number}.log'}")
    return wrong


def by_daemon(place: Path, captures: Path, variables: Mapping[str, str], runs: int) -> list[str]:
    """Let Dagster's daemon take the captures in from its inbox; what went wrong."""
    subprocess.run(["cp", "-r", str(captures), str(place / "inbox")], check=True)
    for entry in (place / "inbox").iterdir():
        (entry / ".done").touch()
    home = place / "home"
    home.mkdir()
    (home / "dagster.yaml").symlink_to(ROOT / "dagster.yaml")
    lake, end = TraceLake(place / "lake"), time.monotonic() + _DAEMON_SECONDS
    with (place / "printed_daemon.log").open("wb") as printed:
        daemon = subprocess.Popen(
            [sys.executable, "-m", "dagster._daemon", "run", "-m", "aaco_pipeline.definitions"],
            cwd=place,
            env=variables,
            stdout=printed,
            stderr=printed,
            start_new_session=True,
        )
        try:
            while len(lake.sessions()) < runs or lake.unfinished():
                if time.monotonic() > end or daemon.poll() is not None:
                    return [f"the daemon made {len(lake.sessions())} of {runs} sessions"]
                time.sleep(5)
            time.sleep(5)  # what Dagster writes of the last run
        finally:
            os.killpg(daemon.pid, signal.SIGINT)
            daemon.wait()
    return []


# Where they are looked for.


def texts(folder: Path) -> Iterator[tuple[Path, str]]:
    """Every file's bytes, and what is packed in it, as text in which a planted secret would stand as it was planted."""
    for path in sorted(folder.rglob("*")):
        yield path, path.name
        if not path.is_file() or path.is_symlink():
            continue
        content = path.read_bytes()
        yield path, content.decode("latin-1")
        if content[:2] == b"\x1f\x8b":
            yield path, gzip.decompress(content).decode("latin-1")
        if path.suffix == ".parquet":
            yield path, json.dumps(pl.read_parquet(path, hive_partitioning=False).to_dicts(), default=str)
        if content[:15] == b"SQLite format 3":
            yield from ((path, row) for row in _rows(path))


def _rows(path: Path) -> Iterator[str]:
    """The rows of a database, because a long text is cut where its page ends."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
        database.text_factory = lambda raw: raw.decode("utf-8", "replace")
        names = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (name,) in names:
            for row in database.execute(f'SELECT * FROM "{name}"'):
                yield "\n".join(map(str, row))


def found(folder: Path, planted: Sequence[Secret]) -> list[tuple[Secret, Path]]:
    """List the secrets, with their places."""
    needles = [one.needle for one in planted]
    leaks = []
    for path, text in texts(folder):
        if pl.Series([text]).str.contains_any(needles)[0]:
            leaks += [(one, path.relative_to(folder)) for one in planted if one.needle in text]
    return leaks


def _is_told(one: Secret, path: Path) -> bool:
    """Return whether the terminal only repeats a name that the command was given."""
    return one.place.startswith("name of") and path.suffix == ".log" and path.stem != "printed_daemon"


def one_round(place: Path, seed: int, number: int, *, daemon: bool) -> int:
    """Plant, take in, look; the number of broken promises."""
    planted = secrets(seed, number, PLACES)
    captures = place / "planted" / "captures"

    def lines(name: str) -> list[str]:
        return [one.line for one in planted if one.place == name]

    model = plant(captures, lines)
    control = {one.needle for one, _ in found(place / "planted", planted)}
    control |= {one.needle for one in planted if one.place in ("environment", "measured variable")}
    (place / "command").mkdir()
    wrong = by_command(place / "command", captures, model, environment(place / "command", lines))
    sessions = TraceLake(place / "command" / "lake").sessions()
    if daemon:
        (place / "daemon").mkdir()
        wrong += by_daemon(place / "daemon", captures, environment(place / "daemon", lines), len(sessions) - 1)
    everywhere = [leak for name in ("command", "daemon") for leak in found(place / name, planted)]
    leaks = [leak for leak in everywhere if "inbox" not in leak[1].parts and not _is_told(*leak)]
    for line in wrong:
        print(line, file=sys.stderr)
    for one, path in sorted(set(leaks), key=lambda leak: (leak[0].place, leak[0].shape, leak[1])):
        print(f"  {one.place}: {one.shape[:60]!r} in {path}")
    kinds, where = len({one.shape for one in planted}), len({one.place for one in planted})
    lost = len({one.needle for one in planted}) - len(control)
    print(
        f"seed {seed}: {len(planted)} secrets of {kinds} shapes in {where} places, "
        f"{len(sessions)} sessions{f' and {len(sessions) - 1} of the daemon' if daemon else ''}: "
        f"{len({one.needle for one, _ in leaks})} found; not seen in what was planted: {lost}"
    )
    return len(leaks) + len(wrong) + lost


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--secrets", type=int, default=SECRETS, help="how many each round plants (default 200)")
    parser.add_argument("--seed", type=int, default=1, help="of the first round; each has other secrets elsewhere")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--no-daemon", action="store_true", help="leave out Dagster's daemon, which takes minutes")
    parser.add_argument("--keep", type=Path, help="do it in this folder, which must not exist, and leave it there")
    asked = parser.parse_args()
    broken = 0
    for seed in range(asked.seed, asked.seed + asked.rounds):
        with tempfile.TemporaryDirectory() as temporary:
            place = (asked.keep or Path(temporary)) / str(seed)
            place.mkdir(parents=True)
            broken += one_round(place, seed, asked.secrets, daemon=not asked.no_daemon)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
