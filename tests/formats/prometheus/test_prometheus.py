"""Series of GPU sensors: every form of file, every exporter's units, what is null and why."""

import csv
import gzip
import io
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats import prometheus
from aaco_pipeline.formats.capture_tables import CaptureTables, Limits
from aaco_pipeline.formats.prometheus import PREFIX, SENSORS, WRITTEN
from tests.formats.readings import evidence_of

SECOND: Final = 10**9
#: 2023-11-14 22:13:20 UTC, in milliseconds.
BEGIN: Final = 1_700_000_000_000

#: Name, labels, and (milliseconds after `BEGIN`, value) of each sample.
Series = tuple[str, Mapping[str, str], Sequence[tuple[int, float]]]


def omnistat(card: int, power: Sequence[float], host: str = "node01") -> list[Series]:
    """One device's sensors as Omnistat names them, a sample a second."""
    labels = {"instance": host, "card": f"{card}"}

    def steady(value: float) -> list[tuple[int, float]]:
        return [(1000 * i, value) for i in range(len(power))]

    return [
        ("rocm_average_socket_power_watts", labels, [(1000 * i, one) for i, one in enumerate(power)]),
        ("rocm_utilization_percentage", labels, steady(98.0)),
        ("rocm_sclk_clock_mhz", labels, steady(1900.0)),
        ("rocm_vram_used_percentage", labels, steady(12.5)),
        ("rocm_temperature_celsius", {**labels, "location": "junction"}, steady(61.0)),
    ]


def block(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


def as_text(series: Sequence[Series], timed: bool = True) -> str:
    """Scrapes one after another."""
    lines = [
        (at, f"{name}{block(labels)} {value!r}" + (f" {BEGIN + at}" if timed else ""))
        for name, labels, samples in series
        for at, value in samples
    ]
    order = sorted(range(len(lines)), key=lambda i: lines[i][0])
    return "# HELP x y\n# TYPE x gauge\n" + "".join(f"{lines[i][1]}\n" for i in order)


def as_answer(series: Sequence[Series]) -> str:
    result: list[dict[str, Any]] = [
        {
            "metric": {"__name__": name, **dict(labels)},
            "values": [[(BEGIN + at) / 1000, repr(value)] for at, value in samples],
        }
        for name, labels, samples in series
    ]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})


def as_lines(series: Sequence[Series]) -> str:
    lines: list[dict[str, Any]] = [
        {
            "metric": {"__name__": name, **dict(labels)},
            "values": [value for _, value in samples],
            "timestamps": [BEGIN + at for at, _ in samples],
        }
        for name, labels, samples in series
    ]
    return "".join(f"{json.dumps(one)}\n" for one in lines)


def as_csv(series: Sequence[Series]) -> str:
    """As `omnistat-query --export` writes it: labels above the columns, all others left out."""
    times = sorted({at for _, _, samples in series for at, _ in samples})
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["metric", *(name for name, _, _ in series)])
    writer.writerow(["instance", *(labels["instance"] for _, labels, _ in series)])
    writer.writerow(["card", *(labels["card"] for _, labels, _ in series)])
    writer.writerow(["timestamp", *("" for _ in series)])
    for at in times:
        stamp = datetime.fromtimestamp((BEGIN + at) / 1000, UTC).replace(tzinfo=None)
        writer.writerow([stamp.isoformat(" "), *(dict(samples).get(at, "") for _, _, samples in series)])
    return out.getvalue()


FORMS: Final = {"a.prom": as_text, "answer.json": as_answer, "export.jsonl": as_lines, "omnistat-rocm.gpu.csv": as_csv}


def every_form() -> dict[str, str]:
    """The same two devices in every form, by the name of the file."""
    series = [*omnistat(0, [400.0, 410.5, 420.0]), *omnistat(1, [90.0, 91.0, 92.0])]
    return {name: form(series) for name, form in FORMS.items()}


def read(tmp_path: Path, content: str, name: str = "a.prom", limits: Limits | None = None) -> CaptureTables:
    path = tmp_path / name
    path.write_text(content)
    return prometheus.read(path, limits)


def samples_of(reading: CaptureTables) -> pl.DataFrame:
    return reading.tables["gpu_samples"]


