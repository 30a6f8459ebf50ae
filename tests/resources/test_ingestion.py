"""Taking files in: what is kept, what is blotted out, and what is refused. No secret reaches the lake's folder."""

import gzip
import hashlib
import importlib.util
import json
import os
import sqlite3
from functools import partial
from pathlib import Path

import pytest

from aaco_pipeline.capture import ingested as ingested_capture
from aaco_pipeline.capture.discovery import discover_runs
from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.formats.parsing.redaction import RULES_VERSION
from aaco_pipeline.resources import ingestion
from aaco_pipeline.resources.ingestion import capture_digest, copy_capture
from tests.formats.examples import EXAMPLES
from tests.places import ROOT


def generate(path: Path, dispatches: int) -> None:
    """A database made by the benchmarks' generator, which is a script beside the package."""
    script = ROOT / "benchmarks/performance/generate_rocpd.py"
    specification = importlib.util.spec_from_file_location("generate_rocpd", script)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    module.generate(path, dispatches=dispatches)


TOKEN = "hf_" + "aB3dE6gH9jK2mN5pQ8sT1"
KERNELS = (
    '"Kind","Agent_Id","Queue_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id",'
    '"Start_Timestamp","End_Timestamp","Workgroup_Size_X","Grid_Size_X"\n'
    '"KERNEL_DISPATCH","Agent 1",1,77,1,5,"{name}",3,1000,2000,64,640\n'
)


def taken(path: Path, folder: Path) -> Path:
    (run,) = discover_runs(path).runs
    folder.mkdir()
    copy_capture(run, folder, "test")
    return folder


