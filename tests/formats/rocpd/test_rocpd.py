"""rocpd databases: the real ones against the views they hold, and small made ones for every trap and damage."""

import gzip
import importlib.util
import os
import shutil
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats import rocpd
from aaco_pipeline.formats.capture_tables import CaptureTables, Limits
from tests.formats import readings
from tests.formats.readings import damaged, evidence_of, read_or_refused
from tests.places import ROOT

CAPTURES: Final = Path(os.environ.get("AACO_SHARED") or ROOT.parent / "shared") / "captures"
MI300X: Final = "mi300x_att_ck_batched_gemm/37ca13315e70/28_results.db"
MI350X: Final = "mi350x_rocpd_43915_dispatches/derived_results.db.gz"
GFX1250: Final = "gfx1250_rocpd/146104_results.redacted.db"
OTHER_GUID: Final = "11113fdc-92cb-72cb-9169-c7e541b1fcdf"


def generator() -> ModuleType:
    specification = importlib.util.spec_from_file_location(
        "generate_rocpd", ROOT / "benchmarks/performance/generate_rocpd.py"
    )
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


GENERATE: Final = generator()
SUFFIX: Final = "_" + GENERATE.GUID.replace("-", "_")


def real(name: str) -> Path:
    path = CAPTURES / name
    if not path.exists():
        pytest.skip(f"the real capture {name} is not on this machine (AACO_SHARED)")
    return path


def rows(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        return connection.execute(sql).fetchall()


def checked(path: Path, limits: Limits | None = None) -> CaptureTables:
    """The reading, after asserting what every reading fulfils."""
    reading = readings.checked(rocpd.read(path, limits))
    source = reading.details["source_rows"]
    assert (source["rows_out"] <= source["rows_in"]).all()
    assert len(reading.details["dispatch_keys"]) == len(reading.tables["dispatches"])
    return reading


def kernel_sums(reading: CaptureTables) -> dict[str, tuple[int, int, int, int]]:
    joined = reading.tables["dispatches"].join(reading.tables["kernels"], on="kernel_id")
    duration = pl.col("end_ns") - pl.col("start_ns")
    sums = joined.group_by("name").agg(
        pl.len().alias("count"), duration.sum().alias("sum"), duration.min().alias("min"), duration.max().alias("max")
    )
    return {name: tuple(found) for name, *found in sums.rows()}


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Path]:
    """Databases of three dispatches and six calls, after statements that change them; `@` stands for the suffix."""

    def make(*statements: str, name: str = "1_results.db", dispatches: int = 3) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        GENERATE.generate(path, dispatches)
        with closing(sqlite3.connect(path)) as connection:
            for statement in statements:
                connection.execute(statement.replace("@", SUFFIX))
            connection.commit()
        return path

    return make


