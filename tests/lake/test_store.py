"""Publishing, reading, naming and removing sessions. What the lake finds and mends is tested in `test_health`.

That a kill at any instant leaves the old state or the new is tested in `test_publishing_killed`.
"""

import contextlib
import dataclasses
import errno
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import polars as pl
import pyarrow.parquet as pq
import pytest

from aaco_pipeline import __version__
from aaco_pipeline.errors import AacoError, ContractError, LakeError, UsageError
from aaco_pipeline.lake import contracts, layout, sql, store
from aaco_pipeline.lake.contracts import all_tables, contract, polars_schema
from aaco_pipeline.lake.declaration import NAME, STRINGS, Table, nullable
from aaco_pipeline.lake.evidence import Evidence, evidence_frame
from aaco_pipeline.lake.files import exclusive_lock
from aaco_pipeline.lake.health import faults, mend
from aaco_pipeline.lake.manifest import Entry, Manifest
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.verified import RAW_LIST
from tests.lake.published import LATER, SESSION, Filled, Metrics, Snapshot, dead_process, file_of, kernels


def values(lake: TraceLake, session: str | Sequence[str] | None = SESSION) -> list[Any]:
    return lake.read("session_metrics", session).get_column("value").to_list()


def kinds(lake: TraceLake) -> dict[str, bool]:
    return {fault.kind: fault.mendable for fault in faults(lake)}


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> Callable[[], contextlib.AbstractContextManager[Table]]:
    """A block in which the contract of `session_metrics` is one version newer, by the column `added`."""

    @contextlib.contextmanager
    def upgraded() -> Iterator[Table]:
        known = contract("session_metrics")
        added = nullable("added", STRINGS, NAME, "A column of the next version.", since=known.version + 1)
        table = dataclasses.replace(known, columns=(*known.columns, added), version=known.version + 1)
        tables = {**all_tables(), table.name: table}
        with monkeypatch.context() as patched:
            patched.setattr(contracts, "all_tables", lambda: tables)
            patched.setattr(sql, "all_tables", lambda: tables)
            yield table

    return upgraded


# ---- publishing and reading ------------------------------------------------------------------------------------------


def test_what_a_stage_publishes_is_what_one_reads(lake: TraceLake, metrics: Metrics, filled: Filled) -> None:
    signal = {"signal": "s", "value": None, "unit": "ns", "threshold": 1.0, "weight": 0.5, "source": "kernels"}
    tables = {
        "session_metrics": metrics(1.5, None),
        "kernels": kernels(filled, "gemm", "relu"),
        "bottlenecks": filled("bottlenecks", {"evidence": [[signal], []], "missing": [["a", "b"], []]}),
        "markers": filled("markers", {"marker_id": [2**31 - 1], "start_ns": [-(2**63)], "end_ns": [2**63 - 1]}),
    }
    entries = lake.publish(SESSION, "classification", tables)
    assert {entry.table for entry in entries} == set(tables)
    for name, frame in tables.items():
        found = lake.read(name, SESSION)
        assert found.schema == polars_schema(contract(name))
        assert found.get_column("session_id").to_list() == [SESSION] * frame.height
        assert found.drop("session_id").rows() == frame.rows()
    for entry in entries:
        assert entry.rows == tables[entry.table].height
        assert entry.bytes == (lake.path / entry.file).stat().st_size
        assert entry.contract_version == contract(entry.table).version
    assert lake.sessions() == [SESSION]
    assert faults(lake) == []


def test_a_lake_that_is_not_there_is_an_empty_lake(lake: TraceLake) -> None:
    assert lake.sessions() == []
    assert lake.manifests() == []
    assert faults(lake) == []
    assert lake.manifest(SESSION) == Manifest("session", SESSION)
    assert lake.read("kernels").schema == polars_schema(contract("kernels"))
    assert lake.disk_bytes(SESSION) == 0
    assert not lake.path.exists()


def test_publishing_the_same_again_gives_the_same_bytes(
    lake: TraceLake, metrics: Metrics, filled: Filled, snapshot: Snapshot, tmp_path: Path
) -> None:
    tables = {"session_metrics": metrics(1.0, 2.0), "kernels": kernels(filled, "gemm")}
    lake.publish(SESSION, "a", tables)
    before = snapshot(lake.path)
    lake.publish(SESSION, "a", tables)
    lake.publish(SESSION, "a", dict(reversed(tables.items())))
    assert snapshot(lake.path) == before
    elsewhere = TraceLake(tmp_path / "elsewhere")
    elsewhere.publish(SESSION, "a", tables)
    assert {name for name in snapshot(elsewhere.path) if not name.startswith(".locks")} <= set(before)
    for name, content in snapshot(elsewhere.path).items():
        assert name.startswith(".locks") or before[name] == content


