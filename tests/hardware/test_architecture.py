"""The data of the architectures: complete, sourced, and found by the names that tools give devices."""

import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

from aaco_pipeline.hardware import architecture as data
from aaco_pipeline.hardware.architecture import Architecture, SourcedValue, architecture, architectures, why_unknown

FOLDER = Path(str(resources.files("aaco_pipeline.hardware"))) / "architectures"
GPUS = [one for one in architectures() if one.vendor in ("AMD", "NVIDIA")]
KNOWN = ("gfx906", "gfx908", "gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1101", "gfx1102", "gfx1151")
MORE = ("gfx1200", "gfx1201", "sm_80", "sm_90", "x86_64")


def called(one: Architecture) -> str:
    return one.name


def numbers(value: Any, inherited: str | None) -> list[tuple[float, str | None]]:
    """Every number of a file's content with the source it stands under, by a reading of its own."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return []
    if isinstance(value, (int, float)):
        return [(value, inherited)]
    if isinstance(value, list):
        return [found for item in value for found in numbers(item, inherited)]
    inside = value.get("source", inherited)
    return [found for key, item in value.items() if key != "source" for found in numbers(item, inside)]


def test_the_architectures_asked_for_are_there_one_file_each() -> None:
    assert {one.name for one in architectures()} == {*KNOWN, *MORE}
    assert {path.stem for path in FOLDER.glob("*.yaml")} == {*KNOWN, *MORE}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_number_of_a_file_stands_under_a_source_that_the_file_names(path: Path) -> None:
    content = yaml.safe_load(path.read_text())
    base = yaml.safe_load((FOLDER / f"{content['base']}.yaml").read_text()) if "base" in content else {}
    named = {**base.get("sources", {}), **content.get("sources", {})}
    content.pop("wavefront_sizes", None)
    found = numbers({key: value for key, value in content.items() if key not in ("sources", "base")}, None)
    assert found
    assert [(number, source) for number, source in found if source not in named] == []


@pytest.mark.parametrize("one", GPUS, ids=called)
def test_a_gpu_is_complete(one: Architecture) -> None:
    assert {"vector", "vector_packed", "vector_integer"} <= set(one.operations)
    assert ("matrix" in one.operations) == (one.name != "gfx906")
    assert {"vl1d", "lds"} <= set(one.memory_levels)
    assert one.occupancy is not None
    assert set(one.occupancy.vector_registers) == set(one.wavefront_sizes) == set(one.instructions_per_clock_per_simd)
    assert one.simds_per_cu is not None
    assert one.occupancy.shared_by_simds.value == one.simds_per_cu.value * one.occupancy.shared_by_cus.value
    assert one.products
    assert (one.counter_family is not None) == (one.vendor == "AMD")
    assert (one.memory_transfers_per_clock is not None) == (one.vendor == "AMD")


@pytest.mark.parametrize("one", GPUS, ids=called)
def test_the_lds_of_the_levels_is_that_of_the_occupancy(one: Architecture) -> None:
    assert one.occupancy is not None
    level = one.memory_levels["lds"].bytes
    assert level is not None
    assert level.value * one.occupancy.shared_by_cus.value == one.occupancy.lds.bytes.value


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gfx942", "gfx942"),
        ("gfx942:sramecc+:xnack-", "gfx942"),
        ("GFX90A:xnack-", "gfx90a"),
        (" gfx1100 ", "gfx1100"),
        ("gfx940", "gfx942"),
        ("gfx941", "gfx942"),
        ("sm_90a", "sm_90"),
        ("x86_64", "x86_64"),
    ],
)
def test_names_with_features_and_aliases_are_understood(name: str, expected: str) -> None:
    found = architecture(name)
    assert found is not None
    assert found.name == expected


def test_the_unknown_is_none_and_is_said_plainly() -> None:
    assert architecture("gfx1300") is None
    assert architecture(None) is None
    assert why_unknown("gfx1300").startswith("nothing is known of the architecture gfx1300; known are gfx1100, ")
    assert why_unknown(None) == "the capture does not name the device's architecture"
    with pytest.raises(ValueError, match="is known"):
        why_unknown("gfx942:xnack+")


def test_every_file_describes_the_architecture_it_is_named_after_and_no_two_the_same() -> None:
    assert [one.name for one in architectures()] == sorted(path.stem for path in FOLDER.glob("*.yaml"))
    named = [alias for one in architectures() for alias in (one.name, *one.aliases)]
    assert len(set(named)) == len(named)


def test_only_what_is_asked_for_is_read() -> None:
    asked = (
        "from aaco_pipeline.hardware import architecture as a; assert a.architecture('gfx1102:xnack-').family;"
        "print(a._loaded.cache_info().currsize)"
    )
    found = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "1"


def test_a_file_laid_over_another_keeps_what_it_does_not_change() -> None:
    below, above = architecture("gfx1100"), architecture("gfx1102")
    assert below is not None and above is not None
    assert below.occupancy is not None and above.occupancy is not None
    assert below.operations == above.operations
    assert below.occupancy.vector_registers[32].rows.value == 1536
    assert above.occupancy.vector_registers[32].rows.value == 1024
    assert {product.name for product in above.products}.isdisjoint(product.name for product in below.products)
    strix = architecture("gfx1151")
    assert strix is not None
    assert "fp64" not in strix.operations["vector"], "a null takes a number away that is not known"


def content() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((FOLDER / "gfx906.yaml").read_text())
    return loaded


def test_a_number_without_a_source_does_not_load() -> None:
    broken = content()
    del broken["operations_per_clock_per_cu"]["vector"]["source"]
    with pytest.raises(ValueError, match="no known source"):
        data.parsed(broken)


def test_a_source_that_is_not_named_does_not_load() -> None:
    broken = content()
    broken["products"][0]["source"] = "hearsay"
    with pytest.raises(ValueError, match="no known source"):
        data.parsed(broken)


def test_a_field_that_is_not_understood_does_not_load() -> None:
    broken = content()
    broken["wave_size"] = 64
    with pytest.raises(ValueError, match="unknown wave_size"):
        data.parsed(broken)


def test_a_level_per_channel_needs_channels() -> None:
    broken = content()
    del broken["memory_levels"]["l2"]["channels_per_xcd"]
    with pytest.raises(ValueError, match="needs channels"):
        data.parsed(broken)


def test_a_broken_number_is_no_whole_number() -> None:
    assert SourcedValue(4.0, "recalled").whole == 4
    with pytest.raises(ValueError, match="not a whole number"):
        _ = SourcedValue(0.25, "recalled").whole
