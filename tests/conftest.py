"""Fixtures of all tests: their own environment, a project at a temporary path, and one lake of real sessions."""

import shutil
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.measure import measurement_slot
from aaco_pipeline.resources.project import HOME_VARIABLE, LAKE_VARIABLE, Project
from tests.cpu_seconds import CpuSeconds
from tests.places import CONFIGS, ROOT
from tests.trace_processor import trace_processor_address

if TYPE_CHECKING:
    import dagster as dg

# No test asserts wall-clock seconds: a shared machine may stop for longer than any deadline, and be slow at drawing.
# `ci` runs the same few examples each time. Hypothesis has one of that name, from which all inherit where $CI is set.
_UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", _UNTIMED, derandomize=True, database=None, max_examples=15)
settings.register_profile("nightly", _UNTIMED, derandomize=False, max_examples=200)
settings.load_profile("ci")

__all__ = ["trace_processor_address"]  # a fixture

CAPTURED_MODELS: Final = ("control_flow", "squeezenet")
CAPTURED_ITERATIONS: Final = 5
CAPTURED_WARMUP: Final = 2


@dataclass(frozen=True)
class CapturedLake:
    """A lake with one session of each of a few models, measured once for all tests. Look, do not touch."""

    lake: TraceLake
    sessions: Mapping[str, str]

    def copy(self, path: Path) -> TraceLake:
        """The same lake at `path`, to do anything with."""
        shutil.copytree(self.lake.path, path)
        return TraceLake(path)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what tells where the time goes."""
    parser.addoption("--cpu-seconds", type=Path, metavar="FILE", help="print CPU seconds by room; each test's to FILE")


def pytest_configure(config: pytest.Config) -> None:
    """Let interrupts be heard: a shell starts what it runs in the background deaf to them, and some tests send one."""
    if path := config.getoption("--cpu-seconds"):
        config.pluginmanager.register(CpuSeconds(path))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Property tests are not traced for coverage: a hundred times the same lines, at almost twice the time."""
    if config.pluginmanager.hasplugin("_cov"):
        for item in items:
            if is_hypothesis_test(getattr(item, "obj", None)):
                item.add_marker("no_cover")


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the folder of generated models, so that each is built once; the measurement slot is the tests' own."""
    cache, slot = tmp_path_factory.mktemp("cache"), tmp_path_factory.mktemp("slot")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AACO_CACHE", str(cache))
        patch.setattr(measurement_slot, "PLACES", (slot,))
        yield cache


@pytest.fixture(autouse=True)
def _no_project_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the lake or instance of whoever runs it, nor those that another test pointed this process to."""
    for name in (LAKE_VARIABLE, HOME_VARIABLE):
        monkeypatch.setenv(name, "")  # so that it is put back whatever the test does to it
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def no_stated_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo the width of 80 columns that is set for parallel tests: printed lines would follow it."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def lake_path(tmp_path: Path) -> Path:
    """Return a path for a lake; nothing is there yet."""
    return tmp_path / "lake"


@pytest.fixture
def empty_lake(lake_path: Path) -> TraceLake:
    """A lake in which nothing is yet."""
    return TraceLake(lake_path)


@pytest.fixture(scope="session")
def dagster_prepares_once() -> Iterator[None]:
    """Read the migrations of Dagster's databases once, and do not wait for the disk at what it commits.

    It reads them all whenever it opens an instance or begins a run, to know the last. A killed process loses nothing
    without the wait, and no test cuts the power.
    """
    from alembic.script import ScriptDirectory
    from sqlalchemy import Engine, event

    def unsynchronized(opened: Any, record: object) -> None:
        opened.execute("PRAGMA synchronous = OFF")

    event.listen(Engine, "connect", unsynchronized)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScriptDirectory, "from_config", cache(ScriptDirectory.from_config))
        yield
    event.remove(Engine, "connect", unsynchronized)


@pytest.fixture(scope="session")
def new_home(tmp_path_factory: pytest.TempPathFactory, dagster_prepares_once: None) -> Path:
    """A home for Dagster in which nothing has happened yet: its empty databases take seconds to make, so once."""
    import dagster as dg

    home = tmp_path_factory.mktemp("new") / "home"
    home.mkdir()
    (home / "dagster.yaml").symlink_to(ROOT / "dagster.yaml")
    with dg.DagsterInstance.from_config(str(home)) as instance:
        instance.get_dynamic_partitions("session")
    return home


@pytest.fixture
def dagster_home(tmp_path: Path, new_home: Path) -> Path:
    """A home for Dagster of the test's own, with the project's settings."""
    home = tmp_path / "dagster_home"
    shutil.copytree(new_home, home, symlinks=True)
    return home


@pytest.fixture
def instance(dagster_home: Path) -> "Iterator[dg.DagsterInstance]":
    """Make a Dagster instance for the test, on disk as a user's is."""
    import dagster as dg

    with dg.DagsterInstance.from_config(str(dagster_home)) as opened:
        yield opened


@pytest.fixture
def project(lake_path: Path, dagster_home: Path) -> Project:
    """This checkout's settings and registries, with a lake and an instance of the test's own."""
    return Project(ROOT, lake_path, dagster_home)


@pytest.fixture
def project_environment(lake_path: Path, tmp_path: Path, cache_folder: Path) -> dict[str, str]:
    """A project in which nothing is yet, as environment variables for a child process, over `os.environ`."""
    home = tmp_path / "dagster_home"
    return {LAKE_VARIABLE: str(lake_path), HOME_VARIABLE: str(home), "AACO_CACHE": str(cache_folder)}


@pytest.fixture(scope="session")
def captured(tmp_path_factory: pytest.TempPathFactory, cache_folder: Path) -> CapturedLake:
    """Small sessions, really measured, through the stages' plain functions: no Dagster stands between."""
    from aaco_pipeline.assets.stage import Session, materialize
    from aaco_pipeline.capture.request import MeasurementRequest
    from aaco_pipeline.lake.layout import new_session_id
    from aaco_pipeline.resources.measure.runner import InferenceRunner

    lake = TraceLake(tmp_path_factory.mktemp("captured") / "lake")
    runner = InferenceRunner(configs=str(CONFIGS))
    sessions: dict[str, str] = {}
    for model in CAPTURED_MODELS:
        session = sessions[model] = new_session_id()
        launch = MeasurementRequest(model=model, iterations=CAPTURED_ITERATIONS, warmup=CAPTURED_WARMUP)
        lake.request(session, launch.to_json())
        materialize(Session(lake, session, CONFIGS, runner.measure))
    return CapturedLake(lake, sessions)
