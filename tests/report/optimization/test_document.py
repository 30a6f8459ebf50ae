"""The document of a search: the journal's own figures, and the words when the journal is gone."""

import json
import math
from pathlib import Path

import pytest

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.optimization.document import optimization_report
from aaco_pipeline.report.optimization.evidence import next_steps, patch_lines, static_intro
from aaco_pipeline.report.session.sentences import Document
from tests.report.searched import SLOWER, changed, searched


def test_ratios_of_layouts_are_those_that_were_decided_by(search: Document) -> None:
    for row in search["evidence"]["timings"]:
        assert sorted(row["layouts"])[len(row["layouts"]) // 2] == pytest.approx(row["speedup_ratio"])
        assert min(row["layouts"]) <= row["ci_low"] <= row["ci_high"] <= max(row["layouts"])
    told = {row["attempt"]: row["speedup_ratio"] for row in search["attempts"]}
    last = search["evidence"]["timings"][-1]
    assert last["step"] == "confirmation" and math.isclose(told[last["attempt"]], last["speedup_ratio"])


def test_a_journal_that_is_gone_or_cannot_be_read_is_reported_and_the_tables_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, name = searched(tmp_path, monkeypatch, SLOWER, static=False)
    document = optimization_report(lake, name)
    assert document["evidence"]["static"] == [] and "no compiler for AMD GPUs" in static_intro(document)
    assert document["evidence"]["launched_in"] is None and document["evidence"]["patch_text"] is None
    journal = lake.path / document["journal"]
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join([lines[0].replace('"version": 1', '"version": 99'), *lines[1:], ""]))
    assert "version 99" in optimization_report(lake, name)["evidence"]["lacking"]
    journal.unlink()
    gone = optimization_report(lake, name)
    assert gone["evidence"]["lacking"] == f"{document['journal']} is not in the lake any more"
    assert gone["evidence"]["timings"] == [] and gone["attempts"] == document["attempts"]


def test_a_search_that_was_killed_has_what_it_wrote_by_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, name = searched(tmp_path, monkeypatch, SLOWER)
    journal = TraceLake(lake.path).path / optimization_report(lake, name)["journal"]
    lines = journal.read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines[:2]] == ["begin", "baseline"]
    journal.write_text(f"{lines[0]}\n{lines[1][:40]}")
    evidence = optimization_report(lake, name)["evidence"]
    assert evidence["timings"] == evidence["static"] == [] and "was killed" in evidence["notes"][0]


def test_what_to_do_says_how_the_change_is_applied_taken_back_and_launched(search: Document) -> None:
    (_, apply), (_, again) = next_steps(search)
    assert apply == f"patch -p1 < LAKE/{search['patch']}" and search["optimization_id"] in str(again)
    told = next_steps(changed({**search, "is_applied": True}, launched_in=[128, 1, 1]))
    assert [str(one)[:11] for _, one in told] == ["patch -R -p", "None", "aaco optimi"]
    assert "workgroups of 128 × 1 × 1 work-items" in told[1][0]


def test_lines_of_a_diff_are_distinguished_and_those_that_look_like_its_head_too() -> None:
    text = "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n---i;\n+++i;\n kept\n\\ No newline at end of file\n"
    assert [kind for kind, _ in patch_lines(text)] == ["file", "file", "hunk", "removed", "added", "kept", "hunk"]
