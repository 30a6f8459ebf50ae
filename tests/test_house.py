"""The picture of the rooms is the one that the imports give, and lines of code are counted without what is none."""

import importlib.util
import sys
from types import ModuleType

import pytest

from tests.places import ROOT


def script(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def house() -> ModuleType:
    return script("house")


def test_the_picture_is_up_to_date(house: ModuleType) -> None:
    assert house.PICTURE.read_text() == house.drawn(), "run: python docs/house.py"


def test_every_room_has_a_purpose_and_no_other(house: ModuleType) -> None:
    assert set(house.PURPOSE) == set(house.house())


def test_an_arrow_that_a_longer_path_implies_is_left_out(house: ModuleType) -> None:
    arrows = {"cli": {"report", "lake"}, "report": {"lake"}, "lake": set[str]()}
    assert house.reduced(arrows) == {"cli": {"report"}, "report": {"lake"}, "lake": set()}
    assert house.floors(house.reduced(arrows)) == {"cli": 0, "report": 1, "lake": 2}


def test_a_circle_of_rooms_is_named(house: ModuleType) -> None:
    with pytest.raises(SystemExit, match="circle: lake, report"):
        house.reduced({"cli": {"lake"}, "lake": {"report"}, "report": {"lake"}})


def test_code_is_counted_without_blank_lines_comments_and_docstrings() -> None:
    text = (
        '"""A module."""\n\n# A remark.\nVALUE = """one\n\ntwo"""\n\n\n'
        'def f() -> None:\n    """What."""\n    print(1)  # now\n'
    )
    assert script("count").code_lines(text) == 4
