"""Dumps of the amdgpu driver's sensor tables: every field of every version, and what is concluded from two of them."""

import base64
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats import gpu_metrics
from aaco_pipeline.formats.capture_tables import CaptureTables, Limits
from aaco_pipeline.formats.gpu_metrics.layouts import (
    ATTRIBUTE_TYPES,
    ATTRIBUTES,
    NOT_READINGS,
    SELF_DESCRIBING,
    VERSIONS,
    Version,
    layout,
)
from aaco_pipeline.formats.gpu_metrics.reading import ENERGY_UNIT_J, growth
from tests.formats.readings import checked, damaged, evidence_of, read_or_refused
from tests.places import SHARED

LAYOUTS = SHARED / "telemetry/gpu_metrics_layouts.json"
FIXED = tuple(version for version in VERSIONS if version != SELF_DESCRIBING)
ACCUMULATED = tuple(version for version in FIXED if version >= (1, 6))
SECOND = 10**9


def made(version: Version, count: int = 1, **values: Any) -> npt.NDArray[Any]:
    """`count` tables that report nothing but the header and `values`."""
    form = layout(version)
    tables = np.full(count * form.itemsize, 0xFF, np.uint8).view(form)
    tables["structure_size"] = form.itemsize
    tables["format_revision"], tables["content_revision"] = version
    for name, value in values.items():
        tables[name] = value
    return tables


def described(values: list[tuple[int, int, int, list[int]]], *, surplus: bytes = b"") -> bytes:
    """A self-describing table of (attribute, type, unit, values)."""
    body = b""
    for attribute, kind, unit, numbers in values:
        code = unit << 24 | kind << 20 | attribute << 10 | len(numbers)
        body += code.to_bytes(8, "little") + np.array(numbers, f"<{ATTRIBUTE_TYPES[kind]}").tobytes()
    body += surplus
    return (8 + len(body)).to_bytes(2, "little") + bytes(SELF_DESCRIBING) + len(values).to_bytes(4, "little") + body


def attribute(name: str) -> int:
    return ATTRIBUTES.index(name)


def reading_of(tmp_path: Path, content: bytes, name: str = "card0.bin") -> CaptureTables:
    path = tmp_path / name
    path.write_bytes(content)
    return checked(gpu_metrics.read(path))


@pytest.mark.skipif(not LAYOUTS.is_file(), reason="the table of layouts is not at hand (AACO_SHARED)")
@pytest.mark.parametrize("version", FIXED, ids=lambda version: f"1.{version[1]}")
def test_every_field_stands_where_the_drivers_structure_has_it(version: Version) -> None:
    stated = json.loads(LAYOUTS.read_text())[f"1.{version[1]}"]
    form = layout(version)
    assert form.itemsize == stated["size"]
    assert form.names is not None and list(form.names) == [field["name"] for field in stated["fields"]]
    for field in stated["fields"]:
        kind, offset = form.fields[field["name"]][:2]  # type: ignore[index]
        item, count = kind.subdtype or (kind, (1,))
        assert offset == field["offset"]
        assert count == (field["count"],)
        if field["type"].startswith("u"):
            assert item == np.dtype(f"<u{int(field['type'][1:]) // 8}")
        else:
            assert field["type"] == f"struct[{item.itemsize}]"


@pytest.mark.parametrize("version", FIXED, ids=lambda version: f"1.{version[1]}")
def test_every_value_of_every_field_comes_back_exactly(version: Version, tmp_path: Path) -> None:
    random = np.random.default_rng(version[1])
    form = layout(version)
    tables = random.integers(0, 255, 5 * form.itemsize, np.uint8).view(form)
    tables["structure_size"] = form.itemsize
    tables["format_revision"], tables["content_revision"] = version
    tables["system_clock_counter"] = 2**60 + np.arange(5)
    fields = reading_of(tmp_path, tables.tobytes()).details[f"fields_1.{version[1]}"]
    expected: dict[str, npt.NDArray[Any]] = {}
    for name in form.names or ():
        values = tables[name]
        if values.dtype.names:
            expected.update({f"xcp_{inner}": values[inner].reshape(5, -1) for inner in values.dtype.names})
        elif name not in NOT_READINGS:
            expected[name] = values
    assert set(fields.columns) == {"device_id", "time_ns", *expected}
    for name, values in expected.items():
        assert fields.get_column(name).to_list() == values.tolist(), name
    assert fields.get_column("time_ns").to_list() == [2**60 + number for number in range(5)]