@pytest.mark.parametrize("name", FORMS)
def test_every_form_gives_the_same_samples(name: str, tmp_path: Path) -> None:
    content = every_form()[name]
    (tmp_path / name).write_text(content)
    assert prometheus.probe(tmp_path / name) is not None
    reading = prometheus.read(tmp_path / name)
    samples = samples_of(reading).sort("device_id", "time_ns")
    assert samples.get_column("time_ns").to_list() == [0, SECOND, 2 * SECOND] * 2
    assert samples.get_column("power_w").to_list() == [400.0, 410.5, 420.0, 90.0, 91.0, 92.0]
    assert samples.get_column("gfx_activity_ratio").to_list() == [0.98] * 6
    assert samples.get_column("gfx_clock_mhz").to_list() == [1900.0] * 6
    # The CSV does not say where the temperature was taken, and no form holds the memory's size.
    hot = None if name.endswith(".csv") else 61.0
    assert samples.get_column("temperature_hotspot_c").to_list() == [hot] * 6
    assert samples.get_column("memory_used_bytes").to_list() == [None] * 6
    assert reading.tables["clock_domains"].row(0)[:3] == ("realtime", -BEGIN * 10**6, 0)
    assert reading.tables["devices"].get_column("handle").to_list() == ["card0", "card1"]
    assert "every 1 s" in str(evidence_of(reading)["resolution of gpu samples"].reason)
    packed = tmp_path / f"{name}.gz"
    packed.write_bytes(gzip.compress(content.encode()))
    assert prometheus.probe(packed) == prometheus.probe(tmp_path / name)
    assert samples_of(prometheus.read(packed)).equals(samples_of(reading))


def test_the_exporters_units_become_the_tables(tmp_path: Path) -> None:
    labels = {"gpu_id": "3", "hostname": "node01", "gpu_compute_partition_type": "spx", "card_series": "MI300X"}
    labels |= {"gpu_memory_partition_type": "nps1", "gpu_partition_id": "0", "job_user": "alice"}
    values = {
        "gpu_package_power": 512.0,
        "gpu_average_package_power": 300.0,
        "gpu_energy_consumed": 2_500_000.0,
        "gpu_junction_temperature": 71.0,
        "gpu_memory_temperature": 55.0,
        "gpu_gfx_activity": 90.0,
        "gpu_umc_activity": 25.0,
        "gpu_used_vram": 3.0,
        "gpu_total_vram": 196_592.0,
    }
    series: list[Series] = [(f"{PREFIX}{name}", labels, [(0, value)]) for name, value in values.items()]
    for kind, index, clock in (("system", "0", 2000.0), ("system", "1", 2100.0), ("memory", "8", 1300.0)):
        series.append(("amd_gpu_clock", {**labels, "clock_type": kind, "clock_index": index}, [(0, clock)]))
    reading = read(tmp_path, as_text(series))
    row = samples_of(reading).row(0, named=True)
    assert (row["power_w"], row["energy_j"], row["temperature_hotspot_c"]) == (512.0, 2.5, 71.0)
    assert (row["gfx_clock_mhz"], row["memory_clock_mhz"]) == (2050.0, 1300.0)
    assert (row["gfx_activity_ratio"], row["memory_activity_ratio"]) == (0.9, 0.25)
    assert (row["temperature_memory_c"], row["memory_used_bytes"]) == (55.0, 3 << 20)
    device = reading.tables["devices"].row(0, named=True)
    assert (device["product"], device["partition_mode"]) == ("MI300X", "SPX/NPS1")
    assert device["memory_bytes"] == 196_592 << 20
    assert "alice" not in repr([frame.to_dicts() for frame in reading.tables.values()])


def test_names_without_the_prefix_are_the_same(tmp_path: Path) -> None:
    for prefix in ("", PREFIX):
        series = [(f"{prefix}gpu_package_power", {"gpu_id": "0"}, [(0, 5.0)])]
        assert samples_of(read(tmp_path, as_text(series))).item(0, "power_w") == 5.0


def test_residencies_that_grow_are_what_held_the_clock_down(tmp_path: Path) -> None:
    name = "amd_gpu_violation_ppt_residency_accumulated"
    hot = "amd_gpu_violation_hbm_thermal_residency_accumulated"
    labels = {"gpu_id": "0"}
    series = [
        (name, labels, [(0, 5.0), (1000, 5.0), (2000, 9.0), (3000, 2.0), (4000, 3.0)]),
        (hot, labels, [(0, 1.0), (1000, 1.0), (2000, 1.0), (3000, 0.0), (4000, 1.0)]),
    ]
    reading = read(tmp_path, as_text(series))
    # At 3 s both counters were set back: what was before says nothing of what is after.
    assert samples_of(reading).get_column("throttle_reasons").to_list() == [
        *(None, [], ["ppt"]),
        *(None, ["ppt", "hbm_thm"]),
    ]
    assert evidence_of(reading)["counters set back"].rows == 2


def test_an_energy_counter_that_was_set_back_counts_from_there(tmp_path: Path) -> None:
    series = [("rocm_energy_joules", {"card": "0"}, [(0, 100.0), (1000, 250.0), (2000, 10.0), (3000, 60.0)])]
    reading = read(tmp_path, as_text(series))
    assert samples_of(reading).get_column("energy_j").to_list() == [None, None, 10.0, 60.0]