class TestRealCaptures:
    def test_every_dispatch_of_the_mi300x_is_there_and_linked_to_its_call(self) -> None:
        path = real(MI300X)
        reading = checked(path)
        found = evidence_of(reading)
        assert reading.tables["dispatches"].height == 151
        assert (found["launch calls of kernels"].status, found["launch calls of kernels"].rows) == ("present", 151)
        linked = reading.tables["dispatches"].join(
            reading.tables["api_calls"], on=["process_id", "correlation_id"], validate="m:1"
        )
        assert sorted(linked["name"].value_counts().rows()) == [("hipLaunchKernel", 150), ("hipMemset", 1)]
        domains = dict(reading.tables["api_calls"]["domain"].value_counts().rows())
        assert domains == {"hip_compiler": 304, "hip_runtime": 325}
        source = {item: (i, o) for item, i, o in reading.details["source_rows"].rows()}
        assert source["rocpd_kernel_dispatch"] == (151, 151)
        assert source["rocpd_region"] == (629, 629)
        assert source["rocpd_arg"] == (2177, 0)
        assert found["rocpd_arg"].status == "absent"
        device = reading.tables["devices"].row(0, named=True)
        assert reading.tables["devices"].height == 8
        assert device["handle"] == "5600"
        assert (device["arch"], device["product"]) == ("gfx942", "AMD Instinct MI300X")
        assert (device["compute_units"], device["xcc_count"], device["simd_per_cu"]) == (304, 8, 4)
        assert (device["wavefront_size"], device["max_clock_mhz"]) == (64, 2100.0)
        assert (device["memory_bytes"], device["memory_bus_bits"]) == (206141652992, 8192)
        assert (device["l2_bytes"], device["lds_bytes"]) == (4 << 20, 64 << 10)
        assert reading.details["device_keys"]["pci_address"].n_unique() == 8
        assert reading.tables["dispatches"]["start_ns"][0] == 1071423114883652
        assert set(reading.tables["environment"]["key"]) == {"LD_PRELOAD"}

    @pytest.mark.parametrize("name", [MI300X, MI350X, GFX1250])
    def test_the_sums_by_kernel_equal_the_views_of_the_file(self, name: str, tmp_path: Path) -> None:
        path = real(name)
        plain = path
        if path.suffix == ".gz":
            plain = tmp_path / "plain.db"
            plain.write_bytes(gzip.decompress(path.read_bytes()))
        ours = kernel_sums(checked(path))
        theirs = rows(
            plain, "SELECT name, count(*), sum(duration), min(duration), max(duration) FROM kernels GROUP BY name"
        )
        assert ours == {kernel: tuple(found) for kernel, *found in theirs}
        top = {
            kernel: found
            for kernel, *found in rows(plain, "SELECT name, total_calls, total_duration, average FROM top")
        }
        for kernel, (count, total, _, _) in ours.items():
            assert top[kernel] == [count, total / 1000.0, total // count / 1000.0]

    def test_all_43915_dispatches_of_the_mi350x(self) -> None:
        reading = checked(real(MI350X))
        dispatches = reading.tables["dispatches"]
        assert dispatches.height == 43_915
        assert dispatches["correlation_id"].null_count() == 0
        assert (dispatches["queue_id"].n_unique(), dispatches["stream_id"].n_unique()) == (
            reading.details["queues"].height,
            reading.details["streams"].height,
        )
        assert (dispatches["end_ns"] - dispatches["start_ns"]).sum() == 4_441_741_378
        assert reading.tables["kernels"].height == 80
        assert evidence_of(reading)["launch calls of kernels"].reason == "no calls were recorded"
        assert reading.details["dispatch_keys"]["source_dispatch_id"].n_unique() == 43_915

    def test_the_counters_of_twelve_passes_equal_the_view(self) -> None:
        total = 0
        for number in range(1, 13):
            path = real(f"mi300x_rocpd_pmc_passes/pass_{number}_DERIVED_results.db")
            reading = checked(path)
            counters = (
                reading.tables["counters"]
                .drop("source_dispatch_id")
                .join(reading.details["dispatch_keys"], on="dispatch_id")
            )
            ours = {
                (row["source_dispatch_id"], row["counter"]): (row["value"], row["pass_duration_ns"])
                for row in counters.iter_rows(named=True)
            }
            view = rows(path, "SELECT dispatch_id, counter_name, value, duration FROM counters_collection")
            assert ours == {(dispatch, counter): (value, duration) for dispatch, counter, value, duration in view}
            assert set(counters["pass"]) == {f"pass_{number}_DERIVED_results"}
            total += counters.height
        assert total == 6_027

    def test_a_gfx1250_without_calls(self) -> None:
        reading = checked(real(GFX1250))
        assert reading.tables["dispatches"].height == 5
        assert reading.tables["devices"]["arch"].to_list() == ["gfx1250"]
        assert reading.tables["devices"]["wavefront_size"].to_list() == [32]
        assert evidence_of(reading)["API calls"].status == "absent"

    def test_an_rpd_database_is_no_rocpd_database(self) -> None:
        path = real("rpd_not_rocprofv3/matmul_result.rpd")
        assert rocpd.probe(path) is None
        with pytest.raises(CaptureError, match="RPD database of rocmProfileData"):
            rocpd.read(path)


class TestTraps:
    def test_a_made_database(self, made: Callable[..., Path]) -> None:
        reading = checked(made(dispatches=40_000))  # several chunks
        assert evidence_of(reading)["launch calls of kernels"].rows == 40_000
        assert reading.tables["api_calls"]["correlation_id"].to_list() == list(range(1, 80_001))
        assert reading.details["dispatch_keys"]["source_dispatch_id"].to_list() == list(range(1, 40_001))

    def test_times_beyond_two_to_the_53_stay_exact(self, made: Callable[..., Path]) -> None:
        start = 2**62 + 1
        path = made(f"UPDATE rocpd_kernel_dispatch@ SET start = {start}, end = {start + 3} WHERE id = 1")
        assert checked(path).tables["dispatches"].row(0, named=True)["start_ns"] == start

    def test_rows_without_thread_event_or_description_are_kept(self, made: Callable[..., Path]) -> None:
        path = made(
            "UPDATE rocpd_kernel_dispatch@ SET tid = NULL WHERE id = 1",
            "UPDATE rocpd_kernel_dispatch@ SET event_id = NULL WHERE id = 2",
            "UPDATE rocpd_kernel_dispatch@ SET kernel_id = 999, agent_id = 77, pid = 5 WHERE id = 3",
        )
        reading = checked(path)
        dispatches = reading.tables["dispatches"]
        assert dispatches.height == 3
        assert dispatches["thread_id"].to_list() == [None, 28, 28]
        assert dispatches["correlation_id"].to_list() == [2, None, 6]
        assert "unknown kernel 999" in reading.tables["kernels"]["name"].to_list()
        assert reading.tables["devices"]["handle"].to_list() == ["5600", "agent 77"]
        assert reading.tables["processes"]["pid"].to_list() == [28, None]
        found = evidence_of(reading)
        assert {"threads of dispatches", "correlation of dispatches", "described kernels"} <= set(found)
        assert {"described devices", "described processes"} <= set(found)
        # The third dispatch is of another process, so the same correlation is not its call.
        assert (found["launch calls of kernels"].status, found["launch calls of kernels"].rows) == ("partial", 1)

    def test_reversed_times_are_kept_and_told(self, made: Callable[..., Path]) -> None:
        reading = checked(made("UPDATE rocpd_kernel_dispatch@ SET end = start - 7 WHERE id = 2"))
        dispatch = reading.tables["dispatches"].row(1, named=True)
        assert (dispatch["end_ns"] - dispatch["start_ns"], dispatch["self_ns"]) == (-7, 0)
        assert evidence_of(reading)["kernel dispatches"].status == "partial"

    def test_overlap_on_a_queue_is_counted(self, made: Callable[..., Path]) -> None:
        path = made("UPDATE rocpd_kernel_dispatch@ SET queue_id = 1, start = 10 + id, end = 20 + 10 * id")
        assert evidence_of(checked(path))["order on a queue"].rows == 2

    def test_threads_and_processes_need_not_have_the_systems_ids(self, made: Callable[..., Path]) -> None:
        path = made(
            "UPDATE rocpd_info_process@ SET pid = 4711",
            "UPDATE rocpd_info_thread@ SET tid = 4712",
            "UPDATE rocpd_info_process@ SET command = 'run --api-key abc'",
            """UPDATE rocpd_info_process@ SET environment = '{"SLURM_PROCID": "1", "RANK": "3", "HSA_XNACK": "1",
            "HF_TOKEN": "hf_x"}'""",
        )
        reading = checked(path)
        process = reading.tables["processes"].row(0, named=True)
        assert (process["pid"], process["rank"], process["host"]) == (4711, 3, "37ca13315e70")
        assert process["command"] == "run --api-key redacted"
        assert reading.tables["dispatches"]["thread_id"].to_list() == [4712] * 3
        assert reading.tables["environment"]["key"].to_list() == ["HSA_XNACK"]

    def test_markers_and_instants(self, made: Callable[..., Path]) -> None:
        path = made(
            "INSERT INTO rocpd_track@ (id, nid, pid, tid, name_id) VALUES (1, 1966562287, 28, 28, 10)",
            "INSERT INTO rocpd_track@ (id, nid, pid, tid, name_id) VALUES (2, 1966562287, 28, 28, 7)",
            """INSERT INTO rocpd_event@ (id, category_id, stack_id, extdata) VALUES
            (900, 6, 900, '{"message": "step 1"}'), (901, 6, 901, '{"message": "now"}'), (902, 2, 902, '{}'),
            (903, 4, 903, '{}'), (904, 6, 904, '{}')""",
            """INSERT INTO rocpd_region@ (nid, pid, tid, start, end, name_id, event_id)
            VALUES (1, 28, 28, 5, 9, 10, 900), (1, 28, 28, 6, 8, 10, 904)""",
            "INSERT INTO rocpd_sample@ (track_id, timestamp, event_id) VALUES (1, 7, 901), (2, 8, 902), (2, 9, 903)",
        )
        reading = checked(path)
        assert reading.tables["markers"].select("name", "start_ns", "end_ns").rows() == [
            ("step 1", 5, 9),
            ("roctxRangePushA", 6, 8),
            ("now", 7, 7),
        ]
        instant = reading.tables["api_calls"].row(-1, named=True)
        assert (instant["name"], instant["start_ns"], instant["end_ns"]) == ("hipLaunchKernel", 8, 8)
        assert instant["correlation_id"] == 902
        source = {item: (i, o) for item, i, o in reading.details["source_rows"].rows()}
        assert (source["rocpd_region"], source["rocpd_sample"]) == ((8, 8), (3, 2))
        assert evidence_of(reading)["samples of kernel_dispatch"].rows == 1

    def test_copies_and_allocations(self, made: Callable[..., Path]) -> None:
        path = made(
            """INSERT INTO rocpd_memory_copy@ (nid, pid, tid, start, end, name_id, dst_agent_id, src_agent_id, size,
            stream_id, event_id) VALUES (1, 28, 28, 1, 2, 9, 2, 0, 4096, 3, 1),
            (1, 28, NULL, 1, 2, 1, 0, 66, 8, 3, 2)""",
            """INSERT INTO rocpd_memory_allocate@ (nid, pid, tid, agent_id, type, level, start, end, address, size)
            VALUES (1, 28, 28, 2, 'ALLOC', 'REAL', 1, 2, -1, 64), (1, 28, 28, 0, 'FREE', 'VIRTUAL', 1, 2, 5, 0),
            (1, 28, 28, 2, 'ALLOC', 'SCRATCH', 1, 2, NULL, 0)""",
        )
        reading = checked(path)
        copy = reading.tables["memory_copies"].row(0, named=True)
        assert (copy["direction"], copy["device_id"], copy["source_device_id"]) == ("host_to_device", 0, None)
        assert (copy["size_bytes"], copy["correlation_id"]) == (4096, 1)
        other = reading.tables["memory_copies"].row(1, named=True)
        assert (other["direction"], other["device_id"]) == (None, None)
        assert evidence_of(reading)["agents of memory operations"].rows == 1
        allocations = reading.tables["memory_allocations"].select("kind", "operation", "size_bytes", "address")
        assert allocations.rows() == [
            ("memory", "ALLOC", 64, 2**64 - 1),
            ("memory", "VIRTUAL_FREE", None, 5),
            ("scratch", "ALLOC", 0, None),
        ]

    def test_counters_are_summed_over_instances_and_only_of_kernels(self, made: Callable[..., Path]) -> None:
        event = 2 * 3 + 1  # the first dispatch's, after those of two calls for each
        path = made(
            "ALTER TABLE rocpd_pmc_event@ ADD COLUMN sample_id INTEGER",
            "INSERT INTO rocpd_info_pmc@ (id, nid, pid, name, symbol) VALUES (5, 1, 28, 'SQ_WAVES', 'SQ_WAVES')",
            f"""INSERT INTO rocpd_pmc_event@ (event_id, pmc_id, value, sample_id) VALUES ({event}, 5, 0.1, NULL),
            ({event}, 5, 2, NULL), ({event}, 5, 100, 1),
            (1, 5, 9, NULL), ({event}, 6, 4, NULL), ({event}, 5, NULL, NULL)""",
            name="pass_3/host/1_results.db",
        )
        reading = checked(path)
        counters = reading.tables["counters"].select("dispatch_id", "counter", "value", "pass").rows()
        assert counters == [(0, "SQ_WAVES", 2.1, "pass_3"), (0, "unknown counter 6", 4.0, "pass_3")]
        found = evidence_of(reading)
        assert found["streamed counter samples"].rows == 1
        assert found["counters of no kernel"].rows == 1
        assert found["empty counters"].rows == 1

    def test_columns_are_found_by_name(self, made: Callable[..., Path]) -> None:
        path = made(
            "ALTER TABLE rocpd_kernel_dispatch@ ADD COLUMN graph_node_id INTEGER NOT NULL DEFAULT 0",
            "UPDATE rocpd_kernel_dispatch@ SET graph_node_id = 4 WHERE id = 2",
            "ALTER TABLE rocpd_kernel_dispatch@ DROP COLUMN stream_id",
            "UPDATE rocpd_metadata@ SET value = '3.0.2' WHERE tag = 'schema_version'",
        )
        dispatches = checked(path).tables["dispatches"]
        assert dispatches["graph_node_id"].to_list() == [None, 4, None]
        assert dispatches["stream_id"].to_list() == [None] * 3

    def test_a_newer_schema_is_read_through_its_tracks_and_told(self, made: Callable[..., Path]) -> None:
        path = made(
            "INSERT INTO rocpd_track@ (id, nid, pid, tid, name_id) VALUES (1, 1966562287, 28, 28, 1)",
            *(f"ALTER TABLE rocpd_region@ DROP COLUMN {name}" for name in ("nid", "pid", "tid")),
            "ALTER TABLE rocpd_region@ ADD COLUMN track_id INTEGER DEFAULT 1",
            "CREATE TABLE rocpd_info_category@ (id INTEGER PRIMARY KEY, name TEXT)",
            "INSERT INTO rocpd_info_category@ VALUES (2, 'HIP_RUNTIME_API'), (3, 'HSA_FINALIZE_EXT_API')",
            "UPDATE rocpd_metadata@ SET value = '4.1.0' WHERE tag = 'schema_version'",
        )
        reading = checked(path)
        assert set(reading.tables["api_calls"]["thread_id"]) == {28}
        assert set(reading.tables["api_calls"]["domain"]) == {"hip_runtime", "hsa_finalizer"}
        assert "4.1.0" in str(evidence_of(reading)["rocpd schema"].reason)

    def test_several_processes_in_one_database(self, made: Callable[..., Path], tmp_path: Path) -> None:
        second = tmp_path / "second.db"
        with closing(GENERATE.create(second, OTHER_GUID)) as connection:
            connection.commit()
        path = made()
        other = "_" + OTHER_GUID.replace("-", "_")
        with closing(sqlite3.connect(path)) as connection:
            GENERATE.add_tables(connection, OTHER_GUID)
            connection.execute("ATTACH ? AS second", (str(second),))
            for kind in GENERATE.SCHEMA:
                connection.execute(f"INSERT INTO rocpd_{kind}{other} SELECT * FROM second.rocpd_{kind}{other}")
            for kind in ("event", "region", "kernel_dispatch"):
                columns = [row[1] for row in connection.execute(f"PRAGMA table_info(rocpd_{kind}{other})")]
                listed = ", ".join(f'"{name}"' for name in columns if name != "guid")
                connection.execute(
                    f"INSERT INTO rocpd_{kind}{other} ({listed}) SELECT {listed} FROM rocpd_{kind}{SUFFIX}"
                )
            connection.commit()
        reading = checked(path)
        dispatches = reading.tables["dispatches"]
        assert reading.tables["processes"]["guid"].to_list() == [GENERATE.GUID, OTHER_GUID]
        assert dispatches["dispatch_id"].to_list() == list(range(6))
        assert dispatches["process_id"].to_list() == [0, 0, 0, 1, 1, 1]
        assert dispatches["device_id"].to_list() == [0, 0, 0, 1, 1, 1]
        assert dispatches["kernel_id"].to_list() == dispatches["kernel_id"].to_list()[:3] * 2
        assert evidence_of(reading)["launch calls of kernels"].rows == 6

    def test_an_id_that_is_no_uuid(self, tmp_path: Path) -> None:
        path = tmp_path / "rocpd.db"
        digest = "9e107d9d372bb6826bd81d3542a419d6"
        with closing(GENERATE.create(path, digest)) as connection:
            connection.commit()
        reading = checked(path)
        assert reading.tables["processes"]["guid"].to_list() == [digest]
        assert evidence_of(reading)["kernel dispatches"].status == "absent"


class TestBadInput:
    def test_a_packed_database_reads_the_same(self, made: Callable[..., Path], tmp_path: Path) -> None:
        path = made()
        packed = tmp_path / "1_results.db.gz"
        packed.write_bytes(gzip.compress(path.read_bytes()))
        assert rocpd.probe(packed) == rocpd.probe(path)
        assert checked(packed).tables["dispatches"].equals(checked(path).tables["dispatches"])
        with pytest.raises(CaptureError, match="when unpacked"):
            rocpd.read(packed, Limits(file_bytes=10_000))
        packed.write_bytes(packed.read_bytes()[:-200])
        with pytest.raises(CaptureError, match="cannot be unpacked"):
            rocpd.read(packed)

    @pytest.mark.parametrize(
        ("content", "reason"),
        [
            (b"", "not an SQLite database"),
            (b"nothing of the kind", "not an SQLite database"),
            (b"SQLite format 3\0", "cut off"),
            (bytes(range(256)) * 40, "encrypted"),
        ],
    )
    def test_strangers(self, content: bytes, reason: str, tmp_path: Path) -> None:
        path = tmp_path / "stranger.db"
        path.write_bytes(content)
        assert rocpd.probe(path) is None
        with pytest.raises(CaptureError, match=reason):
            rocpd.read(path)

    def test_another_programs_database_and_what_is_no_file(self, tmp_path: Path) -> None:
        path = tmp_path / "other.db"
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE notes (id INTEGER)")
        for stranger in (path, tmp_path, tmp_path / "missing.db"):
            assert rocpd.probe(stranger) is None
            with pytest.raises(CaptureError):
                rocpd.read(stranger)

    def test_a_cut_file(self, made: Callable[..., Path]) -> None:
        path = made()
        path.write_bytes(path.read_bytes()[:-4096])
        assert rocpd.probe(path) is not None
        with pytest.raises(CaptureError, match="cut off"):
            rocpd.read(path)

    @pytest.mark.parametrize(
        ("ending", "content"),
        [("-journal", b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(504)), ("-wal", struct.pack(">I", 0x377F0682))],
    )
    def test_an_unfinished_file(self, ending: str, content: bytes, made: Callable[..., Path]) -> None:
        path = made()
        beside = path.with_name(path.name + ending)
        beside.write_bytes(content)
        with pytest.raises(CaptureError, match="was not finished"):
            rocpd.read(path)
        beside.write_bytes(bytes(512))  # a journal that was ended by wiping its head
        assert checked(path).tables["dispatches"].height == 3

    @pytest.mark.parametrize(
        "statement",
        [
            "UPDATE rocpd_kernel_dispatch@ SET start = 'soon' WHERE id = 2",
            "UPDATE rocpd_kernel_dispatch@ SET start = '1],[2' WHERE id = 2",
            "UPDATE rocpd_kernel_dispatch@ SET start = 1.5 WHERE id = 2",
            "UPDATE rocpd_kernel_dispatch@ SET start = 1e300 WHERE id = 2",
            "UPDATE rocpd_kernel_dispatch@ SET start = x'00ff' WHERE id = 2",
            "INSERT INTO rocpd_pmc_event@ (event_id, pmc_id, value) VALUES (1, 1, 'much')",
        ],
    )
    def test_values_of_another_type(self, statement: str, made: Callable[..., Path]) -> None:
        with pytest.raises(CaptureError):
            rocpd.read(made(statement))

    def test_duplicate_event_ids(self, made: Callable[..., Path]) -> None:
        path = made(
            "DROP VIEW rocpd_event",
            "CREATE TABLE copy AS SELECT * FROM rocpd_event@",
            "INSERT INTO copy SELECT * FROM rocpd_event@",
            "DROP TABLE rocpd_event@",
            "ALTER TABLE copy RENAME TO rocpd_event@",
        )
        with pytest.raises(CaptureError, match="not unique"):
            rocpd.read(path)

    def test_tables_behind_an_extension(self, tmp_path: Path) -> None:
        path = tmp_path / "packed.db"
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE _rocpd_string_zstd (data BLOB)")
            connection.execute("CREATE VIEW rocpd_metadata AS SELECT zstd_decompress(data) FROM _rocpd_string_zstd")
        with pytest.raises(CaptureError, match="SQLite extension"):
            rocpd.read(path)

    def test_hostile_text(self, made: Callable[..., Path]) -> None:
        deep = "[" * 100_000
        path = made(
            f"UPDATE rocpd_info_agent@ SET extdata = '{deep}'",
            "UPDATE rocpd_info_process@ SET environment = '[1, 2', command = x'80ff'",
            "UPDATE rocpd_string@ SET string = CAST(x'ff80' AS TEXT) WHERE id = 7",
        )
        reading = checked(path)
        assert reading.tables["devices"]["compute_units"].to_list() == [None]
        assert reading.tables["devices"]["handle"].to_list() == ["agent 2"]

    def test_limits(self, made: Callable[..., Path]) -> None:
        path = made()
        with pytest.raises(CaptureError, match="limit of 10"):
            rocpd.read(path, Limits(events=10))
        with pytest.raises(CaptureError, match="more than 4096 bytes"):
            rocpd.read(path, Limits(file_bytes=4096))

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
    @given(data=st.data())
    def test_no_bytes_bring_out_anything_but_a_capture_error(self, data: st.DataObject, tmp_path: Path) -> None:
        original = tmp_path / "original.db"
        if not original.exists():
            GENERATE.generate(original, 2)
        content = original.read_bytes()
        changes = st.tuples(st.integers(0, len(content) - 1), st.integers(0, 255))
        broken = tmp_path / "broken.db"
        broken.write_bytes(damaged(content, data.draw(st.lists(changes, min_size=1, max_size=6))))
        read_or_refused(rocpd, broken)


def test_the_capture_stays_as_it_was(made: Callable[..., Path]) -> None:
    path = made()
    before = path.read_bytes()
    path.chmod(0o400)
    checked(path)
    assert path.read_bytes() == before
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    shutil.rmtree(path.parent, ignore_errors=True)