def contents(folder: Path) -> bytes:
    """Everything below the folder, unpacked, one after the other."""
    parts = []
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            content = file.read_bytes()
            parts.append(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
    return b"\n".join(parts)


def test_files_are_kept_as_they_came_with_their_digest(tmp_path: Path) -> None:
    source = tmp_path / "in/out_kernel_trace.csv"
    source.parent.mkdir()
    source.write_text(KERNELS.format(name="scale"))
    raw = taken(source.parent, tmp_path / "raw")
    assert (raw / "files/out_kernel_trace.csv").read_bytes() == source.read_bytes()
    (listed,) = ingested_capture.read(raw).listed["files"]
    assert listed["sha256"] == hashlib.sha256(source.read_bytes()).hexdigest()
    assert listed["redactions"] == 0
    assert ingested_capture.read(raw).tables()["dispatches"].height == 1


@pytest.mark.parametrize("packed", [False, True])
def test_a_token_in_a_text_is_blotted_out_and_the_rest_stays(tmp_path: Path, packed: bool) -> None:
    text = KERNELS.format(name=f"kernel_{'x' * 50} {TOKEN} end")
    folder = tmp_path / "in"
    folder.mkdir()
    if packed:
        event = {"ph": "X", "cat": "kernel", "name": f"k {TOKEN}", "pid": 0, "tid": 7, "ts": 1.5, "dur": 2}
        document = {"schemaVersion": 1, "deviceProperties": [], "traceEvents": [{**event, "args": {"device": 0}}]}
        (folder / "t.json.gz").write_bytes(gzip.compress(json.dumps(document).encode()))
    else:
        (folder / "out_kernel_trace.csv").write_text(text)
    raw = taken(folder, tmp_path / "raw")
    everything = contents(raw)
    assert TOKEN.encode() not in everything
    assert b"redacted" in everything
    capture = ingested_capture.read(raw)
    assert capture.listed["files"][0]["redactions"] == 1
    rules, item, _ = capture.evidence("files")
    assert (rules.item, rules.status) == ("redaction", "present")
    assert rules.reason == f"every file was copied by the rules of version {RULES_VERSION}"
    assert item.status == "partial"
    assert item.reason == f"1 places that looked like secrets were hidden (redaction rules {RULES_VERSION})"
    (name,) = capture.tables()["kernels"].get_column("name")
    assert name.replace("redacted", "") in ("k ", f"kernel_{'x' * 50}  end")


def test_originals_are_kept_when_asked_for_untouched_and_for_their_owner_alone(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    generate(tmp_path / "in/28_results.db", dispatches=5)
    (tmp_path / "in/a_kernel_trace.csv").write_text(KERNELS.format(name=f"kernel_{'x' * 50} {TOKEN} end"))
    (tmp_path / "in/b_kernel_trace.csv").write_text(KERNELS.format(name="other"))
    for number, run in enumerate(discover_runs(tmp_path / "in").runs):
        (tmp_path / f"{number}").mkdir()
        copy_capture(run, tmp_path / f"{number}", "test", keep_original=True)
    kept = {file.name: file for file in tmp_path.glob("[0-9]/originals/*")}
    assert set(kept) == {"28_results.db", "a_kernel_trace.csv"}, "what is the same as its copy is kept once"
    for name, file in kept.items():
        assert file.read_bytes() == (tmp_path / "in" / name).read_bytes()
        assert file.stat().st_mode & 0o777 == 0o600
        capture = ingested_capture.read(file.parents[1])
        (said,) = [one for one in capture.evidence("files") if one.item == f"original {name}"]
        assert (said.status, said.reason) == ("present", "untouched, for its owner alone")
        assert (said.source, said.sha256) == (f"raw/originals/{name}", hashlib.sha256(file.read_bytes()).hexdigest())
        assert capture.tables()["dispatches"].height


def test_no_original_is_kept_unasked(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a_kernel_trace.csv").write_text(KERNELS.format(name=f"kernel_{'x' * 50} {TOKEN} end"))
    raw = taken(tmp_path / "in", tmp_path / "raw")
    assert not (raw / "originals").exists()
    assert not [one for one in ingested_capture.read(raw).evidence("files") if one.item.startswith("original")]


def test_a_database_keeps_its_events_and_no_variable_that_is_not_allowed(tmp_path: Path) -> None:
    database = tmp_path / "in/28_results.db"
    database.parent.mkdir()
    generate(database, dispatches=20)
    variables = {"HOME": "/home/me", "ACCESS_HEADER": "hunter2-very-secret", "RANK": "3", "HIP_VISIBLE_DEVICES": "1"}
    with sqlite3.connect(database) as connection:
        (table,) = connection.execute(
            "SELECT name FROM sqlite_master WHERE name LIKE 'rocpd_info_process_%'"
        ).fetchone()
        connection.execute(f'UPDATE "{table}" SET environment = ?', (json.dumps(variables),))
    connection.close()
    before = database.read_bytes()
    raw = taken(database.parent, tmp_path / "raw")
    assert database.read_bytes() == before
    assert b"hunter2" not in contents(raw)
    assert b"/home/me" not in contents(raw)
    tables = ingested_capture.read(raw).tables()
    assert tables["dispatches"].height == 20
    assert tables["processes"].get_column("rank").to_list() == [3]
    assert ("environment_variable", "HIP_VISIBLE_DEVICES", "1") in tables["environment"].select(
        "category", "key", "value"
    ).rows()


def test_a_database_that_is_packed_stays_packed_and_is_read(tmp_path: Path) -> None:
    plain = tmp_path / "28_results.db"
    generate(plain, dispatches=20)
    packed = tmp_path / "in/28_results.db.gz"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    raw = taken(packed.parent, tmp_path / "raw")
    assert (raw / "files/28_results.db.gz").read_bytes()[:2] == b"\x1f\x8b"
    assert ingested_capture.read(raw).tables()["dispatches"].height == 20


def test_names_of_files_lose_their_secrets_and_stay_apart(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / f"a_{TOKEN}_kernel_trace.csv").write_text(KERNELS.format(name="scale"))
    for number in (1, 2):
        (folder / f"{TOKEN}{number}.txt").write_text("nothing")
    raw = taken(folder, tmp_path / "raw")
    listed = ingested_capture.read(raw).listed
    assert TOKEN.encode() not in contents(raw)
    assert [one["name"] for one in listed["files"]] == ["a_redacted_kernel_trace.csv"]
    assert sorted(one["name"] for one in listed["unread"]) == ["2_redacted.txt", "redacted.txt"]
    assert ingested_capture.read(raw).tables()["dispatches"].height == 1


def test_the_digest_is_of_the_content_and_not_of_the_names(tmp_path: Path) -> None:
    digests = []
    for number, (name, kernel) in enumerate([("a", "k"), ("b", "k"), ("a", "other")]):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / f"{name}_kernel_trace.csv").write_text(KERNELS.format(name=kernel))
        (run,) = discover_runs(folder).runs
        digests.append(capture_digest(run))
    assert digests[0] == digests[1] != digests[2]


def test_a_packed_bomb_is_not_unpacked_onto_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    head = b'{"schemaVersion": 1, "deviceProperties": [], "traceEvents": [{"ph": "X", "cat": "kernel", "name": "'
    (folder / "bomb.json.gz").write_bytes(gzip.compress(head + b"x" * 3_000_000))
    (run,) = discover_runs(folder).runs
    monkeypatch.setattr(ingestion, "Limits", partial(Limits, file_bytes=1_000_000))
    (tmp_path / "raw").mkdir()
    with pytest.raises(CaptureError, match="more than 1000000 bytes"):
        copy_capture(run, tmp_path / "raw", None)


def test_files_that_are_mostly_holes_are_not_digested(tmp_path: Path) -> None:
    EXAMPLES["thread_trace"](tmp_path)
    (folder,) = tmp_path.iterdir()
    for number in range(3):
        (folder / f"se{number}.json").touch()
        os.truncate(folder / f"se{number}.json", 1 << 40)
    (run,) = discover_runs(tmp_path).runs
    with pytest.raises(CaptureError, match=r"its files have 32985348[0-9]+ bytes, mostly holes; not read"):
        capture_digest(run)


def test_a_token_across_two_pieces_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingestion, "_CHUNK_BYTES", 5_000)
    folder = tmp_path / "in"
    folder.mkdir()
    padding = "x" * (5_000 - len(KERNELS) + 4)
    (folder / "out_kernel_trace.csv").write_text(KERNELS.format(name=f"{padding} {TOKEN} end"))
    raw = taken(folder, tmp_path / "raw")
    assert TOKEN.encode() not in contents(raw)
    assert ingested_capture.read(raw).tables()["kernels"].height == 1