def test_the_share_of_memory_is_of_its_size(tmp_path: Path) -> None:
    labels = {"card": "0"}
    size = ("rocm_vram_total_bytes", labels, [(0, 1000.0)])
    series = [size, ("rocm_vram_used_percentage", labels, [(0, 12.5), (1000, 50.0), (2000, 101.0)])]
    reading = read(tmp_path, as_text(series))
    assert samples_of(reading).get_column("memory_used_bytes").to_list() == [125, 500, None]
    assert evidence_of(reading)["percentages beyond 100"].rows == 1


@pytest.mark.parametrize(
    ("metric", "labels", "column", "why"),
    [
        ("rocm_temperature_celsius", {"location": "edge"}, "temperature_hotspot_c", "hottest spot"),
        ("rocm_temperature_celsius", {}, "temperature_hotspot_c", "where on the device"),
        ("rocm_temperature_memory_celsius", {"location": "hbm_0"}, "temperature_memory_c", "one stack"),
        ("gpu_clock", {"clock_type": "video"}, "gfx_clock_mhz", "neither engine nor memory"),
    ],
)
def test_what_a_column_is_not_about_is_told(
    metric: str, labels: dict[str, str], column: str, why: str, tmp_path: Path
) -> None:
    power = ("rocm_average_socket_power_watts", {"card": "0"}, [(0, 5.0)])
    reading = read(tmp_path, as_text([power, (metric, {"card": "0", **labels}, [(0, 50.0)])]))
    assert samples_of(reading).item(0, column) is None
    assert any(why in str(item.reason) for item in reading.evidence if item.item.startswith(f"metric {metric}"))


def test_a_zero_of_a_sensor_that_could_not_be_read_is_null(tmp_path: Path) -> None:
    series = [("rocm_average_socket_power_watts", {"card": "0"}, [(0, 0.0), (1000, 5.0)])]
    series += [("rocm_utilization_percentage", {"card": "0"}, [(0, 0.0), (1000, 5.0)])]
    reading = read(tmp_path, as_text(series))
    assert samples_of(reading).get_column("power_w").to_list() == [None, 5.0]
    assert samples_of(reading).get_column("gfx_activity_ratio").to_list() == [0.0, 0.05]
    assert evidence_of(reading)["sensors at 0"].rows == 1


def test_scrapes_without_times_are_listed_and_not_placed(tmp_path: Path) -> None:
    reading = read(tmp_path, as_text(omnistat(0, [400.0, 410.0]), timed=False))
    assert samples_of(reading).height == reading.tables["clock_domains"].height == 0
    told = evidence_of(reading)["scrapes without a time"]
    assert told.status == "absent" and "do not state when" in str(told.reason)
    assert reading.details["unplaced_samples"].select("scrape", "power_w").rows() == [(0, 400.0), (1, 410.0)]


def test_times_of_open_metrics_are_seconds(tmp_path: Path) -> None:
    lines = "".join(f'rocm_sclk_clock_mhz{{card="0"}} 5 {1_700_000_000 + i}.5\n' for i in range(3))
    reading = read(tmp_path, f"{lines}# EOF\n")
    assert samples_of(reading).get_column("time_ns").to_list() == [0, SECOND, 2 * SECOND]


def test_order_repetitions_and_contradictions(tmp_path: Path) -> None:
    name, labels = "rocm_sclk_clock_mhz", {"card": "0"}
    series = [(name, labels, [(3000, 3.0), (0, 0.5), (1000, 1.0), (1000, 1.0), (2000, 2.0), (2000, 2.5)])]
    reading = read(tmp_path, as_lines(series), "export.jsonl")
    rows = samples_of(reading).select("time_ns", "gfx_clock_mhz").rows()
    assert rows == [(0, 0.5), (SECOND, 1.0), (2 * SECOND, None), (3 * SECOND, 3.0)]
    assert evidence_of(reading)["repeated values"].rows == 1
    assert evidence_of(reading)["contradicting values"].rows == 1


def test_files_of_one_folder_are_of_the_same_devices(tmp_path: Path) -> None:
    paths = []
    for at in range(3):
        path = tmp_path / f"{at}.prom"
        path.write_text(f'rocm_sclk_clock_mhz{{card="0",instance="a"}} {at + 1} {BEGIN + 1000 * at}\n')
        paths.append(path)
    reading = prometheus.read_run(paths)
    assert samples_of(reading).get_column("gfx_clock_mhz").to_list() == [1.0, 2.0, 3.0]
    assert reading.tables["devices"].height == 1