@pytest.mark.parametrize("version", FIXED, ids=lambda version: f"1.{version[1]}")
def test_what_is_not_supported_is_null_and_never_zero(version: Version, tmp_path: Path) -> None:
    reading = reading_of(tmp_path, made(version, system_clock_counter=7).tobytes())
    fields = reading.details[f"fields_1.{version[1]}"].drop("device_id", "time_ns", "system_clock_counter")
    for column in fields.get_columns():
        assert (
            column.explode().null_count() == column.explode().len()
            if column.dtype.is_nested()
            else column.is_null().all()
        )
    sample = reading.tables["gpu_samples"].row(0, named=True)
    assert sample.pop("time_ns") == 7 and sample.pop("device_id") == 0
    assert set(sample.values()) == {None}
    assert evidence_of(reading)["gpu_samples.power_w"].status == "absent"


@pytest.mark.parametrize("version", FIXED, ids=lambda version: f"1.{version[1]}")
def test_samples_of_a_fixed_table(version: Version, tmp_path: Path) -> None:
    power = "average_socket_power" if version == (1, 3) else "curr_socket_power"
    clock: Any = 1700 if version == (1, 3) else [1700, 1900, *[0xFFFF] * 6]
    tables = made(
        version,
        system_clock_counter=5 * SECOND,
        temperature_hotspot=71,
        temperature_mem=60,
        average_gfx_activity=87,
        average_umc_activity=0,
        current_uclk=1300,
        energy_accumulator=65536 * 1000,
        pcie_link_speed=320,
        pcie_link_width=16,
        **{power: 512, "current_gfxclk": clock, **({"temperature_edge": 55} if version == (1, 3) else {})},
    )
    reading = reading_of(tmp_path, tables.tobytes())
    assert reading.tables["gpu_samples"].row(0, named=True) == {
        "time_ns": 5 * SECOND,
        "device_id": 0,
        "power_w": 512.0,
        "energy_j": 1000.0,
        "temperature_hotspot_c": 71.0,
        "temperature_memory_c": 60.0,
        "gfx_clock_mhz": 1700.0 if version == (1, 3) else 1800.0,
        "memory_clock_mhz": 1300.0,
        "gfx_activity_ratio": 0.87,
        "memory_activity_ratio": 0.0,
        "memory_used_bytes": None,
        "throttle_reasons": None,
        "temperature_gpu_c": 55.0 if version == (1, 3) else None,
        "pcie_generation": 5,
        "pcie_lanes": 16,
        "ecc_corrected": None,
        "ecc_uncorrected": None,
    }
    assert reading.tables["devices"].select("device_id", "vendor", "handle").row(0) == (0, "AMD", "card0")
    assert reading.tables["clock_domains"].select("domain", "offset_ns", "uncertainty_ns").row(0) == ("boottime", 0, 0)
    assert reading.details["source_rows"].rows() == [("gpu_metrics tables", 1, 1)]


def test_the_hottest_stack_counts_as_the_memorys_temperature(tmp_path: Path) -> None:
    tables = made((1, 3), system_clock_counter=1, temperature_mem=50, temperature_hbm=[49, 64, 0xFFFF, 52])
    assert reading_of(tmp_path, tables.tobytes()).tables["gpu_samples"].item(0, "temperature_memory_c") == 64


