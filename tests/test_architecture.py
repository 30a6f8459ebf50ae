"""The arrows of the house: which room may import which, who may start a process or read a clock, and what is light."""

import ast
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

import pytest

from tests.cli.commands import COMMANDS
from tests.places import ROOT

PACKAGE: Final = ROOT / "aaco_pipeline"
MODULES: Final = sorted(PACKAGE.rglob("*.py"))
#: From the doors down: a room may import from floors below its own, and within itself.
FLOORS: Final = (
    ("cli", "definitions"),
    ("web",),
    ("automation",),
    ("pipeline",),
    ("assets",),
    ("mark",),
    ("recording",),
    ("resources", "report"),
    ("capture",),
    ("formats", "analysis", "statistics", "optimization"),
    ("hardware", "lake"),
    ("cache_folder", "code_digest"),
    ("errors", "providers", "aaco_pipeline"),
)
FLOOR_OF: Final = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
#: Arrows along a floor: the command may reach the definitions that the UI has, and hardware the lake's contracts.
ALONG_A_FLOOR: Final = {("cli", "definitions"), ("hardware", "lake")}
#: Arrows down that are barred all the same, each with the modules that still have one.
BARRED: Final = {("assets", "formats"): set[str](), ("resources", "analysis"): set[str]()}
#: How many modules and halls the top of a room shows at most.
MOST_DOORS: Final = {"formats": 22, "analysis": 12}
MOST_LINES: Final = 600
#: Longer modules, with why they are not divided.
LONGER: Final = {
    "aaco_pipeline.resources.measure.inference_worker": "the measured program, which imports nothing of this package",
}
#: Where modules are found by the names of their files.
FINDS_MODULES: Final = "aaco_pipeline.assets.stage"
#: What knows Dagster: its door, and the one command that opens it.
KNOWS_DAGSTER: Final = ("automation", "definitions")
OPENS_DAGSTER: Final = "aaco_pipeline.cli.ui"
PURE_ROOMS: Final = ("analysis", "formats", "hardware", "optimization", "statistics")
LAKE_FOR_PURE_ROOMS: Final = ("contracts", "evidence", "on_disk", "validation")
STARTS_PROCESSES: Final = ("subprocess", "multiprocessing", "pty", "concurrent.futures.process")
TOUCHES_THE_NETWORK: Final = ("socket", "http.client", "http.server", "urllib.request", "ssl", "requests", "httpx")
OS_STARTS: Final = ("exec", "spawn", "fork", "popen", "posix_spawn", "system")
#: How a clock is read without the module `time`, which pure rooms do not import.
CLOCK_CALLS: Final = ("now", "utcnow", "today")
LINKS: Final = ("assets", "resources", "lake")
#: The smallest capture that has a timeline.
KERNELS: Final = (
    '"Kind","Agent_Id","Queue_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id",'
    '"Start_Timestamp","End_Timestamp","Workgroup_Size_X","Grid_Size_X"\n'
    '"KERNEL_DISPATCH","Agent 1",1,77,1,5,"scale<int>(float*)",3,1000,2000,64,640\n'
)


@dataclass(frozen=True)
class Read:
    """Facts of a module for these tests, parsed once for all of them."""

    docstring: str
    lines: int
    #: Every module that it imports anywhere, in functions and under TYPE_CHECKING too. Of `from a import b` both `a`
    #: and `a.b` are given, because `b` may be a module.
    imports: tuple[str, ...]
    #: The names of the module `os` that it uses.
    os_names: tuple[str, ...]
    attributes: frozenset[str]
    #: Where it imports or runs what is named only at run time.
    by_name: tuple[str, ...]


@cache
def read(path: Path) -> Read:
    text = path.read_text()
    tree = ast.parse(text, str(path))
    nodes = list(ast.walk(tree))
    return Read(
        docstring=ast.get_docstring(tree) or "",
        lines=len(text.splitlines()),
        imports=tuple(name for node in nodes for name in imported_by(node, path)),
        os_names=tuple(name for node in nodes for name in os_names_in(node)),
        attributes=frozenset(node.attr for node in nodes if isinstance(node, ast.Attribute)),
        by_name=tuple(
            ast.unparse(node)
            for node in nodes
            if (isinstance(node, ast.Attribute) and node.attr == "import_module")
            or (isinstance(node, ast.Name) and node.id in ("__import__", "exec", "eval"))
        ),
    )


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_by(node: ast.AST, path: Path) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            package = name_of(path) if path.name == "__init__.py" else name_of(path).rpartition(".")[0]
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*above, *([node.module] if node.module else [])])
        yield base
        yield from (f"{base}.{alias.name}" for alias in node.names)


