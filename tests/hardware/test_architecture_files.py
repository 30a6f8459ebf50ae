"""The data of the architectures: complete, sourced, and found by the names that tools give devices."""

import copy
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

from aaco_pipeline.hardware import architecture_files as data
from aaco_pipeline.hardware.architecture import Architecture, SourcedValue
from aaco_pipeline.hardware.architecture_files import architecture, architectures, why_unknown

FOLDER = Path(str(resources.files("aaco_pipeline.hardware"))) / "architectures"
GPUS = [one for one in architectures() if one.vendor in ("AMD", "NVIDIA")]
CDNA = ("gfx906", "gfx908", "gfx90a", "gfx942", "gfx950")
RDNA = (
    *("gfx1030", "gfx1031", "gfx1032", "gfx1100", "gfx1101", "gfx1102", "gfx1103"),
    *("gfx1150", "gfx1151", "gfx1152", "gfx1153", "gfx1200", "gfx1201"),
)
MORE = ("gfx1250", "sm_80", "sm_90", "sm_100", "x86_64")
#: No matrix instructions, and no products that a document lists.
WITHOUT_MATRIX = ("gfx906", "gfx1030", "gfx1031", "gfx1032")
WITHOUT_PRODUCTS = ("gfx1153", "gfx1250")


def called(one: Architecture) -> str:
    return one.name