def test_bits_of_the_independent_throttle_status_are_named_as_the_driver_names_them(tmp_path: Path) -> None:
    states = [0, 1 << 1 | 1 << 36, 1 << 10 | 1 << 57, 2**64 - 1]
    tables = made((1, 3), 4, system_clock_counter=[1, 2, 3, 4], indep_throttle_status=np.array(states, np.uint64))
    reasons = reading_of(tmp_path, tables.tobytes()).tables["gpu_samples"].get_column("throttle_reasons").to_list()
    assert reasons == [[], ["PPT1", "TEMP_HOTSPOT"], ["bit 10", "FIT"], None]


def test_the_chip_specific_throttle_status_is_not_decoded(tmp_path: Path) -> None:
    reading = reading_of(tmp_path, made((1, 4), system_clock_counter=1, throttle_status=3).tobytes())
    assert reading.tables["gpu_samples"].item(0, "throttle_reasons") is None
    assert "differs by chip" in str(evidence_of(reading)["gpu_samples.throttle_reasons"].reason)
    assert reading.details["fields_1.4"].item(0, "throttle_status") == 3


@pytest.mark.parametrize("version", ACCUMULATED, ids=lambda version: f"1.{version[1]}")
def test_limits_power_and_energy_come_from_what_the_counters_grew_by(version: Version, tmp_path: Path) -> None:
    tables = made(
        version,
        4,
        system_clock_counter=[SECOND, 2 * SECOND, 4 * SECOND, 5 * SECOND],
        energy_accumulator=np.array([2**64 - 65536 * 300, 0, 65536 * 1400, 65536 * 1400], np.uint64),
        accumulation_counter=[2**32 - 100, 100, 300, 500],
        prochot_residency_acc=0,
        ppt_residency_acc=[2**32 - 10, 40, 40, 90],
        socket_thm_residency_acc=[7, 7, 107, 3],
        vr_thm_residency_acc=0,
    )
    reading = reading_of(tmp_path, tables.tobytes())
    between = reading.details["between_samples"]
    assert between.get_column("average_power_w").to_list() == [None, 300.0, 700.0, 0.0]
    assert between.get_column("accumulation_growth").to_list() == [None, 200, 200, 200]
    assert between.get_column("ppt_ratio").to_list() == [None, 0.25, 0.0, 0.25]
    assert between.get_column("socket_thm_ratio").to_list() == [None, 0.0, 0.5, None]  # it was set back
    assert between.get_column("hbm_thm_ratio").to_list() == [None] * 4
    reasons = reading.tables["gpu_samples"].get_column("throttle_reasons").to_list()
    assert reasons == [None, ["ppt"], ["socket_thm"], ["ppt"]]


@given(
    st.sampled_from([8, 32, 48, 64]),
    st.lists(st.one_of(st.none(), st.integers(0, 2**62)), min_size=1, max_size=20),
    st.integers(0, 2**64 - 1),
)
@example(64, [2**63 - 1, 2**63 - 1], 2**64 - 1)
def test_growth_of_a_counter_goes_through_its_wrap(bits: int, steps: list[int | None], start: int) -> None:
    half, whole = 1 << (bits - 1), 1 << bits
    total, readings, expected = start % whole, list[int | None](), list[int | None]()
    known = False
    for step in steps:
        grown = None if step is None else step % half
        total = (total + (grown or 0)) % whole
        readings.append(None if grown is None else total)
        expected.append(grown if known else None)
        known = grown is not None
    frame = pl.DataFrame({"counter": pl.Series(readings, dtype=pl.UInt64)})
    assert frame.select(growth(pl.col("counter"), bits)).to_series().to_list() == expected


def test_a_counter_that_was_set_back_did_not_grow() -> None:
    frame = pl.DataFrame({"counter": pl.Series([500, 3, 5], dtype=pl.UInt32)})
    assert frame.select(growth(pl.col("counter"), 32)).to_series().to_list() == [None, None, 2]


