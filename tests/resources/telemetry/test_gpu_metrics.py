"""Reading GPU tables beside a run, from files laid out as sysfs has them."""

import base64
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from aaco_pipeline.formats.capture_tables import CaptureTables
from aaco_pipeline.formats.gpu_metrics.layouts import layout
from aaco_pipeline.formats.native import telemetry as telemetry_format
from aaco_pipeline.formats.native.telemetry import FIRST_GPU_ID
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.validation import conform
from aaco_pipeline.resources.telemetry.gpu_metrics import GpuMetricsSource, amd_cards, open_sources
from aaco_pipeline.resources.telemetry.sampler import NO_GPU, SystemSampler, open_gpus
from tests.resources.telemetry.rows import wait_for_rows

#: So that NVIDIA GPUs of this host are not among those of the test.
NO_LIBRARY: Final = "no such library"


def table(power_w: int, energy: int) -> bytes:
    rows = np.full(layout((1, 3)).itemsize, 0xFF, np.uint8).view(layout((1, 3)))
    rows["structure_size"], rows["format_revision"], rows["content_revision"] = 120, 1, 3
    rows["average_socket_power"], rows["energy_accumulator"] = power_w, energy
    return rows.tobytes()


def card(sys: Path, name: str, content: bytes | None, vendor: str = "0x1002", address: str = "0000:c1:00.0") -> Path:
    device = sys / "devices" / address
    device.mkdir(parents=True)
    (sys / "class/drm" / name).mkdir(parents=True)
    (sys / "class/drm" / name / "device").symlink_to(device)
    (device / "vendor").write_text(f"{vendor}\n")
    if content is not None:
        (device / "gpu_metrics").write_bytes(content)
    return device


def tables_of(source: GpuMetricsSource) -> bytes:
    return zlib.decompress(base64.b64decode(source.recording()["tables"]))


def test_cards_are_found_in_order_and_without_their_connectors(tmp_path: Path) -> None:
    card(tmp_path, "card10", None, address="a")
    card(tmp_path, "card2", None, address="b")
    card(tmp_path, "card0", None, vendor="0x10de", address="c")
    card(tmp_path, "card2-DP-1", None, address="d")
    assert amd_cards(tmp_path) == ("card2", "card10")
    assert amd_cards(tmp_path / "nothing") == ()


def test_a_reading_is_the_bytes_as_they_were_and_when(tmp_path: Path) -> None:
    device = card(tmp_path, "card1", table(100, 1))
    source = GpuMetricsSource(tmp_path / "class/drm/card1/device", "card1")
    before = time.monotonic_ns()
    assert source.read() == ()
    (device / "gpu_metrics").write_bytes(table(200, 2))
    source.read()
    after = time.monotonic_ns()
    recording = source.recording()
    assert tables_of(source) == table(100, 1) + table(200, 2)
    first, second = recording["times_ns"]
    assert before <= first <= second <= after
    assert recording["address"] == "0000:c1:00.0"
    assert recording["failure"] is None
    source.forget()
    assert source.recording()["times_ns"] == [] and tables_of(source) == b""
    source.close()
    source.close()
    with pytest.raises(ValueError, match="closed"):
        source.read()


@pytest.mark.parametrize("content", [b"", b"\x78", table(1, 1)[:-1], table(1, 1) + b"\0"])
def test_a_table_of_another_size_than_it_states_is_no_reading(content: bytes, tmp_path: Path) -> None:
    device = card(tmp_path, "card1", content)
    source = GpuMetricsSource(device, "card1")
    with pytest.raises(ValueError, match="not the size"):
        source.read()
    assert f"gave {len(content)} bytes" in str(source.failure)
    assert source.recording()["times_ns"] == []
    source.close()


