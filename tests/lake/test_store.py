"""Publishing is atomic, checked and reproducible, also when the process is killed at any instant."""

import contextlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import polars as pl
import pyarrow.parquet as pq
import pytest

import aaco_pipeline
from aaco_pipeline import __version__
from aaco_pipeline.errors import AacoError, ContractError, LakeError, UsageError
from aaco_pipeline.lake import storage
from aaco_pipeline.lake.contracts import contract, polars_schema
from aaco_pipeline.lake.evidence import Evidence, evidence_frame
from aaco_pipeline.lake.health import faults
from aaco_pipeline.lake.manifest import Manifest
from aaco_pipeline.lake.store import TraceLake
from tests.lake.published import LATER, SESSION, Filled, Killed, Metrics, Snapshot, file_of, kernels, values


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
    assert list(lake.manifests("session")) == []
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


def test_one_reads_a_table_some_rows_at_a_time(
    lake: TraceLake, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.publish(SESSION, "timeline", {"session_metrics": metrics(*map(float, range(7)))})
    monkeypatch.setattr("aaco_pipeline.lake.reading._BATCH_ROWS", 3)
    whole = lake.read("session_metrics", SESSION).select("value", "metric")
    batches = list(lake.batches("session_metrics", SESSION, ("value", "metric")))
    assert [batch.height for batch in batches] == [3, 3, 1]
    assert pl.concat(batches).equals(whole)
    (nothing,) = lake.batches("kernels", SESSION, ("kernel_id", "name"))
    assert nothing.equals(lake.read("kernels", SESSION, ["kernel_id", "name"]))


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


SCRIPT: Final = Path(aaco_pipeline.__file__).parents[1] / "benchmarks/reliability/kill_publishing.py"


@pytest.fixture(scope="module")
def killing() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kill_publishing", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_a_killed_writer_leaves_the_old_state_or_the_new(lake: TraceLake, killing: ModuleType) -> None:
    outcome = killing.run(lake, instants=10, seed=1)
    assert outcome.violations == []
    assert outcome.instants == 10
    assert outcome.states["old state"] + outcome.states["new state"] == 10
    assert "broken promises" in killing.summary(outcome)


def test_the_harness_sees_a_lake_that_breaks_its_promises(lake: TraceLake, killing: ModuleType) -> None:
    killing.prepare(lake)
    entries = {entry.table: lake.path / entry.file for entry in lake.manifest(killing.SESSION).of_stage(killing.STAGE)}
    entries["iterations"].unlink()
    entries["session_metrics"].write_bytes(b"torn")
    lake.publish(killing.SESSION, killing.OTHER_STAGE, {})
    complaints: list[str] = []
    killing._check_state(lake, 1, complaints, exactly=True)
    text = "\n".join(complaints)
    for part in ("published but missing: iterations", "published but torn: session_metrics", "evidence is lost"):
        assert part in text
    assert "the tables show generation 0, and 1 was done" in text


STEPS: Final[dict[str, tuple[object, str, bool, bool]]] = {
    "before the first table is written": (TraceLake, "_write", False, False),
    "before a table is synced": (storage, "sync_file", False, False),
    "before a table's folder is synced": (storage, "sync_folder", False, False),
    "before the manifest is replaced": (storage, "write_atomically", False, False),
    "after the manifest is replaced": (storage, "write_atomically", True, True),
    "before superseded files are deleted": (TraceLake, "_delete_unpublished", False, True),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_writer_that_ends_at_a_step_leaves_the_old_state_or_the_new(
    step: str, lake: TraceLake, killing: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name, after, is_new = STEPS[step]
    killing.prepare(lake)
    real: Callable[..., Any] = getattr(owner, name)

    def end(*arguments: Any, **named: Any) -> None:
        if after:
            real(*arguments, **named)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, end)
        with pytest.raises(Killed):
            lake.publish(killing.SESSION, killing.STAGE, killing.generation_frames(1))
    complaints: list[str] = []
    assert killing._check_state(lake, int(is_new), complaints, exactly=True) == int(is_new)
    lake.publish(killing.SESSION, killing.STAGE, killing.generation_frames(2))
    assert killing._check_state(lake, 2, complaints, exactly=True) == 2
    assert complaints == []
    assert faults(lake) == []
