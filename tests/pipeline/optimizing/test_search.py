"""A search from its question to its patch: what is in the lake, what becomes of the source, and deciding it again."""

import subprocess
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake import storage
from aaco_pipeline.lake.health import faults
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.optimization.harness import NoHarness
from aaco_pipeline.optimization.loop import search
from aaco_pipeline.optimization.loop.attempt import Decision
from aaco_pipeline.optimization.loop.checking import HarnessChecker
from aaco_pipeline.optimization.loop.means import Builder, Record, Version
from aaco_pipeline.optimization.loop.search import optimize, time_whole
from aaco_pipeline.pipeline.optimizing import search as running
from aaco_pipeline.pipeline.optimizing.asking import Order
from aaco_pipeline.pipeline.optimizing.record import find_optimization, read_kept
from aaco_pipeline.pipeline.optimizing.search import Ended, decide_again, run
from aaco_pipeline.report.optimization.document import optimization_document, optimization_report
from aaco_pipeline.report.optimization.evidence import circumstances
from aaco_pipeline.resources.confinement import sandbox
from tests.pipeline.optimizing.stand_in import BROKEN, SOURCE, WRONG, Offers, costing

FASTER = costing(8000)
OFFERS = (costing(9900), BROKEN, WRONG, FASTER)


def searched(lake: TraceLake, source: Path, *, apply: bool = False) -> Ended:
    return run(source.parent, lake, Order(source, target="cpu", apply=apply), lambda line: None)