def test_a_self_describing_table_is_read_by_its_own_codes(tmp_path: Path) -> None:
    def table(time: int, accumulated: int) -> bytes:
        return described(
            [
                (attribute("curr_socket_power"), 4, 3, [750]),
                (attribute("system_clock_counter"), 6, 4, [time]),
                (attribute("temperature_hotspot"), 3, 2, [-1]),
                (attribute("temperature_mem"), 3, 2, [-5]),
                (attribute("current_gfxclk"), 2, 1, [2000, 0xFFFF, 2100]),
                (attribute("accumulation_counter"), 6, 0, [accumulated]),
                (attribute("ppt_residency_acc"), 6, 0, [accumulated // 4]),
                (attribute("gfx_busy_inst"), 4, 10, [50, 60]),
                (attribute("gfx_busy_inst"), 4, 10, [70, 80]),
                (900, 0, 0, [17]),
            ]
        )

    reading = reading_of(tmp_path, table(SECOND, 2**40) + table(2 * SECOND, 2**40 + 400))
    fields = reading.details["fields_1.9"]
    assert fields.get_column("gfx_busy_inst_2").to_list() == [[70, 80]] * 2
    assert fields.get_column("attribute_900").to_list() == [17, 17]
    assert fields.get_column("temperature_hotspot").to_list() == [None, None]
    assert fields.get_column("temperature_mem").to_list() == [-5, -5]
    assert fields.get_column("current_gfxclk").to_list() == [[2000, None, 2100]] * 2
    samples = reading.tables["gpu_samples"]
    assert samples.get_column("gfx_clock_mhz").to_list() == [2050.0, 2050.0]
    assert samples.get_column("power_w").to_list() == [750.0, 750.0]
    assert samples.get_column("throttle_reasons").to_list() == [None, ["ppt"]]
    assert reading.details["between_samples"].get_column("ppt_ratio").to_list() == [None, 0.25]
    assert evidence_of(reading)["unknown gpu_metrics values"].reason == (
        "values without a known name are kept by number: attribute_900"
    )


def test_self_describing_tables_of_several_forms_are_all_read(tmp_path: Path) -> None:
    clock, power = attribute("system_clock_counter"), attribute("curr_socket_power")
    one = described([(clock, 6, 4, [1]), (power, 4, 3, [100])])
    other = described([(power, 4, 3, [200]), (clock, 6, 4, [2])])
    third = described([(clock, 6, 4, [3]), (power, 2, 3, [300, 302])])
    reading = reading_of(tmp_path, one + other + third + one)
    samples = reading.tables["gpu_samples"]
    assert samples.select("time_ns", "power_w").rows() == [(1, 100.0), (1, 100.0), (2, 200.0), (3, 301.0)]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "no whole"),
        (b"\x00\x01", "no whole"),
        (made((1, 3)).tobytes()[:-1], "no whole"),
        ((120).to_bytes(2, "little") + bytes((2, 4)) + bytes(116), "version: it says 2.4"),
        ((120).to_bytes(2, "little") + bytes((1, 2)) + bytes(116), "version: it says 1.2"),
        ((121).to_bytes(2, "little") + bytes((1, 3)) + bytes(117), "states 121 bytes, and version 1.3 has 120"),
        (made((1, 3)).tobytes() + b"hello, world", "at byte 120"),
        ((4).to_bytes(2, "little") + bytes((1, 9)), "states 4 bytes"),
        ((9).to_bytes(2, "little") + bytes((1, 9, 1, 0, 0, 0, 0)), "damaged: it states 1 values"),
        ((10).to_bytes(2, "little") + bytes((1, 9)) + (-1).to_bytes(4, "little", signed=True) + b"ab", "states -1"),
        (described([(0, 2, 0, [])], surplus=b"abc"), "no type or no instance"),
        (described([(0, 0, 0, [1])])[:-1] + b"", "no whole"),
    ],
)
def test_what_is_no_readable_table_is_refused_in_one_line(content: bytes, what: str, tmp_path: Path) -> None:
    path = tmp_path / "card0"
    path.write_bytes(content)
    with pytest.raises(CaptureError, match=what) as caught:
        gpu_metrics.read(path)
    assert "\n" not in str(caught.value)


