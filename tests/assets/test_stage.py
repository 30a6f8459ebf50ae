"""Stages are found by module, ordered by tables, versioned by code, and publish only what they declare."""

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from shutil import copyfile
from types import ModuleType
from typing import Any, Final

import dagster as dg
import polars as pl
import pytest

from aaco_pipeline.assets import stage as stage_module
from aaco_pipeline.assets.stage import (
    ALL_KINDS,
    EVIDENCE,
    Outcome,
    Session,
    materialize,
    publish,
    stages,
    stages_of,
    state_expected,
    views,
)
from aaco_pipeline.automation.stage_assets import column_schema, stage_assets
from aaco_pipeline.automation.stage_events import check_specs
from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.contracts import all_tables, contract
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.session_stages import CONTRACT
from tests.conftest import CapturedLake
from tests.places import CONFIGS, ROOT
from tests.sessions import republished, tables_of

ROOM: Final = ROOT / "aaco_pipeline" / "assets"
KINDS: Final = sorted(ALL_KINDS)
NUMBERS: Final = count()
#: One stage as a module of the room has it; `{declares}` are the arguments of its decorator.
MODULE: Final = '''
from .stage import Outcome, stage


@stage({declares}, group="capture", kinds=("parquet",))
def {name}(session):
    """What is it?"""
    return Outcome({{}})
'''

Room = Callable[..., Any]