def test_the_bytes_depend_neither_on_the_process_nor_on_its_threads_nor_on_chunks(
    tmp_path: Path, run_python: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
import sys
import polars as pl
from aaco_pipeline.lake.store import TraceLake
n = 150_000
frame = pl.DataFrame(
    {"time_ns": pl.int_range(n, eager=True), "cpu": 1, "thread_id": 1, "kind": "switch", "duration_ns": 5},
    schema_overrides={"time_ns": pl.Int64, "cpu": pl.Int32, "thread_id": pl.Int64, "duration_ns": pl.Int64},
)
if sys.argv[2] == "in chunks":
    frame = pl.concat([frame[i : i + 1000] for i in range(0, n, 1000)], rechunk=False)
    frame = frame.with_columns(pl.col("time_ns").set_sorted())
print(TraceLake(sys.argv[1]).publish(sys.argv[3], "a", {"scheduler_events": frame})[0].sha256)
"""
    digests = set()
    for threads, how in (("1", "at once"), ("4", "in chunks")):
        monkeypatch.setenv("POLARS_MAX_THREADS", threads)
        digests.add(run_python(code, tmp_path / how, how, SESSION))
    assert len(digests) == 1


def test_other_content_supersedes_what_the_stage_published_before(
    lake: TraceLake, metrics: Metrics, snapshot: Snapshot
) -> None:
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    old = file_of(lake, "session_metrics")
    lake.publish(SESSION, "a", {"session_metrics": metrics(2.0)})
    assert values(lake) == [2.0]
    assert not old.exists()
    assert list(old.parent.iterdir()) == [file_of(lake, "session_metrics")]
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    assert old.exists()
    assert faults(lake) == []


def test_a_table_that_a_stage_no_longer_publishes_is_gone(lake: TraceLake, metrics: Metrics, filled: Filled) -> None:
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0), "kernels": kernels(filled, "gemm")})
    old = file_of(lake, "kernels")
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    assert lake.read("kernels", SESSION).height == 0
    assert not old.exists()
    assert values(lake) == [1.0]
    lake.publish(SESSION, "a", {})
    assert lake.manifest(SESSION).entries == ()
    assert lake.sessions() == [SESSION]
    assert faults(lake) == []


def test_two_stages_may_publish_one_table(lake: TraceLake) -> None:
    for stage in ("a", "b"):
        lake.publish(SESSION, stage, {"evidence": evidence_frame(stage, [Evidence("x", "present")])})
    assert lake.read("evidence", SESSION).get_column("stage").to_list() == ["a", "b"]
    lake.publish(SESSION, "a", {"evidence": evidence_frame("a", [Evidence("y", "present")])})
    assert lake.read("evidence", SESSION).select("stage", "item").rows() == [("a", "y"), ("b", "x")]
    assert faults(lake) == []


def test_publishing_mends_a_file_that_was_torn(lake: TraceLake, metrics: Metrics) -> None:
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    file_of(lake, "session_metrics").write_bytes(b"torn")
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    assert values(lake) == [1.0]
    assert faults(lake) == []


def test_publishing_the_same_again_never_opens_the_published_file_for_writing(
    lake: TraceLake, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    file = file_of(lake, "session_metrics")
    content, replace, replaced = file.read_bytes(), Path.replace, []

    def replace_what_is_whole(self: Path, target: Path) -> Path:
        assert file.read_bytes() == content
        replaced.append(target)
        return replace(self, target)

    with file.open("rb") as reader:
        monkeypatch.setattr(Path, "replace", replace_what_is_whole)
        lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
        assert replaced in ([file], [])
        assert reader.read() == content


def test_a_file_says_what_it_is_and_is_compressed_sorted_and_dictionary_encoded(
    lake: TraceLake, filled: Filled
) -> None:
    lake.publish(SESSION, "kernel_trace", {"kernels": kernels(filled, *["gemm", "relu"] * 50).reverse()})
    file = pq.ParquetFile(file_of(lake, "kernels"))
    said = {key.decode(): value.decode() for key, value in file.metadata.metadata.items() if key.startswith(b"aaco.")}
    assert said == {
        "aaco.contract_version": str(contract("kernels").version),
        "aaco.table": "kernels",
        "aaco.session_id": SESSION,
        "aaco.stage": "kernel_trace",
        "aaco.writer": f"aaco_pipeline {__version__}",
    }
    chunks = {
        chunk.path_in_schema: chunk
        for i in range(file.metadata.num_columns)
        for chunk in [file.metadata.row_group(0).column(i)]
    }
    assert {chunk.compression for chunk in chunks.values()} == {"ZSTD"}
    assert "session_id" not in chunks  # it stands in the path: data sets that have it in both places are refused
    for name in ("name", "short_name"):
        assert chunks[name].has_dictionary_page
        assert any("DICTIONARY" in encoding for encoding in chunks[name].encodings)
    assert file.read().column("kernel_id").to_pylist() == list(range(100))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda f: f.drop("unit"), id="a missing column"),
        pytest.param(lambda f: f.with_columns(pl.lit(1).alias("extra")), id="a surplus column"),
        pytest.param(lambda f: f.cast({"value": pl.Float32}), id="a wrong type"),
        pytest.param(lambda f: f.with_columns(pl.lit(None, pl.String).alias("unit")), id="a null"),
        pytest.param(lambda f: f.with_columns(pl.lit(float("nan")).alias("value")), id="NaN"),
        pytest.param(lambda f: f.with_columns(pl.lit(LATER).alias("session_id")), id="another session's rows"),
    ],
)
@pytest.mark.parametrize("populated", [False, True])
def test_when_one_table_fails_its_contract_nothing_at_all_is_written(
    change: Callable[[pl.DataFrame], pl.DataFrame],
    populated: bool,
    lake: TraceLake,
    filled: Filled,
    snapshot: Snapshot,
) -> None:
    metrics = filled("session_metrics", {"metric": ["m"], "value": [1.0]})
    if populated:
        lake.publish(SESSION, "a", {"session_metrics": metrics})
    before = snapshot(lake.path)
    with pytest.raises(ContractError, match="session_metrics"):
        lake.publish(SESSION, "a", {"kernels": kernels(filled, "gemm"), "session_metrics": change(metrics)})
    assert snapshot(lake.path) == before
    assert lake.path.exists() == populated


def test_a_table_is_published_only_for_what_it_belongs_to(lake: TraceLake, metrics: Metrics, filled: Filled) -> None:
    with pytest.raises(LakeError, match="session_metrics belongs to a session, and was published for a campaign"):
        lake.publish("nightly", "a", {"session_metrics": metrics(1.0)}, scope="campaign")
    with pytest.raises(LakeError, match="verdicts belongs to a campaign, and was published for a session"):
        lake.publish(SESSION, "a", {"verdicts": filled("verdicts", {"metric": ["x"]})})
    assert not lake.path.exists()


@pytest.mark.parametrize("identifier", ["nope", "../../outside", SESSION + "/x"])
def test_a_text_that_is_no_session_id_writes_nothing_in_the_lake_or_beside_it(
    identifier: str, lake: TraceLake, metrics: Metrics, snapshot: Snapshot, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="is not a session id"):
        lake.publish(identifier, "a", {"session_metrics": metrics(1.0)})
    with pytest.raises(UsageError, match="is not a session id"):
        lake.remove(identifier)
    with pytest.raises(UsageError, match="is not a session id"), lake.receive_raw(identifier):
        raise AssertionError("a capture was received")
    assert snapshot(tmp_path) == {}


def test_a_stage_cannot_publish_outside_its_folder(lake: TraceLake, metrics: Metrics) -> None:
    for stage in ("../x", "a/b", "/x"):
        with contextlib.suppress(AacoError, ValueError):
            lake.publish(SESSION, stage, {"session_metrics": metrics(1.0)})
    folder = lake.path / "session_metrics" / f"session_id={SESSION}"
    assert [file for file in lake.path.parent.rglob("*.parquet") if file.resolve().parent != folder] == []


def test_tables_of_a_campaign_are_read_by_campaign(lake: TraceLake, metrics: Metrics, filled: Filled) -> None:
    verdicts = filled("verdicts", {"metric": ["latency_p50"], "verdict": ["equivalent"]})
    for campaign in ("20250101", "nightly"):
        lake.publish(campaign, "comparison", {"verdicts": verdicts}, scope="campaign")
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    assert lake.sessions() == [SESSION]
    assert lake.read("verdicts", "20250101").get_column("campaign_id").to_list() == ["20250101"]
    assert lake.read("verdicts").get_column("campaign_id").to_list() == ["20250101", "nightly"]
    assert lake.sql("SELECT campaign_id FROM verdicts ORDER BY 1").rows() == [("20250101",), ("nightly",)]
    assert faults(lake) == []


def test_a_campaign_named_as_a_session_leaves_the_session_as_it_is(
    lake: TraceLake, metrics: Metrics, filled: Filled
) -> None:
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    before = lake.manifest(SESSION)
    with contextlib.suppress(AacoError):
        lake.publish(SESSION, "comparison", {"verdicts": filled("verdicts", {"metric": ["x"]})}, scope="campaign")
        assert lake.read("verdicts", SESSION).height == 1
    assert lake.manifest(SESSION) == before
    assert lake.sessions() == [SESSION]


def test_one_reads_some_columns_of_a_table_with_and_without_rows(lake: TraceLake, metrics: Metrics) -> None:
    lake.publish(SESSION, "timeline", {"session_metrics": metrics(1.0, 2.0)})
    columns = ["value", "session_id"]
    assert lake.read("session_metrics", SESSION, columns).equals(lake.read("session_metrics", SESSION).select(columns))
    assert lake.read("kernels", SESSION, ["name"]).schema == {"name": pl.String}


def test_one_reads_one_session_several_or_all(lake: TraceLake, metrics: Metrics) -> None:
    lake.publish(LATER, "a", {"session_metrics": metrics(2.0)})
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    assert values(lake, SESSION) == [1.0]
    assert values(lake, "latest") == [2.0]
    assert values(lake, [LATER, "20250101"]) == [2.0, 1.0]
    assert values(lake, []) == []
    assert values(lake, None) == [1.0, 2.0]


def test_a_table_that_is_not_declared_is_named_with_the_nearest_one(lake: TraceLake) -> None:
    with pytest.raises(UsageError, match="no table 'kernel'; did you mean 'kernels'"):
        lake.read("kernel")
    with pytest.raises(UsageError, match="no table 'zzzzzz'; `aaco tables` lists them"):
        lake.read("zzzzzz")


@pytest.mark.parametrize("name", ["la ke", "l'ake", "läke", "value=7", "la{k}e", "la%20ke", "la[k]e", "la?ke", "l*e"])
def test_a_lake_may_lie_at_any_path(name: str, tmp_path: Path, metrics: Metrics) -> None:
    neighbour = TraceLake(tmp_path / "laXke")  # what a pattern in the name would find too
    neighbour.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    lake = TraceLake(tmp_path / name)
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    assert values(lake) == [1.0]
    assert lake.sql("SELECT value FROM session_metrics").rows() == [(1.0,)]
    assert faults(lake) == []


def test_one_published_file_is_read_only_as_it_was_published(lake: TraceLake, metrics: Metrics) -> None:
    (entry,) = lake.publish(SESSION, "a", {"session_metrics": metrics(1.0, None)})
    assert lake.read_entry(entry).equals(lake.read("session_metrics", SESSION))
    file = lake.path / entry.file
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(LakeError, match=rf"{file.name}: its bytes are not those published .*`aaco doctor --mend`"):
        lake.read_entry(entry)
    file.unlink()
    with pytest.raises(LakeError, match=f"{file.name}: published but missing"):
        lake.read_entry(entry)


# ---- versions --------------------------------------------------------------------------------------------------------


def test_an_older_contract_is_read_with_what_it_lacks_as_null(
    lake: TraceLake, metrics: Metrics, newer: Callable[[], contextlib.AbstractContextManager[Table]]
) -> None:
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    with newer() as table:
        assert lake.read("session_metrics").schema == polars_schema(table)
        assert lake.read("session_metrics", SESSION).select("value", "added").rows() == [(1.0, None)]
        assert lake.sql("SELECT value, added FROM session_metrics").rows() == [(1.0, None)]
        assert lake.sql("SELECT added FROM session_metrics").schema == {"added": pl.List(pl.String)}
        added = metrics(2.0).with_columns(pl.Series("added", [["x"]]))
        lake.publish(LATER, "a", {"session_metrics": added})
        both = [(1.0, None), (2.0, ["x"])]
        assert lake.read("session_metrics").select("value", "added").rows() == both
        assert lake.sql("SELECT value, added FROM session_metrics ORDER BY 1").rows() == both


def test_a_newer_contract_is_refused_by_name_and_only_where_it_matters(
    lake: TraceLake, metrics: Metrics, filled: Filled, newer: Callable[[], contextlib.AbstractContextManager[Table]]
) -> None:
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    with newer():
        frame = metrics(2.0).with_columns(pl.Series("added", [["x"]]))
        lake.publish(LATER, "a", {"session_metrics": frame, "kernels": kernels(filled, "gemm")})
    asking: list[Callable[[], object]] = [
        lambda: lake.read("session_metrics"),
        lambda: lake.read("session_metrics", LATER),
        lambda: lake.sql("SELECT count(*) FROM session_metrics"),
        lambda: lake.sql("SELECT count(*) FROM latest_sessions"),
    ]
    for reading in asking:
        with pytest.raises(LakeError) as caught:
            reading()
        said = str(caught.value)
        assert "table session_metrics" in said
        assert LATER in said
        assert "contract version 2" in said
        assert said.endswith("reads up to 1; upgrade aaco_pipeline")
        assert "\n" not in said
    assert values(lake, SESSION) == [1.0]
    assert lake.sql("SELECT name FROM kernels").rows() == [("gemm",)]


def test_one_file_of_a_newer_contract_is_refused_by_name(
    lake: TraceLake, metrics: Metrics, newer: Callable[[], contextlib.AbstractContextManager[Table]]
) -> None:
    with newer():
        frame = metrics(2.0).with_columns(pl.Series("added", [["x"]]))
        (entry,) = lake.publish(SESSION, "a", {"session_metrics": frame})
        assert lake.read_entry(entry).height == 1
    with pytest.raises(LakeError, match=r"session_metrics .* contract version 2, .* up to 1; upgrade aaco_pipeline"):
        lake.read_entry(entry)


def test_a_newer_manifest_is_refused_by_name_and_not_overwritten(
    lake: TraceLake, metrics: Metrics, snapshot: Snapshot
) -> None:
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    path = lake.path / "manifests" / f"{SESSION}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "manifest_version": 4}))
    before = snapshot(lake.path)
    for doing in (
        lake.manifests,
        lambda: lake.read("session_metrics"),
        lambda: lake.sql("SELECT * FROM session_metrics"),
        lambda: lake.publish(SESSION, "b", {"session_metrics": metrics(2.0)}),
        lambda: lake.remove(SESSION),
    ):
        with pytest.raises(LakeError, match=rf"{SESSION}\.json: manifest version 4 is newer than 3"):
            doing()
    assert snapshot(lake.path) == before


def test_a_table_of_a_later_version_of_the_lake_is_left_alone(lake: TraceLake, metrics: Metrics) -> None:
    lake.publish(SESSION, "later_stage", {"session_metrics": metrics(1.0)})
    (known,) = lake.manifest(SESSION).entries
    unknown = known._replace(table="later_table", file=known.file.replace("session_metrics", "later_table"))
    (lake.path / unknown.file).parent.mkdir(parents=True)
    shutil.move(lake.path / known.file, lake.path / unknown.file)
    manifest = Manifest("session", SESSION, (unknown,))
    (lake.path / "manifests" / f"{SESSION}.json").write_bytes(manifest.to_bytes())
    lake.publish(SESSION, "a", {"session_metrics": metrics(2.0)})
    assert unknown in lake.manifest(SESSION).entries
    assert (lake.path / unknown.file).is_file()
    assert faults(lake) == []
    assert lake.sql("SELECT value FROM session_metrics").rows() == [(2.0,)]


# ---- several processes -----------------------------------------------------------------------------------------------

PUBLISH_MANY_TIMES: Final = """
import sys
from aaco_pipeline.lake.evidence import Evidence, evidence_frame
from aaco_pipeline.lake.store import TraceLake
lake, session, stage, times = TraceLake(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
evidence_frame(stage, [])
print("ready", flush=True)
sys.stdin.readline()
for i in range(times):
    entries = lake.publish(session, stage, {"evidence": evidence_frame(stage, [Evidence("turn", "present", rows=i)])})
    assert lake.manifest(session).of_stage(stage) == entries, f"turn {i} of {stage} was lost"
    found = lake.read("evidence", session).filter(stage=stage)
    assert found.get_column("rows").to_list() == [i], f"turn {i} of {stage} reads {found}"
"""


def test_writers_of_one_session_lose_nothing_of_each_other(
    lake: TraceLake, start_python: Callable[..., "subprocess.Popen[str]"]
) -> None:
    stages = ("a", "b", "c")
    with contextlib.ExitStack() as stack:
        writers = [
            stack.enter_context(start_python(PUBLISH_MANY_TIMES, lake.path, SESSION, stage, 60)) for stage in stages
        ]
        for writer in writers:
            assert writer.stdout is not None
            writer.stdout.readline()
        for writer in writers:
            writer.communicate("go\n", timeout=60)
        assert [writer.returncode for writer in writers] == [0, 0, 0]
    found = lake.read("evidence", SESSION)
    assert found.select("stage", "rows").rows() == [(stage, 59) for stage in stages]
    assert faults(lake) == []


def test_a_writer_waits_for_another_and_gives_up_in_words(
    lake: TraceLake, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    lock = lake.path / ".locks" / f"{SESSION}.lock"
    late = threading.Thread(target=lake.publish, args=(SESSION, "a", {"session_metrics": metrics(3.0)}))
    with exclusive_lock(lock, timeout_seconds=1, purpose="a test"):
        with monkeypatch.context() as patched:
            patched.setattr(layout, "LOCK_TIMEOUT_SECONDS", 0.1)
            with pytest.raises(LakeError, match=f"{SESSION} is locked by process {os.getpid()} for more than 0.1 s"):
                lake.publish(SESSION, "a", {"session_metrics": metrics(2.0)})
        late.start()
        late.join(0.1)
        assert late.is_alive()
        assert values(lake) == [1.0]
    late.join()
    assert values(lake) == [3.0]


PUBLISH_GENERATIONS: Final = """
import sys
import polars as pl
from aaco_pipeline.lake.contracts import contract, polars_types
from aaco_pipeline.lake.store import TraceLake
lake = TraceLake(sys.argv[1])
types = polars_types("session_metrics")
def metrics(generation):
    n = 100
    columns = {"metric": [f"m{i}" for i in range(n)], "unit": ["ns"] * n, "value": [float(generation)] * n}
    return pl.DataFrame([pl.Series(c, columns.get(c, [None] * n), dtype=t) for c, t in types.items()])
for generation in range(250):
    lake.publish(sys.argv[2], "a", {"session_metrics": metrics(generation)})
    if not generation:
        print("ready", flush=True)
"""


def test_a_reader_during_publications_sees_one_whole_state_after_another(
    lake: TraceLake, start_python: Callable[..., "subprocess.Popen[str]"]
) -> None:
    seen: list[float] = []
    with start_python(PUBLISH_GENERATIONS, lake.path, SESSION) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        while writer.poll() is None:
            frame = lake.read("session_metrics", None if len(seen) % 2 else SESSION)
            assert frame.height == 100
            (generation,) = set(frame.get_column("value").to_list())
            seen.append(generation)
        assert writer.returncode == 0
    assert seen == sorted(seen)
    assert len(set(seen)) > 5
    assert values(lake)[0] == 249.0


class Overtaken(TraceLake):
    """A lake in which a writer publishes other content just after a reader learned which files there are."""

    def __init__(self, path: Path, overtakers: Iterator[pl.DataFrame]) -> None:
        super().__init__(path)
        self._overtakers = overtakers

    def published_files(self, table: Table, manifests: Sequence[Manifest]) -> list[Path]:
        files = super().published_files(table, manifests)
        if table.name == "session_metrics":
            for frame in self._overtakers:
                TraceLake(self.path).publish(SESSION, "a", {"session_metrics": frame})
                break
        return files


@pytest.mark.parametrize("through_sql", [False, True], ids=["read", "sql"])
@pytest.mark.parametrize("times", [1, 12])
def test_a_reader_overtaken_by_a_writer_reads_what_the_writer_published(
    times: int, through_sql: bool, lake: TraceLake, metrics: Metrics
) -> None:
    lake.publish(SESSION, "a", {"session_metrics": metrics(0.0)})
    overtaken = Overtaken(lake.path, iter([metrics(float(i + 1)) for i in range(times)]))
    if through_sql:
        assert overtaken.sql("SELECT value FROM session_metrics").rows() == [(float(times),)]
    else:
        assert values(overtaken) == [float(times)]


def test_a_statement_whose_file_vanishes_after_its_view_was_made_is_asked_anew(
    lake: TraceLake, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.publish(SESSION, "a", {"session_metrics": metrics(0.0)})
    create_views, overtakers = sql._create_views, [metrics(1.0)]

    def then_overtaken(*arguments: Any) -> None:
        create_views(*arguments)
        if overtakers:
            lake.publish(SESSION, "a", {"session_metrics": overtakers.pop()})

    monkeypatch.setattr(sql, "_create_views", then_overtaken)
    assert lake.sql("SELECT value FROM session_metrics").rows() == [(1.0,)]


def test_a_session_removed_while_its_manifests_are_listed_is_not_there(
    lake: TraceLake, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    for session in (SESSION, LATER):
        lake.publish(session, "a", {"session_metrics": metrics(1.0)})
    read_bytes = Path.read_bytes

    def lose_the_later_one(path: Path) -> bytes:
        if path.stem == LATER:
            path.unlink()
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", lose_the_later_one)
    assert [manifest.id for manifest in lake.manifests()] == [SESSION]
    assert lake.sessions() == [SESSION]


# ---- naming and removing ---------------------------------------------------------------------------------------------


def test_a_session_is_found_by_id_by_unique_prefix_and_as_the_latest(lake: TraceLake, metrics: Metrics) -> None:
    with pytest.raises(UsageError, match="no sessions yet"):
        lake.find_session("latest")
    others = [f"{SESSION[:-1]}b", LATER]
    for session in (LATER, SESSION, others[0]):
        lake.publish(session, "a", {"session_metrics": metrics(1.0)})
    assert lake.sessions() == [SESSION, *others]
    assert lake.find_session("latest") == LATER
    assert lake.find_session(SESSION) == SESSION
    assert lake.find_session("20250102") == LATER
    with pytest.raises(UsageError, match=f"session '20250101' is ambiguous: {SESSION}, {others[0]}"):
        lake.find_session("20250101")
    for unknown in ("1999", SESSION + "0", "0000000a"):
        with pytest.raises(UsageError, match=rf"no session '{unknown}'.*newest {LATER}"):
            lake.find_session(unknown)
        with pytest.raises(UsageError, match="no session"):
            lake.read("session_metrics", unknown)


def test_a_session_is_found_with_or_without_its_workload_and_not_by_that_alone(
    lake: TraceLake, metrics: Metrics
) -> None:
    named = f"{SESSION}-squeezenet"
    lake.publish(named, "a", {"session_metrics": metrics(1.0)})
    lake.publish(LATER, "a", {"session_metrics": metrics(1.0)})
    assert lake.sessions() == [named, LATER]
    for name in (named, SESSION, f"{SESSION}-squ", "20250101"):
        assert lake.find_session(name) == named
    with pytest.raises(UsageError, match="no session 'squeezenet'"):
        lake.find_session("squeezenet")


def test_a_removed_session_is_gone_wholly_and_the_others_are_unharmed(
    lake: TraceLake, metrics: Metrics, filled: Filled, snapshot: Snapshot
) -> None:
    lake.publish(LATER, "a", {"session_metrics": metrics(2.0)})
    before = snapshot(lake.path)
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0), "kernels": kernels(filled, "gemm")})
    with lake.receive_raw(SESSION) as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "capture.json").write_bytes(b"x" * 1000)
    for name in ("traces", "reports"):
        (lake.path / name / f"session_id={SESSION}").mkdir(parents=True)
        (lake.path / name / f"session_id={SESSION}" / "file").write_bytes(b"y" * 100)
    expected = 1200 + (lake.raw(SESSION) / RAW_LIST).stat().st_size
    expected += sum(entry.bytes for entry in lake.manifest(SESSION).entries)
    assert lake.disk_bytes(SESSION) == expected
    assert lake.remove(SESSION) == expected
    left = snapshot(lake.path)
    assert {name: content for name, content in left.items() if content is not None or SESSION in name} == {
        name: content for name, content in before.items() if content is not None
    }
    assert lake.sessions() == [LATER]
    assert lake.disk_bytes(SESSION) == 0
    assert lake.remove(SESSION) == 0
    assert faults(lake) == []


def test_a_session_is_out_of_view_before_its_first_file_is_deleted(
    lake: TraceLake, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    sessions_then: list[list[str]] = []
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: sessions_then.append(lake.sessions()))
    lake.remove(SESSION)
    assert sessions_then == [[]]
    assert kinds(lake) == {"orphan file": True}


# ---- launch requests -------------------------------------------------------------------------------------------------


def test_what_is_to_be_measured_is_kept_until_it_is_withdrawn(lake: TraceLake, snapshot: Snapshot) -> None:
    assert lake.requests() == []
    assert lake.requested(SESSION) is None
    lake.withdraw(SESSION)
    assert not lake.path.exists()
    for session in (LATER, SESSION):
        lake.request(session, f'{{"model": "größer {session}"}}')
    assert lake.requests() == [SESSION, LATER]
    assert lake.requested(SESSION) == f'{{"model": "größer {SESSION}"}}'
    lake.request(SESSION, "other")
    assert lake.requested(SESSION) == "other"
    assert lake.sessions() == []
    (lake.path / "launches" / f".tmp-{dead_process()}-0").write_bytes(b"x")
    assert lake.requests() == [SESSION, LATER]
    assert kinds(lake) == {"unfinished write": True}
    assert all(mend(lake, fault) for fault in faults(lake))
    lake.withdraw(SESSION)
    assert lake.requests() == [LATER]
    lake.remove(LATER)
    assert lake.requests() == []
    assert {name for name, content in snapshot(lake.path).items() if content is not None} == set()


def test_a_request_that_cannot_be_kept_or_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    lake = TraceLake(tmp_path / "file" / "lake")
    doing: list[Callable[[], object]] = [
        lambda: lake.request(SESSION, "x"),
        lambda: lake.requested(SESSION),
        lambda: lake.withdraw(SESSION),
    ]
    for each in doing:
        with pytest.raises(LakeError, match="Not a directory"):
            each()
    with pytest.raises(UsageError, match="is not a session id"):
        lake.request("../x", "x")


# ---- new sessions ----------------------------------------------------------------------------------------------------


def test_a_new_session_is_the_latest_whatever_the_clock_says(lake: TraceLake, metrics: Metrics) -> None:
    """Also within a second, and after the clock has stepped back by years."""
    ahead = "20990101T000000Z-0000000a"
    made = [lake.new_session("größe")]
    lake.request(made[0], "{}")
    made.append(lake.new_session())
    with lake.receive_raw(made[1]) as folder:
        (folder / "a").touch()
    made.append(lake.new_session())
    lake.publish(made[2], "a", {"session_metrics": metrics(1.0)})
    lake.publish(ahead, "a", {"session_metrics": metrics(1.0)})
    made += [ahead, lake.new_session()]
    lake.publish(made[4], "a", {"session_metrics": metrics(1.0)})
    assert made == sorted(made)
    assert made[4].startswith("20990101T000001Z-")
    assert lake.find_session("latest") == made[4]
    lake.request("99999999T999999Z-0000000a", "{}")  # an id, and no time
    assert lake.new_session().startswith("20990101T000002Z-")


# ---- raw captures ----------------------------------------------------------------------------------------------------


def test_a_capture_is_there_whole_or_not_at_all(lake: TraceLake, snapshot: Snapshot) -> None:
    with lake.receive_raw(SESSION) as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "a").write_text("1")
        assert not lake.raw(SESSION).exists()
        assert faults(lake) == []
    raw = snapshot(lake.raw(SESSION))
    digest = sha256(b"1").hexdigest()
    assert json.loads(raw.pop("digests.json") or "") == {"list_version": 1, "sha256": {"deep/a": digest}}
    assert raw == {"deep": None, "deep/a": b"1"}
    assert [path.name for path in (lake.path / "raw").iterdir()] == [f"session_id={SESSION}"]
    assert faults(lake) == []


def test_a_capture_is_never_overwritten(lake: TraceLake, snapshot: Snapshot) -> None:
    with lake.receive_raw(SESSION) as folder:
        (folder / "a").write_text("1")
    before = snapshot(lake.path)
    with (
        pytest.raises(LakeError, match="the capture is already complete; a new measurement is a new session"),
        lake.receive_raw(SESSION) as folder,
    ):
        (folder / "a").write_text("2")
    assert snapshot(lake.path) == before


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_capture_that_fails_leaves_nothing(error: type[BaseException], lake: TraceLake) -> None:
    with pytest.raises(error), lake.receive_raw(SESSION) as folder:
        (folder / "a").write_text("1")
        raise error
    assert not lake.raw(SESSION).exists()
    assert list((lake.path / "raw").iterdir()) == []


# ---- errors of the disk ----------------------------------------------------------------------------------------------

PUBLISH_LARGE: Final = """
import resource, sys
import polars as pl
from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.evidence import Evidence, evidence_frame
from aaco_pipeline.lake.store import TraceLake
limit = int(sys.argv[3])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
items = [Evidence(f"item {i * 7919 % 100003} of {i}", "present", rows=i * 104729) for i in range(int(sys.argv[4]))]
try:
    TraceLake(sys.argv[1]).publish(sys.argv[2], "a", {"evidence": evidence_frame("a", items)})
except LakeError as error:
    print(error, end="")
"""


def assert_refused_in_one_line(message: str) -> None:
    assert "check that the lake's disk is writable and has space" in message
    assert "\n" not in message


@pytest.mark.parametrize("limit", [1, 2000, 20_000])
def test_a_file_that_cannot_be_written_leaves_the_old_state(limit: int, lake: TraceLake, run_python: Any) -> None:
    lake.publish(SESSION, "a", {"evidence": evidence_frame("a", [Evidence("old", "present")])})
    before = lake.manifest(SESSION)
    message = run_python(PUBLISH_LARGE, lake.path, SESSION, limit, 20_000)
    assert_refused_in_one_line(message)
    assert "File too large" in message
    assert lake.manifest(SESSION) == before
    assert lake.read("evidence", SESSION).get_column("item").to_list() == ["old"]
    assert faults(lake) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if os.geteuid() != 0 or mount is None or umount is None:
        pytest.skip("mounting a small disk needs root and mount(8)")
    done = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"mounting a small disk is not permitted here: {done.stderr.strip()}")
    yield folder
    subprocess.run([umount, str(folder)], check=True)


def test_a_full_disk_leaves_the_old_state_and_room_makes_it_work_again(small_disk: Path, run_python: Any) -> None:
    lake = TraceLake(small_disk / "lake")
    lake.publish(SESSION, "a", {"evidence": evidence_frame("a", [Evidence("old", "present")])})
    message = run_python(PUBLISH_LARGE, lake.path, SESSION, 0, 20_000)
    assert_refused_in_one_line(message)
    assert "No space left on device" in message
    assert lake.read("evidence", SESSION).get_column("item").to_list() == ["old"]
    assert faults(lake) == []
    lake.publish(SESSION, "a", {"evidence": evidence_frame("a", [Evidence("new", "present")])})
    assert lake.read("evidence", SESSION).get_column("item").to_list() == ["new"]


@pytest.mark.parametrize("name", ["sync_file", "sync_folder", "write_atomically"])
def test_an_error_of_the_disk_at_any_step_is_one_line_and_leaves_the_old_state(
    name: str, lake: TraceLake, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(store, name, fail)
        with pytest.raises(LakeError) as caught:
            lake.publish(SESSION, "a", {"session_metrics": metrics(2.0)})
    assert_refused_in_one_line(str(caught.value))
    assert values(lake) == [1.0]
    assert set(kinds(lake)) <= {"orphan file"}
    assert all(mend(lake, fault) for fault in faults(lake))
    assert faults(lake) == []


def test_a_lake_that_cannot_be_there_is_refused_in_one_line(tmp_path: Path, metrics: Metrics) -> None:
    (tmp_path / "file").write_text("x")
    lake = TraceLake(tmp_path / "file" / "lake")
    assert lake.sessions() == []
    with pytest.raises(LakeError) as caught:
        lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    assert_refused_in_one_line(str(caught.value))
    assert str(tmp_path / "file") in str(caught.value)
    with pytest.raises(LakeError, match="Not a directory"), lake.receive_raw(SESSION):
        raise AssertionError("a capture was received")
    assert (tmp_path / "file").read_text() == "x"


def test_a_manifest_that_is_no_file_is_refused_in_one_line(lake: TraceLake) -> None:
    (lake.path / "manifests" / f"{SESSION}.json").mkdir(parents=True)
    for doing in (lake.manifests, lambda: lake.manifest(SESSION), lambda: lake.read("kernels")):
        with pytest.raises(LakeError, match="Is a directory"):
            doing()


def test_an_entry_names_the_file_by_stage_and_digest(lake: TraceLake, metrics: Metrics) -> None:
    (entry,) = lake.publish(SESSION, "stage", {"session_metrics": metrics(1.0)})
    assert isinstance(entry, Entry)
    assert entry.file == f"session_metrics/session_id={SESSION}/stage-{entry.sha256[:12]}.parquet"