def test_a_cut_end_is_told_and_what_came_before_is_read(tmp_path: Path) -> None:
    whole = made((1, 3), 2, system_clock_counter=[1, 2]).tobytes()
    reading = reading_of(tmp_path, whole + whole[:50])
    assert reading.tables["gpu_samples"].height == 2
    assert evidence_of(reading)["end of card0.bin"].reason == "the last table is cut off after 50 bytes"


def test_tables_without_a_time_cannot_be_placed_and_are_told(tmp_path: Path) -> None:
    unsupported = 2**64 - 1
    clocks = np.array([5, unsupported, 2**63], np.uint64)
    reading = reading_of(tmp_path, made((1, 5), 3, system_clock_counter=clocks).tobytes())
    assert reading.tables["gpu_samples"].get_column("time_ns").to_list() == [5]
    assert evidence_of(reading)["gpu samples"].reason == "2 of 3 tables hold no time, so they cannot be placed"
    assert reading.details["source_rows"].rows() == [("gpu_metrics tables", 3, 1)]
    assert reading.details["fields_1.5"].height == 3


def test_without_the_drivers_clock_the_firmwares_ticks_are_used(tmp_path: Path) -> None:
    reading = reading_of(tmp_path, made((1, 6), 2, firmware_timestamp=[123, 456]).tobytes())
    assert reading.tables["gpu_samples"].get_column("time_ns").to_list() == [1230, 4560]
    assert reading.tables["clock_domains"].item(0, "domain") == "gpu_firmware"
    silent = reading_of(tmp_path, made((1, 6)).tobytes())
    assert silent.tables["gpu_samples"].height == silent.tables["clock_domains"].height == 0
    assert evidence_of(silent)["gpu samples"].status == "absent"


def test_a_share_above_the_whole_is_invalid(tmp_path: Path) -> None:
    tables = made((1, 3), 2, system_clock_counter=[1, 2], average_gfx_activity=[100, 8700])
    reading = reading_of(tmp_path, tables.tobytes())
    assert reading.tables["gpu_samples"].get_column("gfx_activity_ratio").to_list() == [1.0, None]
    assert evidence_of(reading)["gpu_samples.gfx_activity_ratio"].status == "invalid"


def test_a_folder_holds_several_devices_and_its_strangers_are_told(tmp_path: Path) -> None:
    for card in ("card10", "card2"):
        (tmp_path / card).mkdir()
        for time in (10, 9):
            (tmp_path / card / f"{time}.bin").write_bytes(
                made((1, 3), system_clock_counter=time, average_socket_power=int(card[4:])).tobytes()
            )
    (tmp_path / "card2" / "notes.txt").write_text("not a table")
    (tmp_path / "card2" / "elsewhere").symlink_to(__file__)
    assert gpu_metrics.probe(tmp_path) is not None
    reading = gpu_metrics.read(tmp_path)
    assert reading.tables["devices"].get_column("handle").to_list() == ["card2", "card10"]
    samples = reading.tables["gpu_samples"].select("device_id", "time_ns", "power_w").rows()
    assert samples == [(0, 9, 2.0), (0, 10, 2.0), (1, 9, 10.0), (1, 10, 10.0)]
    assert evidence_of(reading)["other files"].rows == 2
    with pytest.raises(CaptureError, match="more than 3 tables"):
        gpu_metrics.read(tmp_path, Limits(events=3))
    (tmp_path / "empty").mkdir()
    with pytest.raises(CaptureError, match="no dump"):
        gpu_metrics.read(tmp_path / "empty")