def numbers(value: Any, source: str | None, words: str | None) -> list[tuple[float, str | None, str | None]]:
    """Every number of a file's content with the source and the words it stands under, by a reading of its own."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return []
    if isinstance(value, (int, float)):
        return [(value, source, words)]
    if isinstance(value, list):
        return [found for item in value for found in numbers(item, source, words)]
    below = value.get("source", source), value.get("words", None if "source" in value else words)
    return [found for item in value.values() for found in numbers(item, *below)]


def test_the_architectures_asked_for_are_there_one_file_each() -> None:
    assert {one.name for one in architectures()} == {*CDNA, *RDNA, *MORE}
    assert {path.stem for path in FOLDER.glob("*.yaml")} == {*CDNA, *RDNA, *MORE}


def merged(path: Path) -> dict[str, Any]:
    """The content of a file over that of its base, without what holds no figures."""
    content = data._content(path.stem)
    return {key: value for key, value in content.items() if key not in ("sources", "wavefront_sizes")}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_number_of_a_file_stands_under_a_source_that_the_file_names_and_the_words_it_rests_on(path: Path) -> None:
    named = data._content(path.stem).get("sources", {})
    found = numbers(merged(path), None, None)
    assert found
    assert [(number, source) for number, source, _ in found if source not in named] == []
    assert [(number, source) for number, source, words in found if not words] == []


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_no_file_recalls_and_every_document_has_its_address(path: Path) -> None:
    assert "recalled" not in path.read_text().lower()
    for one in data._content(path.stem)["sources"].values():
        assert one["document"]
        assert one.get("address", "").startswith("http") or one.get("kind") == "measurement"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_figures_are_all_numbers_of_the_file_and_its_nulls(path: Path) -> None:
    one = architecture(path.stem)
    assert one is not None
    stated = [figure.value for figure in one.figures if figure.value is not None]
    assert sorted(stated) == sorted(number for number, _, _ in numbers(merged(path), None, None))
    assert len({figure.name for figure in one.figures}) == len(one.figures)
    for figure in one.figures:
        if figure.value is None:
            assert figure.note and (figure.source, figure.address, figure.words) == (None, None, None)
            assert one.why_null(figure.name) == figure.note


@pytest.mark.parametrize("one", GPUS, ids=called)
def test_a_gpu_is_complete(one: Architecture) -> None:
    assert {"vector", "vector_packed", "vector_integer"} <= set(one.operations)
    assert ("matrix" in one.operations) == (one.name not in WITHOUT_MATRIX)
    assert {"vl1d", "lds"} <= set(one.memory_levels)
    if one.occupancy is None:
        assert one.why_null("occupancy") is not None
        return
    assert set(one.occupancy.vector_registers) == set(one.wavefront_sizes) == set(one.instructions_per_clock_per_simd)
    assert one.simds_per_cu is not None
    assert one.occupancy.shared_by_simds.value == one.simds_per_cu.value * one.occupancy.shared_by_cus.value
    assert bool(one.products) == (one.name not in WITHOUT_PRODUCTS)
    assert (one.counter_family is not None) == (one.vendor == "AMD")
    transfers = one.memory_transfers_per_clock or one.why_null("memory_transfers_per_clock")
    assert (transfers is not None) == (one.vendor == "AMD")


@pytest.mark.parametrize("one", GPUS, ids=called)
def test_the_lds_of_the_levels_is_that_of_the_occupancy(one: Architecture) -> None:
    if one.occupancy is None:
        pytest.skip(f"of {one.name} no occupancy is known: {one.why_null('occupancy')}")
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
    assert why_unknown("gfx1300").startswith("nothing is known of the architecture gfx1300; known are gfx1030, ")
    assert why_unknown(None) == "the capture does not name the device's architecture"
    with pytest.raises(ValueError, match="is known"):
        why_unknown("gfx942:xnack+")


def test_every_file_describes_the_architecture_it_is_named_after_and_no_two_the_same() -> None:
    assert [one.name for one in architectures()] == sorted(path.stem for path in FOLDER.glob("*.yaml"))
    named = [alias for one in architectures() for alias in (one.name, *one.aliases)]
    assert len(set(named)) == len(named)


def test_only_what_is_asked_for_is_read() -> None:
    asked = (
        "from aaco_pipeline.hardware import architecture_files as a; assert a.architecture('gfx1102:xnack-').family;"
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
    assert strix.operations["vector"]["fp64"].value == 4
    assert "fp16" not in strix.operations["matrix"], "a null takes a number away that is not known"
    assert "RDNA 3.5" in str(strix.why_null("operations_per_clock_per_cu.matrix.fp16"))


def content() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((FOLDER / "gfx906.yaml").read_text())
    return loaded


#: A file of its own, small enough to break in one place.
SMALL: dict[str, Any] = {
    "name": "gfx0000",
    "vendor": "AMD",
    "family": "none",
    "compute_unit": "compute unit",
    "sources": {
        "paper": {"document": "A white paper", "address": "https://example.org/paper.pdf"},
        "run": {"document": "A benchmark on a card", "kind": "measurement"},
    },
    "operations_per_clock_per_cu": {
        "vector": {
            "source": "paper",
            "words": "Table 1",
            "note": "all of them",
            "fp64": 64,
            "fp32": {"value": 128, "words": "Table 2", "note": "this one"},
            "fp16": {"value": 256, "source": "run", "words": "128 GFLOP/s"},
            "int8": {"value": None, "reason": "nobody says"},
        }
    },
}


def small(**vector: Any) -> dict[str, Any]:
    """`SMALL` with other entries in its one block."""
    broken = copy.deepcopy(SMALL)
    broken["operations_per_clock_per_cu"]["vector"] |= vector
    return broken


def test_a_figure_has_its_own_words_else_those_of_its_block() -> None:
    read = data.parsed(SMALL).operations["vector"]
    paper = "https://example.org/paper.pdf"
    assert read["fp64"] == SourcedValue(64.0, "A white paper", "all of them", "Table 1", paper)
    assert read["fp32"] == SourcedValue(128.0, "A white paper", "this one", "Table 2", paper)
    assert read["fp16"] == SourcedValue(256.0, "A benchmark on a card", "all of them", "128 GFLOP/s", None)


def test_a_null_is_absent_from_what_computes_and_its_reason_is_listed() -> None:
    read = data.parsed(SMALL)
    assert set(read.operations["vector"]) == {"fp64", "fp32", "fp16"}
    place = "operations_per_clock_per_cu.vector"
    assert [(one.name, one.value) for one in read.figures] == [
        *((f"{place}.fp64", 64.0), (f"{place}.fp32", 128.0), (f"{place}.fp16", 256.0)),
        (f"{place}.int8", None),
    ]
    assert read.why_null(f"{place}.int8") == "nobody says"
    assert read.why_null(place) == "nobody says", "of a block the first"
    assert read.why_null(f"{place}.fp64") is None


@pytest.mark.parametrize(
    ("vector", "refusal"),
    [
        ({"fp64": {"value": 64, "source": "hearsay", "words": "Table 1"}}, "vector.fp64 has no known source"),
        ({"source": None}, "vector.fp64 has no known source"),
        ({"words": None}, "vector.fp64 has no words"),
        ({"words": "  "}, "vector.fp64 has no words"),
        ({"fp32": {"value": 128, "source": "run"}}, "vector.fp32 has no words"),
        ({"int8": None}, "vector.int8 is null and needs a reason"),
        ({"int8": {"value": None}}, "vector.int8 is null and needs a reason"),
        ({"int8": {"value": None, "reason": " "}}, "vector.int8 is null and needs a reason"),
        ({"int8": {"value": None, "reason": "nobody says", "source": "paper"}}, "and nothing else"),
        ({"int8": {"value": 64, "reason": "nobody says"}}, "not a number"),
        ({"int8": "many"}, "not a number"),
        ({"int8": True}, "not a number"),
    ],
)
def test_a_figure_that_nothing_supports_does_not_load(vector: dict[str, Any], refusal: str) -> None:
    with pytest.raises(ValueError, match=refusal):
        data.parsed(small(**vector))


@pytest.mark.parametrize(
    ("source", "refusal"),
    [
        ("A white paper", "names no document"),
        ("recalled", "names no document"),
        ({"address": "https://example.org"}, "names no document"),
        ({"document": " ", "address": "https://example.org"}, "names no document"),
        ({"document": "A white paper", "adress": "https://example.org"}, "names no document"),
        ({"document": "A white paper", "address": "https://example.org", "kind": "rumour"}, "names no document"),
        ({"document": "A white paper"}, "has no address"),
        ({"document": "A white paper", "address": ""}, "has no address"),
        ({"document": "recalled", "address": "https://example.org"}, "is recalled, which is no source"),
        ({"document": "A white paper, Recalled", "address": "https://example.org"}, "is recalled, which is no source"),
        ({"document": "recalled", "kind": "measurement"}, "is recalled, which is no source"),
    ],
)
def test_a_source_without_document_or_address_does_not_load_nor_does_recalled(source: Any, refusal: str) -> None:
    broken = copy.deepcopy(SMALL)
    broken["sources"]["paper"] = source
    with pytest.raises(ValueError, match=refusal):
        data.parsed(broken)


def test_what_is_laid_over_takes_over_no_words_of_another_source() -> None:
    below = copy.deepcopy(SMALL)
    place = "operations_per_clock_per_cu"
    over = data._laid_over(below, {"name": "gfx0001", place: {"vector": {"source": "run", "fp64": 32}}})
    with pytest.raises(ValueError, match=r"vector\.fp64 has no words"):
        data.parsed(over)
    over = data._laid_over(below, {place: {"vector": {"source": "run", "words": "seen", "fp64": 32}}})
    assert data.parsed(over).operations["vector"]["fp64"].words == "seen"
    null = data._laid_over(below, {place: {"vector": {"fp32": {"value": None, "reason": "not of this one"}}}})
    assert "fp32" not in data.parsed(null).operations["vector"], "a null replaces the whole figure"


def test_one_unknown_limit_leaves_no_occupancy_and_one_unknown_register_file_no_such_wavefronts() -> None:
    unknown = {"value": None, "reason": "nobody says"}
    for place in (("lds", "granule"), ("workgroups", "max_resident"), ("scalar_registers", "rows")):
        broken = content()
        broken["occupancy"][place[0]][place[1]] = unknown
        assert data.parsed(broken).occupancy is None, place
    broken = content()
    broken["occupancy"]["max_waves_per_simd"] = unknown
    assert data.parsed(broken).occupancy is None
    broken = content()
    broken["occupancy"]["vector_registers"]["wave32"] = {"rows": unknown, "granule": unknown}
    read = data.parsed(broken).occupancy
    assert read is not None
    assert set(read.vector_registers) == {64}


def test_a_figure_that_others_are_reckoned_with_is_there_be_it_as_a_null() -> None:
    for block, figure in (("lds", "granule"), ("workgroups", "max_resident")):
        broken = content()
        del broken["occupancy"][block][figure]
        with pytest.raises(ValueError, match=f"has no {figure}"):
            data.parsed(broken)
    broken = content()
    del broken["products"][0]["max_clock_mhz"]
    with pytest.raises(ValueError, match="MI60 has no max_clock_mhz"):
        data.parsed(broken)
    broken = content()
    del broken["memory_levels"]["lds"]["bytes_per_clock"]
    with pytest.raises(ValueError, match="lds has no bytes_per_clock"):
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
    assert SourcedValue(4.0, "a document").whole == 4
    with pytest.raises(ValueError, match="not a whole number"):
        _ = SourcedValue(0.25, "a document").whole