def module(name: str, declares: str = "") -> str:
    return MODULE.format(name=name, declares=declares or "reads=()")


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Room]:
    """Makes a package with a room of stages as this project's is, and gives its `stage` module, freshly imported."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def made(modules: dict[str, str], **others: str) -> ModuleType:
        package = f"package_{next(NUMBERS)}"
        folder = tmp_path / package / "assets"
        folder.mkdir(parents=True)
        for path in (tmp_path / package / "__init__.py", folder / "__init__.py"):
            path.touch()
        copyfile(ROOM / "stage.py", folder / "stage.py")
        for name, text in modules.items():
            (folder / f"{name}.py").write_text(text)
        for name, text in others.items():
            path = tmp_path / package / f"{name.replace('__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        importlib.invalidate_caches()
        return importlib.import_module(f"{package}.assets.stage")

    yield made
    for name in set(sys.modules) - before:
        del sys.modules[name]


# Which stages there are, and in which order.


def test_every_module_of_the_room_is_a_stage_of_its_name() -> None:
    found = {**stages(), **views()}
    assert set(found) == {path.stem for path in ROOM.glob("*.py")} - {"stage", "__init__"}
    for name, one in found.items():
        assert one.name == name
        assert one.function.__module__ == f"aaco_pipeline.assets.{name}"


def test_a_new_module_is_a_stage_without_being_listed_anywhere(room: Room) -> None:
    assert list(room({"first": module("first"), "second": module("second")}).stages()) == ["first", "second"]


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ('"""Nothing."""\n', 0),
        (module("another"), 1),
        (module("odd") + module("second").replace("from .stage import Outcome, stage\n", ""), 2),
        ("from .first import first\n", 0),
    ],
    ids=["none", "another name", "two", "borrowed"],
)
def test_a_module_that_does_not_hold_one_stage_of_its_name_is_an_error_naming_it(
    text: str, holds: int, room: Room
) -> None:
    found = room({"first": module("first"), "odd": text})
    with pytest.raises(TypeError, match=rf"{found.__package__}\.odd: holds {holds} stages; a module of this package"):
        found.stages()


def test_a_stage_comes_after_those_that_fill_what_it_reads_and_those_it_names(room: Room) -> None:
    found = room(
        {
            "a": module("a", 'reads=("gaps",), after=("d",)'),
            "b": module("b", 'publishes=("gaps", "devices"), reads=("devices",)'),
            "c": module("c", 'publishes=("gaps",)'),
            "d": module("d"),
        }
    ).stages()
    assert {name: one.dependencies for name, one in found.items()} == {
        "a": ("b", "c", "d"),
        "b": (),
        "c": (),
        "d": (),
    }
    assert list(found)[-1] == "a"


def test_a_stage_after_one_that_does_not_exist_is_an_error_naming_it(room: Room) -> None:
    with pytest.raises(KeyError, match="nowhere"):
        room({"a": module("a", 'after=("nowhere",)')}).stages()


def test_no_stage_reads_a_table_that_no_stage_before_it_publishes() -> None:
    published: set[str] = set()
    for name, one in stages().items():
        assert set(one.reads) <= published, name
        published |= set(one.publishes)
    assert published | {EVIDENCE} <= set(all_tables())


@pytest.mark.parametrize("kind", KINDS)
def test_the_stages_of_a_kind_are_those_that_name_it_in_the_order_they_run(kind: Any) -> None:
    assert stages_of(kind) == tuple(name for name in stages() if kind in stages()[name].session_kinds)
    assert stages_of(kind)[0] == "capture"
    assert not {*stages_of(kind)} & {*views()}


def test_a_stage_of_no_kind_of_session_is_a_view_that_publishes_nothing(room: Room) -> None:
    found = room({"a": module("a", 'session_kinds=(), after=("b",)'), "b": module("b")})
    assert (list(found.stages()), list(found.views())) == (["b"], ["a"])
    assert (found.views()["a"].dependencies, found.views()["a"].tables) == (("b",), ())


def test_a_session_does_not_lack_what_is_a_view_though_it_is_asked_for(empty_lake: TraceLake) -> None:
    session = "20260102T030405Z-0a1b2c3d"
    state_expected(empty_lake, session, ["report", "capture"])
    assert set(empty_lake.progress(session).expected) == set(stages_of("measured"))


def test_a_stage_for_some_kinds_only_is_not_asked_of_others(room: Room) -> None:
    found = room({"a": module("a", 'session_kinds=("measured",)'), "b": module("b")})
    assert {kind: found.stages_of(kind) for kind in KINDS} == {
        "ingested": ("b",),
        "measured": ("a", "b"),
        "profiled": ("b",),
        "program": ("b",),
        "timed": (),
    }


@pytest.mark.parametrize("name", [*stages(), *views()])
def test_a_stage_and_its_asset_say_all_that_people_are_shown(name: str) -> None:
    one = {**stages(), **views()}[name]
    asset = next(asset for asset in stage_assets() if dg.AssetKey(name) in asset.keys)
    spec = asset.get_asset_spec(dg.AssetKey(name))
    assert one.question.endswith((".", "?"))
    assert spec.description == one.question
    assert (spec.group_name, spec.kinds) == (one.group, set(one.kinds))
    assert spec.kinds
    assert spec.owners
    assert spec.code_version == (None if one.is_view else one.code_version)
    assert spec.metadata["dagster/column_schema"] == column_schema(one)
    contract_check = [] if one.is_view else [CONTRACT]
    assert [check.name for check in check_specs(one)] == [*contract_check, *(check.name for check in one.checks)]
    own = {check.key for check in asset.check_specs if check.asset_key == spec.key}
    assert own == {check.key for check in check_specs(one)}


# The version of a stage's code.

USING: Final = "from aaco_pipeline.hardware.ceilings import FORMATS\nfrom aaco_pipeline.errors import UsageError\n"


def version(room: Room, text: str, **others: str) -> str:
    rooms = {"hardware__ceilings": "", "analysis__timeline": "", "errors": "", **others}
    return str(room({"a": text}, **rooms).stages()["a"].code_version)


def test_a_code_version_changes_with_the_module_and_with_what_it_imports_from(room: Room) -> None:
    text = USING.replace("FORMATS", "spec_ceilings") + module("a")
    before = version(room, text)
    assert version(room, text) == before
    assert version(room, text, analysis__timeline="VALUE = 1\n") == before
    assert version(room, text + "#\n") != before
    assert version(room, text, hardware__ceilings="VALUE = 1\n") != before
    assert version(room, text, errors="VALUE = 1\n") != before


def test_a_code_version_changes_with_any_file_of_a_hall_that_is_imported_from(room: Room) -> None:
    text = "from aaco_pipeline.analysis.timeline.activities import device_activities\n" + module("a")
    hall = {"analysis__timeline__activities": "", "analysis__timeline__gaps": ""}
    before = str(room({"a": text}, **hall).stages()["a"].code_version)
    hall["analysis__timeline__gaps"] = "VALUE = 1\n"
    assert room({"a": text}, **hall).stages()["a"].code_version != before


def test_a_code_version_changes_with_the_contract_of_a_table_that_is_published(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = room({"a": module("a", 'publishes=("devices",)')})
    one = found.stages()["a"]
    before = one.code_version
    monkeypatch.setattr(found, "contract", lambda name: replace(contract(name), version=99))
    assert replace(one).code_version != before


# Publishing.


@pytest.mark.parametrize(
    ("tables", "stray"),
    [
        ((), "first_calls, gaps, kernel_stats, outlier_dispatches, session_metrics, session_parts, timeline"),
        (("devices",), "devices, first_calls, gaps, "),
    ],
)
def test_a_stage_that_made_other_tables_than_it_declares_publishes_nothing(
    tables: tuple[str, ...], stray: str, empty_lake: TraceLake
) -> None:
    one, session = stages()["timeline"], Session(empty_lake, "20260102T030405Z-0a1b2c3d", CONFIGS)
    with pytest.raises(UsageError, match=f"stage timeline declares other tables than it made: {stray}"):
        publish(session, one, Outcome(dict.fromkeys(tables, pl.DataFrame())))
    assert empty_lake.sessions() == []


def test_the_evidence_of_a_stage_is_published_beside_its_tables(empty_lake: TraceLake) -> None:
    session = Session(empty_lake, "20260102T030405Z-0a1b2c3d", CONFIGS)
    one = replace(stages()["capture"], publishes=())
    (entry,) = publish(session, one, Outcome({}, [Evidence("page", "present")]))
    assert (entry.table, entry.stage, entry.rows) == (EVIDENCE, "capture", 1)
    assert tables_of(empty_lake, session.id, "capture")[EVIDENCE].item(0, "stage") == "capture"


def test_only_the_stages_asked_for_are_run_in_their_order(captured: CapturedLake, lake_path: Path) -> None:
    lake, session = captured.copy(lake_path), captured.sessions["control_flow"]
    assert list(materialize(Session(lake, session, CONFIGS), ["timeline", "kernel_trace"])) == [
        "kernel_trace",
        "timeline",
    ]


# What a session's stages share.


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every table that is read from a lake from now on."""
    real, found = TraceLake.read, []

    def read(lake: TraceLake, name: str, *arguments: Any, **settings: Any) -> pl.DataFrame:
        found.append(name)
        return real(lake, name, *arguments, **settings)

    monkeypatch.setattr(TraceLake, "read", read)
    return found


