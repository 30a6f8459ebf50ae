"""Calibrations are kept completely, checked when read, and used only for the matching machine and threads."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.calibrations import (
    FORMAT_VERSION,
    MACHINE_FACTS,
    MOST_BYTES,
    Calibration,
    Ceiling,
    ceilings_for,
    machine_digest,
    machine_of,
    read_calibration,
    write_calibration,
)
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.health import faults, mend
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import conform

FACTS: Final = {
    ("host", "name"): "one",
    ("cpu", "model"): "A CPU",
    ("cpu", "usable_cpus"): "8",
    ("cpu", "governor"): None,
    ("package", "numpy"): "2.0",
}
MACHINE: Final = machine_of(FACTS)
DRAM: Final = Ceiling("dram", None, 5.5e10, "byte/s", "a kernel")
VECTOR: Final = Ceiling("vector", "fp32", 2.5e11, "flop/s", "a product")
CALIBRATION: Final = Calibration(MACHINE, 2, "2026-11-21T10:00:00Z", (VECTOR, DRAM), {"l3": "too small"}, ("noisy",))


def environment(**changes: str | None) -> pl.DataFrame:
    facts: dict[tuple[str, str], str | None] = dict(FACTS)
    for name, value in changes.items():
        category, _, key = name.partition("__")
        facts[category, key] = value
    rows = [(category, key, value, True) for (category, key), value in facts.items()]
    return pl.DataFrame(rows, schema=["category", "key", "value", "in_fingerprint"], orient="row")


def devices(*handles: str) -> pl.DataFrame:
    return pl.DataFrame({"device_id": [3 + n for n in range(len(handles))], "handle": list(handles)})


def file_of(lake: Path) -> Path:
    return lake / "calibrations" / CALIBRATION.file_name


names = st.text(min_size=1, max_size=20)
rates = st.floats(min_value=1e-3, max_value=1e18)


@given(
    st.lists(st.builds(Ceiling, names, st.none() | names, rates, st.sampled_from(["flop/s", "op/s", "byte/s"]), names)),
    st.dictionaries(names, names),
    st.integers(1, 10_000),
)
def test_what_is_written_is_what_is_read_and_equal_ones_are_equal_bytes(
    ceilings: list[Ceiling], absent: dict[str, str], threads: int
) -> None:
    made = replace(CALIBRATION, ceilings=tuple(ceilings), absent=absent, threads=threads)
    assert Calibration.from_bytes(made.to_bytes(), "here") == made
    assert Calibration.from_bytes(made.to_bytes(), "here").to_bytes() == made.to_bytes()


def test_a_later_calibration_takes_the_place_of_the_earlier_and_another_number_of_threads_does_not(
    tmp_path: Path,
) -> None:
    first = write_calibration(tmp_path, CALIBRATION)
    assert write_calibration(tmp_path, replace(CALIBRATION, ceilings=(DRAM,))) == first == file_of(tmp_path)
    other = write_calibration(tmp_path, replace(CALIBRATION, threads=1))
    assert sorted(path.name for path in first.parent.iterdir()) == sorted([first.name, other.name])
    assert read_calibration(tmp_path, MACHINE, 2) == replace(CALIBRATION, ceilings=(DRAM,))
    assert read_calibration(tmp_path, MACHINE, 4) is None
    assert read_calibration(tmp_path, {**MACHINE, "cpu.model": "B CPU"}, 2) is None


@pytest.mark.parametrize("fact", MACHINE_FACTS, ids=".".join)
def test_every_fact_of_the_machine_tells_machines_apart(fact: tuple[str, str]) -> None:
    assert machine_digest(machine_of({**FACTS, fact: "another"})) != machine_digest(MACHINE)
    assert machine_digest(machine_of({**FACTS, ("package", "numpy"): "3.0"})) == machine_digest(MACHINE)


def altered(**changes: Any) -> bytes:
    return json.dumps({**CALIBRATION.document(), **changes}).encode()


def with_value(value: object) -> bytes:
    return altered(ceilings=[{**vars(DRAM), "value": value}])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        CALIBRATION.to_bytes()[:-10],
        altered(threads=0),
        altered(threads=True),
        altered(threads="2"),
        altered(machine=[]),
        altered(machine={"cpu.model": 7}),
        altered(absent={"l1": 1}),
        altered(calibration_version="1"),
        altered(ceilings=[{"resource": "dram"}]),
        altered(ceilings=[{**vars(DRAM), "unit": "GB/s"}]),
        altered(ceilings=[{**vars(DRAM), "reference": None}]),
        *map(with_value, (0, -1.0, None, True, "1", float("nan"), float("inf"))),
    ],
)
def test_a_damaged_file_is_refused_by_name_with_what_to_do(tmp_path: Path, content: bytes) -> None:
    path = write_calibration(tmp_path, CALIBRATION)
    path.write_bytes(content)
    with pytest.raises(LakeError) as refused:
        read_calibration(tmp_path, MACHINE, 2)
    assert str(refused.value).startswith(f"{path}: not a calibration (")
    assert "aaco calibrate" in str(refused.value)


def test_a_newer_version_is_refused_by_its_number_whatever_else_it_holds(tmp_path: Path) -> None:
    path = write_calibration(tmp_path, CALIBRATION)
    path.write_text(json.dumps({"calibration_version": FORMAT_VERSION + 1, "something": "new"}))
    with pytest.raises(LakeError, match=rf"version {FORMAT_VERSION + 1} is newer than {FORMAT_VERSION}.*upgrade"):
        read_calibration(tmp_path, MACHINE, 2)


def test_a_file_larger_than_any_calibration_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = write_calibration(tmp_path, CALIBRATION)
    os.truncate(path, MOST_BYTES * 1000)  # a hole: nothing of it is on the disk
    with pytest.raises(LakeError, match=f"larger than {MOST_BYTES} bytes"):
        read_calibration(tmp_path, MACHINE, 2)


def test_a_file_of_another_machine_under_this_ones_name_is_refused(tmp_path: Path) -> None:
    write_calibration(tmp_path, CALIBRATION).write_bytes(replace(CALIBRATION, threads=3).to_bytes())
    with pytest.raises(LakeError, match="belongs in"):
        read_calibration(tmp_path, MACHINE, 2)


def test_what_a_killed_writer_left_is_found_and_mended_and_calibrations_are_no_orphans(tmp_path: Path) -> None:
    lake = TraceLake(tmp_path)
    kept = write_calibration(tmp_path, CALIBRATION)
    left = kept.parent / ".tmp-4194305-00000000"
    left.write_bytes(b"half")
    (fault,) = faults(lake)
    assert (fault.kind, fault.path) == ("unfinished write", left)
    assert mend(lake, fault)
    assert faults(lake) == []
    assert read_calibration(tmp_path, MACHINE, 2) == CALIBRATION


def test_a_session_gets_the_ceilings_of_its_machine_for_its_cpu(tmp_path: Path) -> None:
    write_calibration(tmp_path, CALIBRATION)
    write_calibration(tmp_path, replace(CALIBRATION, threads=1, ceilings=(replace(DRAM, value=1.0),)))
    found = ceilings_for(tmp_path, environment(), devices("gpu", "cpu"), 2)
    assert found.reason is None
    assert found.frame is not None
    assert found.frame.columns == [c.name for c in contract("ceilings").columns if c.name != "session_id"]
    assert found.frame.rows() == [
        (4, "dram", None, 5.5e10, "byte/s", "measured", "a kernel"),
        (4, "vector", "fp32", 2.5e11, "flop/s", "measured", "a product"),
    ]
    assert conform(contract("ceilings"), found.frame, "20260101T000000Z-00000000").height == 2


@pytest.mark.parametrize(
    ("change", "threads", "reason"),
    [
        ({"cpu__model": None}, 2, "does not state on which host and CPU"),
        ({"host__name": None}, 2, "does not state on which host and CPU"),
        ({}, None, "does not state with how many threads"),
        ({}, 4, "calibrated with 2 threads, and the session ran with 4; run `aaco calibrate --threads 4`"),
        ({"host__name": "two"}, 2, "its machine was not calibrated; run `aaco calibrate --threads 2`"),
        ({"cpu__usable_cpus": "4"}, 2, "in another state: cpu.usable_cpus (calibrated 8, session 4)"),
        ({"cpu__governor": "powersave"}, 2, "cpu.governor (calibrated not known, session powersave)"),
    ],
)
def test_a_session_of_another_machine_gets_none_and_a_reason(
    tmp_path: Path, change: dict[str, str | None], threads: int | None, reason: str
) -> None:
    write_calibration(tmp_path, CALIBRATION)
    (tmp_path / "calibrations" / f"{'0' * 16}-2.json").write_text("torn, and of no matter here")
    (tmp_path / "calibrations" / "a user's notes").mkdir()
    found = ceilings_for(tmp_path, environment(**change), devices("cpu"), threads)
    assert found.frame is None
    assert found.reason is not None
    assert reason in found.reason


def test_a_session_without_its_cpu_among_the_devices_gets_none(tmp_path: Path) -> None:
    write_calibration(tmp_path, CALIBRATION)
    found = ceilings_for(tmp_path, environment(), devices("gpu"), 2)
    assert (found.frame, found.reason) == (None, "the session's devices do not include its CPU")


def test_a_lake_without_calibrations_has_none(tmp_path: Path) -> None:
    assert read_calibration(tmp_path / "no lake", MACHINE, 2) is None
    assert ceilings_for(tmp_path / "no lake", environment(), devices("cpu"), 2).reason is not None


def test_a_calibration_that_cannot_be_written_is_an_error_of_the_lake(tmp_path: Path) -> None:
    (tmp_path / "calibrations").write_text("a file where the folder belongs")
    with pytest.raises(LakeError, match="calibrations"):
        write_calibration(tmp_path, CALIBRATION)