def test_hosts_and_partitions_are_devices_of_their_own(tmp_path: Path) -> None:
    labels = {"gpu_id": "0", "gpu_compute_partition_type": "cpx"}
    series = [
        ("gpu_gfx_activity", {**labels, "instance": f"{host}:5000", "gpu_partition_id": part}, [(0, 5.0)])
        for host in ("b", "a")
        for part in ("1", "0")
    ]
    handles = read(tmp_path, as_text(series)).tables["devices"].get_column("handle").to_list()
    assert handles == [f"card0 partition {part} of {host}" for host in "ab" for part in "01"]


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.json", '{"status":"success","data":{"resultType":"matrix","result":7}}', "without a result"),
        ("a.json", '{"status":"success","data":{"resultType":"matrix","result":[', "cannot be read as JSON"),
        ("a.json", '{"status":"success","data":{"resultType":"matrix","result":[{"values":[1]}]}}', "no pairs"),
        ("a.json", '{"status":"success","data":{"resultType":"matrix","result":[]}}', "no sensor of a GPU"),
        ("a.jsonl", '{"metric":{"__name__":"up"},"values":[1],"timestamps":[1]}\n', "it holds up"),
        ("a.jsonl", '{"metric":{"__name__":"up"},"values":[1],"timestamps":[]}\n', "line 1 has not as many"),
        ("a.jsonl", '{"metric":{"__name__":"rocm_num_gpus"},"values":[1', "line 1 cannot be read"),
        ("a.csv", "metric,rocm_sclk_clock_mhz\ninstance,a\n", "no row begins with `timestamp`"),
        ("a.txt", "hello\n", "no series of Omnistat"),
    ],
)
def test_what_is_damaged_or_of_something_else_is_refused_in_one_line(
    name: str, content: str, told: str, tmp_path: Path
) -> None:
    with pytest.raises(CaptureError, match=told) as error:
        read(tmp_path, content, name)
    assert str(tmp_path / name) in str(error.value) and "\n" not in str(error.value)


def test_bounds_on_series_values_and_lines(tmp_path: Path) -> None:
    many = as_text([("rocm_sclk_clock_mhz", {"card": f"{i}", "x": "y" * 50}, [(0, 1.0)]) for i in range(30)])
    with pytest.raises(CaptureError, match="more than 20 series"):
        read(tmp_path, many, limits=Limits(columns=20))
    with pytest.raises(CaptureError, match="more than 20 values"):
        read(tmp_path, many, limits=Limits(events=20))
    with pytest.raises(CaptureError, match="more than 100 bytes"):
        read(tmp_path, as_lines(omnistat(0, [1.0] * 40)), "a.jsonl", Limits(line_bytes=100))


@pytest.mark.parametrize(
    "content",
    [
        "gpu_clock is what the GPU runs at\n",
        '{"traceEvents":[{"name":"rocm_num_gpus 5"}]}',
        '{"metric":"rocm_num_gpus"}',
        "metric,value\nrocm_num_gpus,5\n",
        "a,metric,rocm_num_gpus\n",
        "",
    ],
)
def test_other_files_are_not_taken_for_series(content: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(content)
    assert prometheus.probe(tmp_path / "file") is None


VALUES = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True, width=64), st.integers(-(10**20), 10**20), st.sampled_from(["", "x"])
)
SAMPLES = st.lists(st.tuples(st.integers(-(10**16), 10**16) | st.integers(0, 5000), VALUES), max_size=12)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(sorted(WRITTEN)), st.sampled_from("012"), SAMPLES), min_size=1, max_size=8))
def test_whatever_the_values_are_samples_keep_to_their_table(tmp_path: Path, made: list[Any]) -> None:
    """No invention: every value is one of the file's in the table's unit, each device and time is there once."""
    series = [(name, {"card": card, "location": "junction"}, samples) for name, card, samples in made]
    try:
        reading = read(tmp_path, as_lines(series), "export.jsonl")
    except CaptureError as error:
        assert "no sensor of a GPU" in str(error)
        return
    samples = samples_of(reading)
    assert samples.select("device_id", "time_ns").is_unique().all()
    assert samples.get_column("time_ns").to_list() == sorted(samples.get_column("time_ns").to_list()) or (
        samples.get_column("device_id").n_unique() > 1
    )
    for column in ("gfx_activity_ratio", "memory_activity_ratio"):
        assert samples.get_column(column).drop_nulls().is_between(0, 1).all()
    powers = {sensor for sensor, one in SENSORS.items() if one.column == "power_w"}
    given_ = {
        float(value)
        for name, _, pairs in made
        if name.removeprefix(PREFIX) in powers
        for _, value in pairs
        if isinstance(value, int | float)
    }
    assert set(samples.get_column("power_w").drop_nulls().to_list()) <= given_