def test_a_table_is_read_once_for_all_stages_until_it_is_published_anew(
    captured: CapturedLake, lake_path: Path, reads: list[str]
) -> None:
    lake, name = captured.copy(lake_path), captured.sessions["control_flow"]
    session = Session(lake, name, CONFIGS)
    first = session.tables("gaps", "kernels")
    assert "session_id" not in first["gaps"].columns
    assert session.tables("gaps")["gaps"] is first["gaps"]
    assert reads == ["gaps", "kernels"]
    republished(lake, name, "timeline", gaps=tables_of(lake, name, "timeline")["gaps"].head(1))
    assert session.tables("gaps")["gaps"].height == 1


def test_a_large_table_is_not_kept(captured: CapturedLake, reads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_module, "_KEPT_BYTES", 0)
    session = Session(captured.lake, captured.sessions["control_flow"], CONFIGS)
    assert session.tables("gaps")["gaps"].equals(session.tables("gaps")["gaps"])
    assert reads == ["gaps", "gaps"]


OF_GAPS: Final = {"gaps": ("start_ns",)}


def test_what_is_derived_from_tables_is_computed_once_until_one_is_published_anew(
    captured: CapturedLake, lake_path: Path
) -> None:
    lake, name = captured.copy(lake_path), captured.sessions["control_flow"]
    session, calls = Session(lake, name, CONFIGS), []

    def height(tables: Any) -> int:
        calls.append(tables)
        return int(tables["gaps"].height)

    assert session.derive(height, OF_GAPS) == session.derive(height, OF_GAPS) > 1
    assert len(calls) == 1
    republished(lake, name, "timeline", gaps=tables_of(lake, name, "timeline")["gaps"].head(1))
    assert session.derive(height, OF_GAPS) == 1
    assert [tables["gaps"].columns for tables in calls] == [["start_ns"]] * 2
    session.forget()
    assert session.derive(height, OF_GAPS) == 1
    assert len(calls) == 3
