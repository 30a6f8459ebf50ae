"""Reading NVIDIA GPUs beside a run, against a stand-in for the driver's library that is compiled here."""

import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from pytest import approx

from aaco_pipeline.formats.capture_tables import CaptureTables
from aaco_pipeline.formats.native import nvml
from aaco_pipeline.formats.native import telemetry as telemetry_format
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.validation import conform
from aaco_pipeline.resources.telemetry.nvml import NvmlSource, open_devices
from aaco_pipeline.resources.telemetry.sampler import NO_GPU, SystemSampler, open_gpus
from aaco_pipeline.resources.telemetry.sources import UnreadableError
from tests.resources.telemetry.rows import wait_for_rows

STAND_IN: Final = Path(__file__).with_name("nvml_stand_in.c")
UUIDS: Final = [f"GPU-0000000{number}-1111-2222-3333-444444444444" for number in (0, 1)]


def compiled(folder: Path, *options: str) -> str:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = folder / "libnvidia-ml.so.1"
    command = [compiler, "-shared", "-fPIC", "-Wall", "-Werror", *options, str(STAND_IN), "-o", str(library)]
    subprocess.run(command, check=True)
    return str(library)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return compiled(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="module")
def old_library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return compiled(tmp_path_factory.mktemp("old_nvml"), "-DOLD")


def first(library: str) -> NvmlSource:
    sources, reasons = open_devices(library)
    assert [source.device for source in sources] == ["GPU 0", "GPU 1"] and reasons == {}
    sources[1].close()
    return sources[0]


def last_reading(source: NvmlSource) -> dict[str, int | None]:
    source.read()
    return {name: values[-1] for name, values in source.recording()["columns"].items()}


def sampled(library: str, sys: Path, **further: Any) -> CaptureTables:
    """The sampler's own document as read back, after at least two readings of each device."""
    with SystemSampler(10_000_000, sys=sys, nvml_library=library) as sampler:
        zero = time.monotonic_ns()
        wait_for_rows(sampler, 25)
    reading = telemetry_format.read(sampler.samples(), zero, **further)
    for name, frame in reading.tables.items():
        conform(contract(name), frame, "20260101T000000Z-00000000")
    conform(contract("devices"), reading.details["gpu_devices"], "20260101T000000Z-00000000")
    return reading


def told(reading: CaptureTables) -> Mapping[str, Evidence]:
    found = {item.item: item for item in reading.evidence}
    assert len(found) == len(reading.evidence)
    return found


def test_a_reading_is_what_the_driver_says_in_its_own_units(library: str) -> None:
    source = first(library)
    before = time.monotonic_ns()
    reading = last_reading(source)
    assert before <= source.recording()["times_ns"][0] <= time.monotonic_ns()
    energy, held = reading.pop("energy_mj"), reading.pop("held_sw_thermal_slowdown_ns")
    assert energy is not None and energy > 5_000_000_000 and held is not None and held > 0
    assert reading == {
        **{"power_mw": 321_500, "gpu_temperature_c": 41, "memory_temperature_c": 44},
        **{"sm_clock_mhz": 1755, "memory_clock_mhz": 3201, "gpu_busy_percent": 97, "memory_busy_percent": 35},
        **{"memory_used_bytes": 9 << 30, "event_reasons": 5, "pcie_generation": 5, "pcie_lanes": 16},
        **{"ecc_corrected": 7, "ecc_uncorrected": 0, "held_sw_power_cap_ns": 1000},
        **dict.fromkeys(("held_sync_boost_ns", "held_board_limit_ns"), None),
        **dict.fromkeys(("held_hw_thermal_slowdown_ns", "held_hw_power_brake_slowdown_ns"), None),
    }
    assert source.recording()["reasons"]["held_board_limit_ns"] == "field 77: Not Supported"
    source.close()