def test_what_was_accepted_is_a_patch_and_the_source_stays(
    empty_lake: TraceLake, source: Path, offering: Callable[..., None]
) -> None:
    offering(*OFFERS)
    ended = searched(empty_lake, source)
    assert source.read_bytes() == SOURCE
    assert ended.patch is not None and ended.patch.is_relative_to(empty_lake.path)
    done = subprocess.run(
        ["patch", "-p1", "-i", str(ended.patch)], cwd=source.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert source.read_bytes() == FASTER


def test_the_lake_holds_the_question_and_every_attempt_with_its_reason(
    empty_lake: TraceLake, source: Path, offering: Callable[..., None]
) -> None:
    offering(*OFFERS)
    ended = searched(empty_lake, source)
    question = empty_lake.read("optimizations", ended.name).row(0, named=True)
    assert question["ended_by"] == "searched" and question["kernel"] == "twice"
    assert question["executed_on"] == "cpu-emulation" and question["speedup_applies_to"] == "cpu"
    assert question["session"] is None and question["is_applied"] is False
    attempts = empty_lake.read("optimization_attempts", ended.name)
    told = attempts.select("decision", "guard", "measured_in").rows()
    assert told == [
        ("rejected", "not_faster", "search"),
        ("rejected", "compile", None),
        ("rejected", "outputs", None),
        ("accepted", "confirmation", "confirmation"),
    ]
    assert attempts.get_column("reason").str.len_chars().min() > 0  # type: ignore[operator]
    accepted = attempts.row(3, named=True)
    assert accepted["speedup_ratio"] == pytest.approx(1.25, rel=0.01)
    assert accepted["ci_low"] <= accepted["speedup_ratio"] <= accepted["ci_high"]
    assert accepted["pairs"] > 0 and accepted["layouts"] >= 4
    compiled = attempts.row(1, named=True)
    assert compiled["binary_sha256"] is None and compiled["speedup_ratio"] is None and compiled["executed_on"] is None
    assert faults(empty_lake) == []


def test_several_changes_are_reported_as_they_were_timed_as_a_whole(
    empty_lake: TraceLake, source: Path, offering: Callable[..., None]
) -> None:
    offering(FASTER, costing(9900), costing(5000))
    ended = searched(empty_lake, source, apply=True)
    question = empty_lake.read("optimizations", ended.name).row(0, named=True)
    assert question["speedup_of"] == "whole" and question["whole_decision"] == "accepted"
    assert question["speedup_ratio"] == pytest.approx(2.0, rel=0.01)
    assert question["ci_low"] <= question["speedup_ratio"] <= question["ci_high"]
    assert question["is_applied"] and source.read_bytes() == costing(5000)
    document = optimization_document(empty_lake, ended.name)
    assert document["gain"]["of"] == "whole" and document["gain"]["ci_low"] == question["ci_low"]
    _, again = decide_again(read_kept(empty_lake, ended.name), "kept")
    assert [one.kind for one in again] == ["aa", "attempt", "attempt", "attempt", "whole"]
    assert [one.differs for one in again] == [None] * 5


def test_what_does_not_hold_as_a_whole_is_a_patch_to_look_at_and_is_not_applied(
    empty_lake: TraceLake, source: Path, offering: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    offering(FASTER, costing(5000))

    def fallen(*given: Any, **more: Any) -> tuple[Decision, dict[str, Any]]:
        decision = Decision("rejected", "layouts", "too few layouts hold", "whole", 1.9, 0.9, 2.0)
        _, record = time_whole(*given, **more)
        return decision, record | asdict(decision)

    monkeypatch.setattr(search, "time_whole", fallen)
    ended = searched(empty_lake, source, apply=True)
    assert source.read_bytes() == SOURCE and ended.patch is not None
    question = empty_lake.read("optimizations", ended.name).row(0, named=True)
    assert question["speedup_ratio"] is None and question["speedup_of"] is None and not question["is_applied"]
    assert question["whole_decision"] == "rejected" and question["result_sha256"] == question["source_sha256"]
    assert optimization_document(empty_lake, ended.name)["gain"] is None


@pytest.mark.parametrize(
    ("verdict", "lacking", "told"),
    [
        ("bit_exact", None, "0 on emulated gfx950: bit_exact"),
        (None, "v_new: no such instruction", "0 on emulated gfx950: nothing can be said, v_new: no such instruction"),
    ],
)
def test_what_was_emulated_is_reported_and_kept_in_the_journal(
    empty_lake: TraceLake,
    source: Path,
    offering: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    *,
    verdict: str | None,
    lacking: str | None,
    told: str,
) -> None:
    emulated = {"executed_on": "emulated gfx950", "verdict": verdict, "lacking": lacking}

    class Emulating(HarnessChecker):
        def check(
            self, builder: Builder, baseline: Version | None, version: Version, seed: int, *, is_deep: bool = False
        ) -> Record:
            facts = super().check(builder, baseline, version, seed, is_deep=is_deep)
            return {**facts, "emulated": emulated} if is_deep else facts

    monkeypatch.setattr(running, "checker_of", lambda harness, folder: (Emulating(harness), None))
    offering(FASTER)
    log: list[str] = []
    ended = run(source.parent, empty_lake, Order(source, target="cpu"), log.append)
    assert told in log
    lines = decide_again(read_kept(empty_lake, ended.name), "the journal")[0].lines
    assert [line["deep_correctness"]["emulated"] for line in lines if line["kind"] == "attempt"] == [emulated]


def test_with_apply_the_source_is_replaced_and_keeps_its_permissions(
    empty_lake: TraceLake, source: Path, offering: Callable[..., None]
) -> None:
    offering(FASTER)
    source.chmod(0o640)
    ended = searched(empty_lake, source, apply=True)
    assert source.read_bytes() == FASTER and source.stat().st_mode & 0o777 == 0o640
    assert empty_lake.read("optimizations", ended.name).item(0, "is_applied") is True
    assert sorted(one.name for one in source.parent.glob("*.hip")) == ["twice.hip"]


def test_a_source_that_was_changed_meanwhile_is_not_written_over(
    empty_lake: TraceLake, source: Path, offering: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    offering(FASTER)

    def edited(*given: object) -> object:
        outcome = optimize(*given)  # type: ignore[arg-type]
        source.write_bytes(b"// mine\n" + SOURCE)
        return outcome

    monkeypatch.setattr(running, "optimize", edited)
    with pytest.raises(UsageError, match=r"changed while the search ran.*\.patch"):
        searched(empty_lake, source, apply=True)
    assert source.read_bytes() == b"// mine\n" + SOURCE
    row = empty_lake.read("optimizations").row(0, named=True)
    assert row["is_applied"] is False and row["patch"] is not None


def test_nothing_is_written_where_nothing_is_accepted(
    empty_lake: TraceLake, source: Path, offering: Callable[..., None]
) -> None:
    offering(costing(9900))
    before = source.stat()
    ended = searched(empty_lake, source, apply=True)
    after = source.stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert ended.patch is None


def test_a_kept_journal_decides_itself_again(
    empty_lake: TraceLake, source: Path, offering: Callable[..., None]
) -> None:
    offering(*OFFERS)
    ended = searched(empty_lake, source)
    journal, again = decide_again(read_kept(empty_lake, find_optimization(empty_lake, ended.name[:12])), "kept")
    assert journal.is_ended and len(again) == 5
    assert [one.differs for one in again] == [None] * 5


def test_a_search_that_is_broken_off_leaves_what_it_decided(
    empty_lake: TraceLake, source: Path, offering: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    offering(*OFFERS)

    class Interrupting:
        name = "interrupting"

        def propose(self, task: object) -> object:
            yield from Offers(costing(9900)).propose(task)  # type: ignore[arg-type]
            raise KeyboardInterrupt

    monkeypatch.setattr(running, "proposers_of", lambda configs, kept: (Interrupting(),))
    with pytest.raises(KeyboardInterrupt):
        searched(empty_lake, source)
    (name,) = empty_lake.read("optimizations").get_column("campaign_id")
    assert empty_lake.read("optimizations", name).item(0, "ended_by") is None
    assert empty_lake.read("optimization_attempts", name).height == 1
    journal, again = decide_again(read_kept(empty_lake, name), "kept")
    assert not journal.is_ended and [one.differs for one in again] == [None, None]
    assert faults(empty_lake) == [] and not empty_lake.is_measuring(name)


def test_a_source_without_a_harness_begins_one_and_leaves_no_trace(
    empty_lake: TraceLake, source: Path, offering: Callable[..., None]
) -> None:
    offering()
    (source.parent / "twice_harness.py").unlink()
    with pytest.raises(NoHarness) as raised:
        searched(empty_lake, source)
    assert 'HARNESS = Harness(\n    kernel="twice"' in str(raised.value.skeleton)
    assert not empty_lake.path.exists()


@pytest.mark.parametrize(
    ("order", "told"),
    [
        ({"source": Path("/nowhere.hip")}, "No such file"),
        ({"kernel": "thrice"}, "thrice"),
        ({"session": "latest"}, "session"),
    ],
)
def test_what_is_wrongly_asked_is_reported_before_anything_is_done(
    empty_lake: TraceLake, source: Path, offering: Callable[..., None], order: dict[str, object], told: str
) -> None:
    offering()
    with pytest.raises(UsageError, match=told):
        run(source.parent, empty_lake, Order(**({"source": source} | order)), lambda line: None)  # type: ignore[arg-type]
    assert not empty_lake.path.exists()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"// \xe2\x80\xae\n", r"twice.hip: line 8: U\+202E \(RIGHT-TO-LEFT OVERRIDE\)"),
        (b"// \xe3\x85\xa4\n", r"twice.hip: line 8: U\+3164"),
        (b'#include "/etc/passwd"\n', r"twice.hip: line 8: #include of \"/etc/passwd\""),
        (b'asm(".incbin \\"/etc/passwd\\"");\n', "twice.hip: line 8: 'incbin' in a string"),
    ],
)
def test_a_baseline_that_hides_something_or_reads_a_file_is_refused_at_once(
    empty_lake: TraceLake, source: Path, offering: Callable[..., None], text: bytes, told: str
) -> None:
    offering()
    source.write_bytes(SOURCE + text)
    with pytest.raises(UsageError, match=told) as refused:
        searched(empty_lake, source)
    assert "\n" not in str(refused.value)
    assert not empty_lake.path.exists()


def test_a_source_whose_name_hides_something_is_refused_at_once(
    empty_lake: TraceLake, source: Path, offering: Callable[..., None]
) -> None:
    offering()
    with pytest.raises(UsageError, match=r"U\+202E"):
        searched(empty_lake, source.rename(source.with_name("tw\u202eice.hip")))


def test_a_patch_with_a_hidden_character_is_never_written(
    empty_lake: TraceLake, source: Path, offering: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where the guard of text would let a candidate through."""
    offering(costing(8000).replace(b"int cost", b"/* \xe2\x80\xae */ int cost"))
    monkeypatch.setattr(running, "check_text", lambda *texts, allowed: None)
    with pytest.raises(UsageError, match=r"the patch of twice.hip is not written: line \d+: U\+202E"):
        searched(empty_lake, source)
    assert list(empty_lake.path.rglob("*.patch")) == []


def test_a_candidate_with_a_hidden_character_is_rejected_and_named(
    empty_lake: TraceLake, source: Path, offering: Callable[..., None]
) -> None:
    offering(costing(8000).replace(b"int cost", b"/* \xe2\x80\xae */ int cost"))
    searched(empty_lake, source)
    attempts = empty_lake.read("optimization_attempts")
    assert attempts.get_column("guard").to_list() == ["characters"]
    assert "line 5: U+202E" in attempts.item(0, "reason")


def test_where_compilers_cannot_be_confined_the_journal_and_the_page_say_so(
    empty_lake: TraceLake, source: Path, offering: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    offering()
    monkeypatch.setattr(sandbox, "why_no_landlock", lambda: "no Landlock: because")
    log: list[str] = []
    ended = run(source.parent, empty_lake, Order(source, target="cpu"), log.append)
    assert "compilers get at every file that you may read: no Landlock: because" in log
    document = optimization_report(empty_lake, ended.name)
    assert document["evidence"]["compiler_unconfined"] == "no Landlock: because"
    assert ("Compilers got at every file of the user", "no Landlock: because", ()) in circumstances(document)


def test_what_is_no_journal_is_reported_in_one_line() -> None:
    with pytest.raises(UsageError, match="mine: it does not begin"):
        decide_again(b"", "mine")


def test_what_dead_searches_left_is_removed(
    empty_lake: TraceLake, source: Path, offering: Callable[..., None], tmp_path: Path
) -> None:
    offering()
    left = tmp_path / "cache" / "optimizing" / ".tmp-4194305-00000000"
    left.mkdir(parents=True)
    searched(empty_lake, source)
    assert list((tmp_path / "cache" / "optimizing").iterdir()) == []


def test_the_tables_are_those_of_one_campaign(
    empty_lake: TraceLake, source: Path, offering: Callable[..., None]
) -> None:
    offering(FASTER)
    ended = searched(empty_lake, source)
    manifest = empty_lake.manifest(ended.name, "campaign")
    assert {entry.table for entry in manifest.of_stage("optimization")} == {"optimizations", "optimization_attempts"}
    assert empty_lake.read("optimizations").select(pl.col("campaign_id").str.starts_with("optimize-")).item()


def test_what_a_kill_in_a_first_publication_left_is_cleared_away_by_the_next_search(
    empty_lake: TraceLake, source: Path, offering: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    offering()

    def killed(path: Path, content: bytes) -> None:
        path.with_name(".tmp-999999999-ab").write_bytes(content[:1])  # no process has that number
        raise KeyboardInterrupt

    with monkeypatch.context() as killing, pytest.raises(KeyboardInterrupt):
        (empty_lake.path / "manifests").mkdir(parents=True)
        killing.setattr(storage, "write_atomically", killed)
        searched(empty_lake, source)
    assert {fault.kind for fault in faults(empty_lake)} == {"unfinished write", "orphan file", "stale lock"}
    ended = searched(empty_lake, source)
    assert faults(empty_lake) == []
    assert empty_lake.read("optimizations").get_column("campaign_id").to_list() == [ended.name]