def imported(path: Path) -> tuple[str, ...]:
    return read(path).imports


def room_of(module: str) -> str | None:
    """The room of a module of this package; `aaco_pipeline` for its root; None for anybody else's."""
    parts = module.split(".")
    if parts[0] != "aaco_pipeline":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in rooms() else "aaco_pipeline"


@cache
def rooms() -> set[str]:
    return {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}


def is_or_is_in(module: str, parents: tuple[str, ...]) -> bool:
    return any(module == parent or module.startswith(f"{parent}.") for parent in parents)


def os_names_in(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("os", "posix"):
        yield node.attr
    elif isinstance(node, ast.ImportFrom) and node.module in ("os", "posix"):
        yield from (alias.name for alias in node.names)


def process_starts(path: Path) -> list[str]:
    """List how `path` could start a process."""
    found = [module for module in imported(path) if is_or_is_in(module, STARTS_PROCESSES)]
    return found + [f"os.{name}" for name in read(path).os_names if name.startswith(OS_STARTS)]


def in_rooms(*names: str) -> list[Path]:
    return [path for path in MODULES if room_of(name_of(path)) in names]


def test_every_room_has_its_floor() -> None:
    assert rooms() - {"__init__"} <= set(FLOOR_OF)


def test_arrows_run_one_way() -> None:
    wrong = []
    for path in MODULES:
        room = room_of(name_of(path))
        assert room is not None
        wrong += [
            f"{name_of(path)}: {room} → {module}"
            for module in imported(path)
            if (target := room_of(module)) is not None
            and target != room
            and FLOOR_OF[target] <= FLOOR_OF[room]
            and (room, target) not in ALONG_A_FLOOR
        ]
    assert wrong == []


def test_no_module_imports_itself_through_others() -> None:
    """Imports in functions and for the type checker count, too: they only hide a circle.

    Not so what a module imports from a package that it lies in: Python imports that first, whatever the module says.
    """
    modules = {name_of(path): path for path in MODULES}
    graph = {
        name: {one for one in modules_imported(path, set(modules)) if not is_or_is_in(name, (one,))}
        for name, path in modules.items()
    }
    try:
        TopologicalSorter({name: sorted(needed) for name, needed in graph.items()}).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(reversed(error.args[1])))


def modules_imported(path: Path, modules: set[str]) -> set[str]:
    """The modules of this package that `path` imports; of `from a import b` only `a.b` where that is a module."""
    names = set(imported(path))
    packages = {name.rpartition(".")[0] for name in names & modules}
    named_in_packages = {name.rpartition(".")[0] for name in names - modules}
    return {module for module in names & modules if module not in packages or module in named_in_packages}


def is_of_dagster(module: str) -> bool:
    """Return whether it is Dagster's, or of one of the packages that come with it."""
    return module.partition(".")[0].partition("_")[0] == "dagster"


@cache
def needed_by(module: str) -> frozenset[str]:
    """Find the modules of this package that importing one and calling all its functions imports directly."""
    modules = {name_of(path): path for path in MODULES}
    found = modules_imported(modules[module], set(modules)) | {module.rpartition(".")[0]} & set(modules)
    if module == FINDS_MODULES:
        found |= {name for name in modules if is_or_is_in(name, ("aaco_pipeline.assets",))}
    return frozenset(found)


def reached_from(starts: set[str]) -> set[str]:
    """Find all modules of this package that are imported from these, in functions and under TYPE_CHECKING too."""
    found, left = set(starts), list(starts)
    while left:
        new = needed_by(left.pop()) - found
        found |= new
        left += new
    return found


def dagster_in(modules: set[str]) -> list[str]:
    """Name what of these modules is Dagster's door, or imports Dagster."""
    doors = [name for name in modules if room_of(name) in KNOWS_DAGSTER]
    paths = [path for path in MODULES if name_of(path) in modules]
    return doors + [f"{name_of(path)}: {name}" for path in paths for name in imported(path) if is_of_dagster(name)]


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - {"ui"}))
def test_a_command_reaches_nothing_of_dagster(command: str) -> None:
    entry = COMMANDS[command].callback
    assert entry is not None
    reached = reached_from({"aaco_pipeline.cli.main", "aaco_pipeline.cli.commands", entry.__module__})
    assert dagster_in(reached) == []