def test_strangers_are_not_recognized(tmp_path: Path) -> None:
    for content in (b"", b"ELF", b"{}" * 60, bytes(200), made((1, 3)).tobytes()[2:], described([])[:7]):
        (tmp_path / "file").write_bytes(content)
        assert gpu_metrics.probe(tmp_path / "file") is None
    assert gpu_metrics.probe(tmp_path / "missing") is None
    (tmp_path / "file").write_bytes(made((1, 8)).tobytes())
    recognition = gpu_metrics.probe(tmp_path / "file")
    assert recognition is not None and recognition.detail == "gpu_metrics table of version 1.8"
    (tmp_path / "file").write_bytes((6).to_bytes(2, "little") + bytes((2, 4, 0, 0)))
    assert gpu_metrics.probe(tmp_path / "file") is not None  # so that reading it names the version it cannot read


def test_limits_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "card0"
    path.write_bytes(made((1, 3), 3).tobytes())
    with pytest.raises(CaptureError, match="more than 2 tables"):
        gpu_metrics.read(path, Limits(events=2))
    with pytest.raises(CaptureError, match="more than 100 bytes"):
        gpu_metrics.read(path, Limits(file_bytes=100))


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_damaged_dumps_are_read_or_refused(data: st.DataObject, tmp_path: Path) -> None:
    clock, power = attribute("system_clock_counter"), attribute("curr_socket_power")
    valid = data.draw(
        st.sampled_from(
            [
                made((1, 3), 2, system_clock_counter=[1, 2]).tobytes(),
                made((1, 6), 2, system_clock_counter=[1, 2]).tobytes(),
                described([(clock, 6, 4, [1]), (power, 4, 3, [100]), (power, 1, 0, [3, 4])]) * 2,
            ]
        )
    )
    changes = st.tuples(st.integers(0, min(len(valid), 60) - 1), st.integers(0, 255))
    drawn = data.draw(st.lists(changes, min_size=1, max_size=6))
    path = tmp_path / "card0"
    path.write_bytes(damaged(valid, drawn, data.draw(st.integers(0, len(valid)))))
    read_or_refused(gpu_metrics, path, path.name)


def recording(tables: bytes, times: list[int], **others: Any) -> dict[str, Any]:
    packed = base64.b64encode(zlib.compress(tables)).decode()
    return {"device": "card1", "period_ns": SECOND, "failure": None, "times_ns": times, "tables": packed, **others}


def test_recordings_keep_the_times_at_which_they_were_taken() -> None:
    tables = made((1, 7), 2, system_clock_counter=[5, 6], energy_accumulator=[0, 65536 * 200])
    reading = gpu_metrics.read_recorded(
        [recording(tables.tobytes(), [3 * SECOND, 5 * SECOND], failure="it went away")], SECOND, "telemetry.json"
    )
    assert reading.tables["gpu_samples"].get_column("time_ns").to_list() == [2 * SECOND, 4 * SECOND]
    assert reading.details["between_samples"].get_column("average_power_w").to_list() == [None, 100.0]
    assert evidence_of(reading)["gpu samples of card1"].reason == "it went away; 2 readings were taken before"
    assert pytest.approx(15.259e-6, rel=1e-4) == ENERGY_UNIT_J


def test_a_recording_that_says_less_of_itself_is_read_all_the_same() -> None:
    one = recording(made((1, 7)).tobytes(), [SECOND])
    del one["failure"], one["period_ns"]
    assert gpu_metrics.read_recorded([one], 0, "telemetry.json").tables["gpu_samples"].height == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"tables": "not base64"},
        {"tables": base64.b64encode(b"not zlib").decode()},
        {"times_ns": [1, 2, 3]},
        {"times_ns": ["noon"]},
        {"times_ns": [2**70]},
        {"tables": base64.b64encode(zlib.compress(made((1, 3)).tobytes()[:-3])).decode()},
        {"tables": base64.b64encode(zlib.compress(made((1, 3)).tobytes())[:-3]).decode()},
    ],
)
def test_recordings_in_another_form_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(CaptureError):
        gpu_metrics.read_recorded([{**recording(made((1, 3)).tobytes(), [1]), **wrong}], 0, "telemetry.json")
    with pytest.raises(CaptureError, match="expected form"):
        gpu_metrics.read_recorded([7], 0, "telemetry.json")
