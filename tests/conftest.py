"""What all tests share: an environment of their own, a project at a temporary path, and one lake of real sessions."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import settings

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.project import HOME_VARIABLE, LAKE_VARIABLE, Project
from tests.places import ROOT

if TYPE_CHECKING:
    import dagster as dg

# No test asserts wall-clock seconds, and a shared machine may stop for longer than any deadline.
settings.register_profile("aaco", deadline=None)
settings.load_profile("aaco")

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


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where generated models are kept, so that each is built once; the measurement slot is the tests' own, too."""
    cache, slot = tmp_path_factory.mktemp("cache"), tmp_path_factory.mktemp("slot")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AACO_CACHE", str(cache))
        patch.setenv("TMPDIR", str(slot))
        patch.setattr(tempfile, "tempdir", str(slot))
        yield cache


@pytest.fixture(autouse=True)
def _no_project_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the lake or instance of whoever runs it, nor those that another test pointed this process to."""
    for name in (LAKE_VARIABLE, HOME_VARIABLE):
        monkeypatch.setenv(name, "")  # so that it is put back whatever the test does to it
        monkeypatch.delenv(name)


@pytest.fixture
def lake_path(tmp_path: Path) -> Path:
    """Where a lake may come to be; nothing is there yet."""
    return tmp_path / "lake"


@pytest.fixture(scope="session")
def new_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
    """A Dagster instance of the test's own, on disk as a person's is."""
    import dagster as dg

    with dg.DagsterInstance.from_config(str(dagster_home)) as opened:
        yield opened


@pytest.fixture
def project(lake_path: Path, dagster_home: Path) -> Project:
    """This checkout's settings and registries, with a lake and an instance of the test's own."""
    return Project(ROOT, lake_path, dagster_home)


@pytest.fixture
def project_environment(lake_path: Path, dagster_home: Path, cache_folder: Path) -> dict[str, str]:
    """The same project as environment variables for a child process, to be put over `os.environ`."""
    return {LAKE_VARIABLE: str(lake_path), HOME_VARIABLE: str(dagster_home), "AACO_CACHE": str(cache_folder)}


@pytest.fixture(scope="session")
def captured(tmp_path_factory: pytest.TempPathFactory, cache_folder: Path) -> CapturedLake:
    """Small sessions, really measured, through the stages' plain functions: no Dagster stands between."""
    from aaco_pipeline.assets.att_enrichment import read_att_enrichment
    from aaco_pipeline.assets.capture import take_capture
    from aaco_pipeline.assets.classification import read_classification
    from aaco_pipeline.assets.critical_path import read_critical_path
    from aaco_pipeline.assets.inference_run import read_inference_run
    from aaco_pipeline.assets.kernel_trace import read_kernel_trace
    from aaco_pipeline.assets.model_graph import read_model_graph
    from aaco_pipeline.assets.perfetto_trace import write_perfetto_trace
    from aaco_pipeline.assets.report import write_report
    from aaco_pipeline.assets.roofline import read_roofline
    from aaco_pipeline.assets.session_environment import read_environment
    from aaco_pipeline.assets.telemetry import read_telemetry
    from aaco_pipeline.assets.timeline import read_timeline
    from aaco_pipeline.capture.request import MeasurementRequest
    from aaco_pipeline.lake.identity import new_session_id
    from aaco_pipeline.resources.bottleneck_rules import RULES_FILE, load_bottleneck_rules
    from aaco_pipeline.resources.dagster_resources import InferenceRunner

    lake = TraceLake(tmp_path_factory.mktemp("captured") / "lake")
    runner = InferenceRunner(configs=str(ROOT / "configs"))
    rules = load_bottleneck_rules(ROOT / "configs" / RULES_FILE)
    sessions: dict[str, str] = {}
    for model in CAPTURED_MODELS:
        session = sessions[model] = new_session_id()
        launch = MeasurementRequest(model=model, iterations=CAPTURED_ITERATIONS, warmup=CAPTURED_WARMUP)
        lake.request(session, launch.to_json())
        lake.publish(session, "capture", take_capture(lake, session, runner, lambda line: None).tables)
        lake.publish(session, "session_environment", read_environment(lake, session).tables)
        lake.publish(session, "inference_run", read_inference_run(lake, session).tables)
        lake.publish(session, "kernel_trace", read_kernel_trace(lake, session).tables)
        lake.publish(session, "telemetry", read_telemetry(lake, session).tables)
        lake.publish(session, "timeline", read_timeline(lake, session).tables)
        lake.publish(session, "critical_path", read_critical_path(lake, session).tables)
        lake.publish(session, "model_graph", read_model_graph(lake, session).tables)
        lake.publish(session, "att_enrichment", read_att_enrichment(lake, session).tables)
        lake.publish(session, "roofline", read_roofline(lake, session).tables)
        lake.publish(session, "classification", read_classification(lake, session, rules).tables)
        lake.publish(session, "perfetto_trace", write_perfetto_trace(lake, session).tables)
        lake.publish(session, "report", write_report(lake, session).tables)
    return CapturedLake(lake, sessions)