def test_the_room_pipeline_and_all_below_it_reach_nothing_of_dagster() -> None:
    below = tuple(room for room, floor in FLOOR_OF.items() if floor >= FLOOR_OF["pipeline"])
    reached = reached_from({name_of(path) for path in in_rooms(*below)})
    assert dagster_in(reached) == []
    assert {"aaco_pipeline.pipeline.session_stages", "aaco_pipeline.assets.report"} <= reached


def test_only_dagsters_door_imports_dagster() -> None:
    elsewhere = {name_of(path) for path in MODULES} - {name_of(path) for path in in_rooms(*KNOWS_DAGSTER)}
    assert dagster_in(elsewhere) == []
    opening = {name for name in elsewhere if any(room_of(one) in KNOWS_DAGSTER for one in needed_by(name))}
    assert opening == {OPENS_DAGSTER}


def test_of_dagster_only_what_it_promises_to_keep_is_imported() -> None:
    own = [path for folder in ("tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    wrong = {
        f"{path.relative_to(ROOT)}: {module}"
        for path in [*MODULES, *own]
        for module in imported(path)
        if is_of_dagster(module)
        and (module.startswith("dagster_shared") or any(part.startswith("_") for part in module.split(".")))
    }
    assert wrong == set()


@pytest.mark.parametrize(("room", "target"), BARRED)
def test_a_barred_arrow_is_only_where_it_is_known(room: str, target: str) -> None:
    across = {
        name_of(path)
        for path in in_rooms(room)
        if any(is_or_is_in(module, (f"aaco_pipeline.{target}",)) for module in imported(path))
    }
    assert across <= BARRED[room, target]


@pytest.mark.parametrize("room", MOST_DOORS)
def test_the_top_of_a_room_shows_few_doors(room: str) -> None:
    doors = {
        path.stem
        for path in (PACKAGE / room).iterdir()
        if (path.suffix == ".py" or (path / "__init__.py").is_file()) and path.stem != "__init__"
    }
    assert len(doors) <= MOST_DOORS[room], sorted(doors)


def test_no_module_is_too_long_but_those_with_a_reason() -> None:
    longer = {name_of(path) for path in MODULES if read(path).lines > MOST_LINES}
    assert longer == set(LONGER)


def test_pure_rooms_know_neither_dagster_nor_the_store() -> None:
    allowed = tuple(f"aaco_pipeline.lake.{name}" for name in LAKE_FOR_PURE_ROOMS)
    wrong = [
        f"{name_of(path)}: {module}"
        for path in in_rooms(*PURE_ROOMS)
        for module in imported(path)
        if is_or_is_in(module, ("dagster",))
        or (
            is_or_is_in(module, ("aaco_pipeline.lake",))
            and module != "aaco_pipeline.lake"
            and not is_or_is_in(module, allowed)
        )
    ]
    assert wrong == []


def test_pure_rooms_start_nothing_and_read_no_clock() -> None:
    wrong = []
    for path in in_rooms(*PURE_ROOMS):
        found = process_starts(path)
        found += [module for module in imported(path) if is_or_is_in(module, ("time", *TOUCHES_THE_NETWORK))]
        found += sorted(read(path).attributes.intersection(CLOCK_CALLS))
        wrong += [f"{name_of(path)}: {name}" for name in found]
    assert wrong == []


def test_the_lake_imports_no_other_room_and_no_dagster() -> None:
    wrong = {
        name_of(path): module
        for path in in_rooms("lake")
        for module in imported(path)
        if room_of(module) not in (None, "lake", "cache_folder", "errors", "aaco_pipeline")
        or is_or_is_in(module, ("dagster",))
    }
    assert wrong == {}


def test_only_resources_and_recording_start_processes() -> None:
    starting = {name_of(path): starts for path in MODULES if (starts := process_starts(path))}
    elsewhere = {
        name: starts
        for name, starts in starting.items()
        if not is_or_is_in(name, ("aaco_pipeline.resources", "aaco_pipeline.recording"))
    }
    assert elsewhere == {}
    assert "aaco_pipeline.resources.measure.measurement_slot" in starting


def test_only_resources_may_call_the_network_and_only_the_web_may_serve() -> None:
    wrong = {
        name_of(path): module
        for path in MODULES
        if (room := room_of(name_of(path))) != "resources"
        for module in imported(path)
        if is_or_is_in(module, TOUCHES_THE_NETWORK) and not (room == "web" and is_or_is_in(module, ("socket",)))
    }
    assert wrong == {}


def test_only_stages_are_found_by_the_names_of_their_files() -> None:
    """Nothing that these tests cannot see may exist: no other import uses a name made at run time."""
    wrong = [f"{name_of(path)}: {shown}" for path in MODULES for shown in read(path).by_name]
    assert wrong == [f"{FINDS_MODULES}: importlib.import_module"]


def test_every_module_says_what_belongs_there() -> None:
    assert [name_of(path) for path in MODULES if not read(path).docstring.endswith((".", ":"))] == []


@pytest.mark.parametrize("name", LINKS)
def test_the_top_level_shows_the_folder_by_a_relative_link(name: str) -> None:
    link = ROOT / name
    assert link.is_symlink()
    assert link.readlink() == Path("aaco_pipeline", name)
    assert link.resolve() == PACKAGE / name


def test_nothing_imports_through_the_links() -> None:
    own = [
        path for folder in ("tests", "benchmarks") if (ROOT / folder).is_dir() for path in (ROOT / folder).rglob("*.py")
    ]
    wrong = {
        str(path.relative_to(ROOT)): module
        for path in [*MODULES, *own]
        for module in imported(path)
        if is_or_is_in(module, LINKS)
    }
    assert wrong == {}


def test_what_is_installed_is_the_package_alone_and_the_links_are_never_read_twice() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    targets = settings["tool"]["hatch"]["build"]["targets"]
    assert targets["wheel"] == {"packages": ["aaco_pipeline"]}
    assert {name for name in targets["sdist"]["only-include"] if (ROOT / name).is_dir()} == {"aaco_pipeline"}
    assert set(settings["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]) == set(LINKS)
    assert {f"/{name}" for name in LINKS} <= set(settings["tool"]["ruff"]["exclude"])
    assert not set(LINKS) & set(settings["tool"]["mypy"]["files"])


RUN_AND_NAME_MODULES: Final = """
import json, sys
from aaco_pipeline.cli.main import main
codes = {main(command) for command in json.loads(sys.argv[1])}
print(*codes, *sorted(sys.modules), file=sys.stderr)
"""


def modules_after(commands: list[list[str]], environment: dict[str, str], folder: Path) -> set[str]:
    """The top-level modules that are loaded once the commands have run to their good ends in one process."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", RUN_AND_NAME_MODULES, json.dumps(commands)],
        env={**os.environ, **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    code, *modules = done.stderr.splitlines()[-1].split()
    assert code == "0", done.stderr
    return {module.partition(".")[0] for module in modules}


def test_help_imports_nothing_heavy(project_environment: dict[str, str], tmp_path: Path) -> None:
    commands = [[name, "--help"] for name in COMMANDS]
    loaded = modules_after([["--help"], *commands], project_environment, tmp_path)
    assert not loaded & {"dagster", "polars", "duckdb", "numpy", "pyarrow", "onnx", "onnxruntime", "scipy", "perfetto"}


def test_asking_the_lake_imports_neither_dagster_nor_a_runtime(
    project_environment: dict[str, str], tmp_path: Path
) -> None:
    tables = [["tables"], ["tables", "gaps"]]
    assert not modules_after(tables, project_environment, tmp_path) & {"polars", "duckdb"}
    asked = [*tables, ["sql", "SELECT count(*) FROM sessions"], ["ls"]]
    assert not modules_after(asked, project_environment, tmp_path) & {"dagster", "onnx", "onnxruntime"}


def test_a_capture_is_taken_in_shown_and_tidied_without_dagster(
    project_environment: dict[str, str], tmp_path: Path
) -> None:
    capture = tmp_path / "capture"
    capture.mkdir()
    (capture / "out_kernel_trace.csv").write_text(KERNELS)
    commands = [["ingest", str(capture)], ["show"], ["gc", "--dry-run", "--keep-last", "1"], ["doctor", "--mend"]]
    loaded = modules_after(commands, project_environment, tmp_path)
    assert "polars" in loaded
    assert not {one for one in loaded if is_of_dagster(one)}


def test_the_measured_process_imports_only_numpy_and_the_runtime() -> None:
    """Nothing else may run beside the model: no polars, no Dagster, not even this package."""
    path = PACKAGE / "resources" / "measure" / "inference_worker.py"
    tops = {module.partition(".")[0] for module in imported(path)}
    assert {top for top in tops if top not in sys.stdlib_module_names} == {"numpy", "onnxruntime"}