def test_beyond_the_limit_every_second_reading_goes_and_the_period_doubles(tmp_path: Path) -> None:
    device = card(tmp_path, "card1", table(0, 0))
    source = GpuMetricsSource(device, "card1", reading_limit=4)
    source.period_ns = 100
    for number in range(16):
        (device / "gpu_metrics").write_bytes(table(number, number))
        source.read()
    powers = np.frombuffer(tables_of(source), layout((1, 3)))["average_socket_power"].tolist()
    assert powers == [0, 8]
    assert len(source.recording()["times_ns"]) == 2
    assert source.recording()["period_ns"] == 800
    source.close()


def test_why_a_card_is_not_read_is_said(tmp_path: Path) -> None:
    card(tmp_path, "card1", None, address="a")
    card(tmp_path, "card2", table(1, 1), address="b")
    sources, reasons = open_sources(tmp_path)
    assert [source.device for source in sources] == ["card2"]
    assert "does not read its sensors out" in reasons["card1"]
    for source in sources:
        source.close()
    assert open_gpus(tmp_path, NO_LIBRARY).names == ("card1", "card2")
    card(tmp_path, "card3", None, address="c").joinpath("gpu_metrics").symlink_to("gpu_metrics")
    assert "gpu_metrics of card3" in open_sources(tmp_path)[1]["card3"]


def open_files() -> Iterator[str]:
    """The files that this process holds open."""
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the one by which the folder itself is read
            yield str(descriptor.readlink())


def sampled(sys: Path, rows: int) -> CaptureTables:
    with SystemSampler(10_000_000, sys=sys, nvml_library=NO_LIBRARY) as sampler:
        zero = time.monotonic_ns()
        wait_for_rows(sampler, rows)
    reading = telemetry_format.read(sampler.samples(), zero)
    for name, frame in reading.tables.items():
        conform(contract(name), frame, "20260101T000000Z-00000000")
    return reading


def test_the_sampler_reads_the_card_and_the_readings_come_out_as_samples(tmp_path: Path) -> None:
    card(tmp_path, "card1", table(321, 65536 * 50))
    reading = sampled(tmp_path, 35)
    assert [file for file in open_files() if file.startswith((str(tmp_path), "/proc/stat", "/proc/loadavg"))] == []
    samples = reading.tables["gpu_samples"]
    assert samples.height >= 2
    assert set(samples.get_column("power_w")) == {321.0} and set(samples.get_column("energy_j")) == {50.0}
    assert set(samples.get_column("device_id")) == {FIRST_GPU_ID}
    assert samples.get_column("time_ns").is_sorted()
    assert reading.details["gpu_devices"].select("device_id", "handle").rows() == [(1, "card1")]
    assert set(reading.details["gpu_between_samples"].get_column("average_power_w")) == {None, 0.0}
    evidence = {item.item: item for item in reading.evidence}
    assert evidence["gpu samples"].status == "present"
    assert "as often as the cost" in str(evidence["gpu samples of card1"].reason)


def test_a_card_that_cannot_be_read_leaves_the_host_sampled_and_says_why(tmp_path: Path) -> None:
    card(tmp_path, "card1", b"nonsense")
    reading = sampled(tmp_path, 5)
    assert reading.tables["gpu_samples"].height == 0
    assert reading.tables["system_samples"].height > 0
    told = {item.item: item for item in reading.evidence}["gpu samples"]
    assert told.status == "absent" and told.source == "card1"
    assert "gpu_metrics of card1: gave 8 bytes" in str(told.reason)


def test_one_card_of_two_is_said_to_be_missing(tmp_path: Path) -> None:
    card(tmp_path, "card1", None, address="a")
    card(tmp_path, "card2", table(7, 7), address="b")
    reading = sampled(tmp_path, 15)
    evidence = {item.item: item for item in reading.evidence}
    assert reading.tables["gpu_samples"].height >= 1
    assert "card1" in str(evidence["gpu samples of other devices"].reason)


def test_this_host_says_what_it_has() -> None:
    with SystemSampler() as sampler:
        pass
    gpu = sampler.samples()["gpu"]
    assert gpu["sources"] or gpu["reason"] == NO_GPU