def test_a_dear_call_is_made_less_often_and_what_it_counts_is_taken_from_one_to_the_next(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVML_STAND_IN", "dear")
    source = first(library)
    turn = source.recording()["turns"]["energy_mj"]
    assert turn >= 3
    for _ in range(2 * turn):
        source.read()
    source.close()
    recording = {**source.recording(), "times_ns": [1_000_000 * number for number in range(2 * turn)]}
    energies = recording["columns"]["energy_mj"]
    assert [at for at, energy in enumerate(energies) if energy is not None] == [0, turn]
    reading = nvml.read_recorded([recording], 0, "telemetry.json", first_device_id=0)
    powers = reading.details["between_samples"].get_column("average_power_w").to_list()
    grown_mj, passed_ms = energies[turn] - energies[0], turn
    assert [power for power in powers if power is not None] == [approx(grown_mj / passed_ms)]
    assert f"one reading in {turn}," in str(told(reading)["NVML's call for energy_mj of GPU 0"].reason)


def test_the_devices_are_described_with_what_tells_them_apart(library: str) -> None:
    sources, _ = open_devices(library)
    assert [source.facts["uuid"] for source in sources] == UUIDS
    assert sources[1].facts == {
        **{"product": "NVIDIA H200", "uuid": UUIDS[1], "pci_address": "00000000:c2:00.0"},
        **{"compute_capability": "9.0", "memory_bytes": 150 << 30, "mig": False},
        **{"max_sm_clock_mhz": 1980, "max_memory_clock_mhz": 3201, "memory_bus_bits": 6144, "power_limit_mw": 700_000},
    }
    for source in sources:
        source.close()


def test_an_old_library_gives_what_it_has_and_names_what_it_lacks(old_library: str) -> None:
    source = first(old_library)
    reading = last_reading(source)
    assert (reading["power_mw"], reading["event_reasons"], reading["memory_used_bytes"]) == (321_500, 8, 10 << 30)
    assert reading["energy_mj"] is reading["ecc_corrected"] is None
    reasons = source.recording()["reasons"]
    assert reasons["energy_mj"] == "this driver's NVML has no nvmlDeviceGetTotalEnergyConsumption"
    assert reasons["ecc_corrected"] == "this driver's NVML has no nvmlDeviceGetFieldValues"
    source.close()


def test_a_gpu_that_falls_off_the_bus_ends_its_readings_and_keeps_those_before(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = first(library)
    source.read()
    monkeypatch.setenv("NVML_STAND_IN", "lost")
    with pytest.raises(UnreadableError, match="GPU is lost"):
        source.read()
    recording = source.recording()
    assert len(recording["times_ns"]) == 1 and recording["failure"].endswith("nvmlDeviceGetPowerUsage: GPU is lost")
    source.close()
    source.close()
    with pytest.raises(UnreadableError, match="closed"):
        source.read()


def test_a_gpu_that_is_lost_during_a_run_leaves_the_host_sampled(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SystemSampler(10_000_000, sys=tmp_path, nvml_library=library) as sampler:
        monkeypatch.setenv("NVML_STAND_IN", "lost")
        wait_for_rows(sampler, 20)
    reading = telemetry_format.read(sampler.samples(), 0)
    assert reading.tables["system_samples"].height > 5
    assert reading.tables["gpu_samples"].get_column("device_id").to_list() == [1, 2]
    item = told(reading)["gpu samples of GPU 1"]
    assert item.status == "partial" and "GPU is lost; 1 readings were taken before" in str(item.reason)


def test_a_gpu_that_may_not_be_read_is_named_and_the_others_are_read(
    library: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NVML_STAND_IN", "forbidden")
    reading = sampled(library, tmp_path)
    assert set(reading.tables["gpu_samples"].get_column("device_id")) == {1}
    item = told(reading)["gpu samples of other devices"]
    assert item.reason == "NVML of GPU 1: nvmlDeviceGetHandleByIndex_v2: Insufficient Permissions"


def test_without_a_driver_or_a_library_the_reason_is_reported_where_there_is_a_gpu(
    library: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NVML_STAND_IN", "no_driver")
    assert open_gpus(tmp_path, library) == ((), [], {})
    folder = tmp_path / "bus/pci/devices/0000:c1:00.0"
    folder.mkdir(parents=True)
    (folder / "vendor").write_text("0x10de\n")
    (folder / "class").write_text("0x040300\n")
    assert open_gpus(tmp_path, library).names == (), "its sound device is no GPU"
    (folder / "class").write_text("0x030200\n")
    name = "NVIDIA 0000:c1:00.0"
    assert open_gpus(tmp_path, library)[:2] == ((name,), [])
    assert open_gpus(tmp_path, library).reasons[name] == "NVML cannot be initialized: nvmlInit_v2: Driver Not Loaded"
    assert open_gpus(tmp_path, "no such library").reasons[name].startswith("libnvidia-ml.so.1 cannot be loaded: ")
    evidence = told(sampled("no such library", tmp_path))["gpu samples"]
    assert evidence.status == "absent" and str(evidence.reason) != NO_GPU and evidence.source == name


def test_the_sampler_gives_the_columns_that_amd_has(library: str, tmp_path: Path) -> None:
    reading = sampled(library, tmp_path)
    samples = reading.tables["gpu_samples"]
    rows = samples.filter(device_id=2)
    assert rows.height >= 2 and rows.get_column("time_ns").is_sorted()
    energies = rows.get_column("energy_j")
    assert energies.is_sorted() and energies[0] > 5_000_000
    last = rows.drop("time_ns", "energy_j").row(-1, named=True)
    assert last == {
        **{"device_id": 2, "power_w": approx(321.501), "temperature_hotspot_c": None, "temperature_memory_c": 44.0},
        **{"gfx_clock_mhz": 1755.0, "memory_clock_mhz": 3201.0, "gfx_activity_ratio": 0.97},
        **{"memory_activity_ratio": approx(0.35), "memory_used_bytes": 9 << 30, "temperature_gpu_c": 41.0},
        **{"throttle_reasons": ["sw_power_cap", "sw_thermal_slowdown"], "pcie_generation": 5, "pcie_lanes": 16},
        **{"ecc_corrected": 7, "ecc_uncorrected": 0},
    }
    assert rows.get_column("throttle_reasons")[0].to_list() == ["sw_power_cap"], "nothing has grown before the first"
    devices = reading.details["gpu_devices"].drop_nulls("handle")
    assert devices.select("device_id", "vendor", "arch", "handle", "power_cap_w", "max_clock_mhz").rows() == [
        (1, "NVIDIA", "sm_90", UUIDS[0], 700.0, 1980.0),
        (2, "NVIDIA", "sm_90", UUIDS[1], 700.0, 1980.0),
    ]
    evidence = told(reading)
    assert evidence["gpu samples"].status == "present"
    assert "hottest spot" in str(evidence["gpu_samples.temperature_hotspot_c"].reason)
    assert "as often as the cost" in str(evidence["gpu samples of GPU 1"].reason)


def test_devices_have_the_numbers_that_the_trace_gives_them(library: str, tmp_path: Path) -> None:
    by_uuid = {UUIDS[1].removeprefix("GPU-").upper(): 0, UUIDS[0].removeprefix("GPU-"): 1}
    devices = sampled(library, tmp_path, device_ids=by_uuid).details["gpu_devices"]
    assert devices.select("device_id", "handle").rows() == [(0, UUIDS[1]), (1, UUIDS[0])]
    by_address = {"0000:C2:00.0": 4}
    reading = sampled(library, tmp_path, device_ids=by_address)
    assert reading.details["gpu_devices"].select("device_id", "handle").rows() == [(4, UUIDS[1]), (5, UUIDS[0])]
    powers = dict(reading.tables["gpu_samples"].select("device_id", "power_w").iter_rows())
    assert powers == approx({4: 321.501, 5: 321.5}), "the samples went with their devices"


def test_of_a_gpu_in_instances_the_whole_is_read_and_that_is_said(
    library: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NVML_STAND_IN", "mig")
    reading = sampled(library, tmp_path)
    samples, evidence = reading.tables["gpu_samples"], told(reading)
    assert samples.get_column("gfx_activity_ratio").null_count() == samples.height
    assert samples.get_column("power_w").min() == 321.5
    assert evidence["gpu_samples.gfx_activity_ratio"].reason == "nvmlDeviceGetUtilizationRates: Not Supported"
    assert "describe the whole GPU" in str(evidence["instances of GPU 0"].reason)
    assert set(reading.details["gpu_devices"].get_column("partition_mode")) == {"MIG"}


def test_gpus_of_both_makers_are_numbered_together(library: str, tmp_path: Path) -> None:
    device = tmp_path / "class/drm/card0/device"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x1002\n")
    (device / "gpu_metrics").write_bytes(bytes([120, 0, 1, 3]) + b"\xff" * 116)
    reading = sampled(library, tmp_path)
    devices = reading.details["gpu_devices"]
    assert devices.select("device_id", "vendor").rows() == [(1, "AMD"), (2, "NVIDIA"), (3, "NVIDIA")]
    told(reading)
