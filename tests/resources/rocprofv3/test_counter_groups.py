"""Sets of counters, and groups of them that fit into a pass."""

from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.errors import AacoError, UnavailableError, UsageError
from aaco_pipeline.resources.configuration import load_counter_sets
from aaco_pipeline.resources.rocprofv3.counter_groups import counter_block, counter_groups
from tests.places import CONFIGS, SHARED

SLOTS: Final = {"SQ": 2, "TCC": 1}


NAMES: Final = st.builds(
    lambda block, n: f"{block}_{n}", st.sampled_from(["SQ", "SQC", "TCC", "GL2C", "FETCH"]), st.integers(0, 9)
)


@given(st.lists(NAMES, max_size=30))
def test_groups_hold_every_counter_once_and_no_block_over_its_slots(counters: list[str]) -> None:
    groups = counter_groups(counters, SLOTS)
    assert sorted(counter for group in groups for counter in group) == sorted(set(counters))
    for group in groups:
        blocks = [counter_block(counter) for counter in group]
        assert all(blocks.count(block) <= SLOTS.get(block, 1) for block in blocks)
        assert len(group) == 1 or set(blocks) <= set(SLOTS)
    assert groups == counter_groups(counters, SLOTS)
    assert groups == counter_groups([*counters, *counters], SLOTS)


def test_counters_of_different_blocks_share_a_group_and_are_filled_in_order() -> None:
    counters = ["SQ_A", "SQ_B", "TCC_A", "SQC_C", "TCC_B", "FETCH_SIZE", "SQ_D"]
    assert counter_groups(counters, SLOTS) == (("SQ_A", "SQ_B", "TCC_A"), ("SQC_C", "TCC_B", "SQ_D"), ("FETCH_SIZE",))
    assert counter_groups([], SLOTS) == ()


def test_the_sets_of_the_registry_fit_on_every_architecture_they_name() -> None:
    sets = load_counter_sets(CONFIGS / "counter_sets.yaml")
    assert {"basic", "memory", "compute", "occupancy"} <= set(sets.sets)
    for name, by_architecture in sets.sets.items():
        for architecture, counters in by_architecture.items():
            groups = sets.groups(name, architecture)
            assert sorted(c for group in groups for c in group) == sorted(counters)
            assert len(set(counters)) == len(counters)
    assert len(sets.groups("basic", "gfx942")) == 1
    assert len(sets.groups("basic,memory", "gfx942")) == 3
    assert [len(group) for group in sets.groups("basic", "gfx1151")] == [1, 1, 1]


@pytest.mark.parametrize(
    ("architecture", "folder"), [("gfx908", "MI100"), ("gfx942", "MI300X_A1"), ("gfx950", "MI350")]
)
@pytest.mark.skipif(not (SHARED / "counters").is_dir(), reason="the real counter captures are not on this host")
def test_the_counters_of_the_registry_are_ones_that_real_devices_gave(architecture: str, folder: str) -> None:
    text = "".join(path.read_text() for path in (SHARED / "counters" / "vcopy" / folder).glob("*.csv"))
    real = set(text.replace('"', ",").replace("\n", ",").split(","))
    sets = load_counter_sets(CONFIGS / "counter_sets.yaml").sets
    wanted = {counter for one in sets.values() for counter in one.get(architecture, ())}
    # No capture of that device has the type F8; it is in the formulas of AMD's own profiler.
    assert wanted - real <= ({"SQ_INSTS_VALU_MFMA_MOPS_F8"} if architecture == "gfx942" else set())


@pytest.mark.parametrize(
    ("names", "architecture", "kind", "words"),
    [
        ("basics", "gfx942", UsageError, "unknown set 'basics'; expected one or several of basic, memory"),
        ("basic,", "gfx942", UsageError, "unknown set ''"),
        ("memory", "gfx1100", UnavailableError, "the set memory names none for gfx1100, only for gfx908, gfx90a"),
    ],
)
def test_a_set_that_means_nothing_is_refused(names: str, architecture: str, kind: type[AacoError], words: str) -> None:
    with pytest.raises(kind, match=words):
        load_counter_sets(CONFIGS / "counter_sets.yaml").groups(names, architecture)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("counter_sets: 3", "counter_sets: found 3; expected a valid dictionary"),
        (
            "counter_sets: {a: [{architectures: [gfx942], counters: []}]}",
            r"a\[0\]\.counters: found a list of 0; expected a list of counters, at least one",
        ),
        (
            "counter_sets: {a: [{architectures: [MI300], counters: [A]}]}",
            "found the text 'MI300'; expected an architecture, such as gfx942",
        ),
        (
            "counter_sets: {a: [{architectures: [gfx942], counters: [--att]}]}",
            "found the text '--att'; expected a name of letters",
        ),
        ("counter_sets: {}\nslot: []", r"slot: found an unknown key; .* \(did you mean slots\?\)"),
        (
            "counter_sets: {}\nslots: [{architectures: [gfx942], source: s, blocks: {SQ: 0}}]",
            "found 0; expected how many counters fit, 1 or more",
        ),
        (
            "counter_sets: {}\nslots: [{architectures: [gfx942], blocks: {SQ: 1}}]",
            "source: found nothing; it is required",
        ),
    ],
)
def test_a_file_of_sets_out_of_form_is_refused_by_its_key(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "counter_sets.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=words) as refused:
        load_counter_sets(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert "\n" not in str(refused.value)
