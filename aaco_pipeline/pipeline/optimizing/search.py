"""Run a kernel search from question to patch, with the lower bound of the kernel's time and the predicted gain.

The loop is in `aaco_pipeline.optimization.loop`; `record` stores searches in the lake.
"""

import hashlib
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import Any, Final

import numpy as np
import polars as pl

from aaco_pipeline import __version__
from aaco_pipeline.analysis.timeline.activities import RECORDED_FROM, recorded
from aaco_pipeline.analysis.timeline.critical_path import effect_of_kernel
from aaco_pipeline.errors import UsageError
from aaco_pipeline.hardware.architecture_files import architecture
from aaco_pipeline.lake.calibrations import machine_of, read_calibration
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.optimization.first_to_fix import same_kernel
from aaco_pipeline.optimization.guards.characters import hidden_in
from aaco_pipeline.optimization.guards.text import check_text
from aaco_pipeline.optimization.harness import Harness
from aaco_pipeline.optimization.journal import Journal, JournalError, read_journal
from aaco_pipeline.optimization.loop.attempt import sha256
from aaco_pipeline.optimization.loop.configurations import replay_configurations
from aaco_pipeline.optimization.loop.means import Limits, Means, Question
from aaco_pipeline.optimization.loop.replay import Replayed, replay
from aaco_pipeline.optimization.loop.search import Gain, Outcome, optimize
from aaco_pipeline.optimization.loop.timing import RuleTimer, plan_record, recorded_plan
from aaco_pipeline.optimization.proposers.language_model import Ask
from aaco_pipeline.optimization.proposers.language_model import Question as Prompt
from aaco_pipeline.optimization.targets import Target, TargetName
from aaco_pipeline.optimization.timing_rule import Plan
from aaco_pipeline.pipeline.comparing.campaigns import new_name
from aaco_pipeline.pipeline.optimizing.asking import (
    MOST_ATTEMPTS,
    Order,
    Subject,
    checker_of,
    choose_target,
    find_subject,
    proposers_of,
    static_of,
)
from aaco_pipeline.pipeline.optimizing.record import Recorder, journal_path, open_journal
from aaco_pipeline.pipeline.optimizing.sources import replace_source, unified_diff
from aaco_pipeline.pipeline.scratch import scratch
from aaco_pipeline.resources.confinement import sandbox
from aaco_pipeline.resources.host.facts import host_facts
from aaco_pipeline.resources.language_model import Recorded
from aaco_pipeline.resources.measure.measurement_slot import measurement_slot

_ARCHITECTURE: Final = re.compile(r"\(([^()\s]+)\)$")
_NOTHING: Final = dict.fromkeys(
    ("effect_scope", "critical_share_ratio", "shorter_ratio", "shorter_low_ratio", "shorter_high_ratio")
)

_THREADS: Final = 1
_NS: Final = 1e9
Log = Callable[[str], None]
SCRATCH: Final = "optimizing"
_CALL_DISTRIBUTION: Final = "normal"


def predicted_effect(lake: TraceLake, session: str, kernel: str, gain: Gain | None, applies_to: str) -> dict[str, Any]:
    """Predict a kernel gain's effect on the application: the columns of `optimizations` from `effect_scope` on.

    The gain `applies_to` one device and predicts nothing for another architecture. Unpredicted values are null, with
    the reason in `effect_reason`.
    """
    kernels = lake.read("kernels", session).filter(
        pl.col("name").cast(pl.String).map_elements(lambda name: same_kernel(name, kernel), return_dtype=pl.Boolean)
    )
    if kernels.height != 1:
        many = f"has {kernels.height} kernels called {kernel}, and the gain is of one" if kernels.height else None
        return {**_NOTHING, "effect_reason": f"the session {many or f'has no kernel {kernel}'}"}
    number = kernels.item(0, "kernel_id")
    reason = _why_not(lake, session, number, gain, applies_to)
    speedups = () if gain is None or reason is not None else (gain.speedup_ratio, gain.ci_low, gain.ci_high)
    tables = {name: lake.read(name, session).drop("session_id") for name in RECORDED_FROM}
    effect = effect_of_kernel(recorded(tables), tables["iterations"], number, speedups)
    if effect is None:
        return {**_NOTHING, "effect_reason": "the session has no times of device work"}
    shorter = effect.shorter_ratios or (None, None, None)
    return {
        "effect_scope": effect.scope,
        "critical_share_ratio": effect.share_ratio,
        **dict(zip(("shorter_ratio", "shorter_low_ratio", "shorter_high_ratio"), shorter, strict=True)),
        "effect_reason": reason,
    }


def _why_not(lake: TraceLake, session: str, kernel: int, gain: Gain | None, applies_to: str) -> str | None:
    """Explain why the gain predicts nothing for the device that ran the kernel; None if it does."""
    if gain is None:
        return "no gain was found"
    ran = lake.read("dispatches", session).filter(pl.col("kernel_id") == kernel).select("device_id").unique()
    devices = lake.read("devices", session).join(ran, on="device_id", how="semi")
    names = sorted({str(one) for one in devices.get_column("arch").drop_nulls()})
    there = " and ".join(names) or "a device that names no architecture"
    found = _ARCHITECTURE.search(applies_to)
    if found is None:
        here = "cpu-emulation" if applies_to == "cpu" else applies_to
        return f"the gain was measured on {here}, which says nothing of the session's {there}"
    if not names or devices.get_column("arch").null_count() or {_plain(one) for one in names} != {_plain(found[1])}:
        return f"the gain was measured on {found[1]}, and the session ran on {there}"
    return None


def _plain(name: str) -> str:
    """Return an architecture's name as in the architecture files, without features."""
    known = architecture(name)
    return name.partition(":")[0].lower() if known is None else known.name


def floor_ns(
    lake: Path, harness: Harness, target: TargetName, facts: list[dict[str, Any]]
) -> tuple[float | None, str | None]:
    """Compute the minimum time in ns of one call at the timed size, or explain why there is none.

    The rates are the highest of any format and cache level: a faster call cannot have done its work. `facts` are the
    host's.
    """
    if target != "cpu":
        return None, f"no measured ceilings of the {target} device: `aaco calibrate` measures this host's processor"
    machine = machine_of({(one["category"], one["key"]): one["value"] for one in facts})
    calibration = read_calibration(lake, machine, _THREADS)
    if calibration is None:
        return None, "this machine is not calibrated for one thread: run `aaco calibrate --threads 1`"
    rates = {
        unit: max((one.value for one in calibration.ceilings if one.unit == unit), default=None)
        for unit in ("flop/s", "byte/s")
    }
    flops, moved = harness.floor(harness.timed_size(target))
    times = [
        _NS * work / rate for work, rate in ((flops, rates["flop/s"]), (moved, rates["byte/s"])) if rate is not None
    ]
    return (max(times), None) if times else (None, "the calibration of this machine holds no rates")


@dataclass(frozen=True)
class Ended:
    """A finished search: its name in the lake, its outcome, and the path of its patch, if any."""

    name: str
    outcome: Outcome
    patch: Path | None


def run(
    configs: Path, lake: TraceLake, order: Order, log: Log, read: Callable[[Path], bytes] = Path.read_bytes
) -> Ended:
    """Search, publish after every attempt, and store accepted changes as a patch; with `apply` replace the source.

    AacoError if something requested is missing or invalid, before the lake is written. `read` reads source and harness
    once each; the source is written only at the end, and only if it is unchanged. `configs` is the settings folder,
    which may name a language model.
    """
    subject = find_subject(order, lake, read)
    target = choose_target(order.target)
    if (unconfined := sandbox.why_no_landlock()) is not None:
        log(f"compilers get at every file that you may read: {unconfined}")
    proposers = proposers_of(configs, lambda ask: ask)  # report a misconfigured endpoint first
    name, began_at = new_name("optimize")
    log(f"{name}: {subject.kernel.name} of {subject.path.name} on {target.executed_on}")
    with (
        lake.measuring(name),
        measurement_slot(on_wait=log),
        scratch(SCRATCH) as folder,
        open_journal(lake, name) as journal,
    ):
        recorder = Recorder(lake, name, began_at, journal)
        kept = partial(_kept, recorder, journal_path(lake.path, name).with_name("exchanges"))
        proposers = proposers_of(configs, kept)
        question, means, begin = _prepared(order, subject, target, folder, lake)
        outcome = optimize(
            question, means(proposers=proposers, record=telling(recorder, log), tell=log), begin | {"campaign": name}
        )
        patch = _keep(order, subject, outcome, recorder)
        if subject.session is not None:
            applies_to = str(recorder.lines[0]["speedup_applies_to"])
            recorder.effect = predicted_effect(lake, subject.session, subject.kernel.name, recorder.gain, applies_to)
            recorder.publish()
    return Ended(name, outcome, patch)


def decide_again(content: bytes, source: str) -> tuple[Journal, list[Replayed]]:
    """Recompute a journal's decisions from its content; UsageError if it is not a journal or contradicts itself."""
    try:
        journal = read_journal(content)
        if "specification" in journal.begin:
            return journal, replay_configurations(journal)
        return journal, replay(journal, check_text, _replaying)
    except (JournalError, KeyError, TypeError) as error:
        raise UsageError(f"{source}: {error}") from error


def telling(recorder: Recorder, log: Log) -> Callable[[Mapping[str, Any]], None]:
    """Return a recorder of lines that also logs progress for the user."""

    def record(line: Mapping[str, Any]) -> None:
        recorder.write(line)
        if line["kind"] == "attempt":
            gain = "" if line["speedup_ratio"] is None else f" {line['speedup_ratio']:.3f} times as fast"
            log(f"{line['attempt']} {line['transformation']}: {line['decision']}{gain} ({line['guard']})")
            emulated = line.get("deep_correctness", {}).get("emulated")
            if emulated is not None:
                said = emulated["verdict"] or f"nothing can be said, {emulated['lacking']}"
                log(f"{line['attempt']} on {emulated['executed_on']}: {said}")
        elif line["kind"] == "whole":
            log(f"the accepted changes as a whole: {line['decision']} ({line['guard']}): {line['reason']}")

    return record


def _prepared(
    order: Order, subject: Subject, target: Target, folder: Path, lake: TraceLake
) -> tuple[Question, Callable[..., Means], dict[str, Any]]:
    """Prepare the question, the means known so far, and the journal's first line."""
    harness, seed = subject.harness, SystemRandom().getrandbits(62)
    launch = harness.drawn(harness.timed_size(target.name), _CALL_DISTRIBUTION, np.random.default_rng(seed)).launch
    (static_folder := folder / "static").mkdir()
    static, lacking = static_of(static_folder, launch)
    (emulated_folder := folder / "emulated").mkdir()
    checker, not_emulated = checker_of(harness, emulated_folder)
    # The combination of all accepted changes is confirmed again: one more claim, with an equal share of alpha.
    plan = Plan(threshold=order.threshold_ratio, candidates=MOST_ATTEMPTS + 1)
    facts = host_facts()["facts"]
    cache_facts = {str(one["key"]): one["value"] for one in facts if one["category"] == "cache"}
    floor, no_floor = floor_ns(lake.path, harness, target.name, facts)
    question = Question(
        source=subject.source,
        kernel=subject.kernel.name,
        parameters=subject.kernel.parameters,
        block=launch.block,
        limits=Limits(order.budget_ns, MOST_ATTEMPTS),
        seed=seed,
        evidence=subject.evidence,
    )
    means = partial(
        Means,
        target=target,
        check_text=check_text,
        static=static,
        checker=checker,
        timer=RuleTimer(plan, seed, harness, floor),
        now_ns=time.monotonic_ns,
        folder=folder / "search",
    )
    begin = {
        "writer": f"aaco_pipeline {__version__}",
        "source_name": subject.path.name,
        "session": subject.session,
        "harness_sha256": subject.harness_sha256,
        "threshold_ratio": order.threshold_ratio,
        "alpha": plan.alpha,
        "plan": plan_record(plan),
        "static": {"lacking": lacking},
        "emulated": {"lacking": not_emulated},
        # Reason why source compilers are not confined to their installation and folder; empty if they are.
        "compiler_files": {"lacking": sandbox.why_no_landlock()},
        "floor": {"call_ns": floor, "lacking": no_floor},
        # Sources are compiled in an empty folder, and for the confirmation again in another one.
        "caches": {"compiled": "cold: empty folders", "tuned": "none is used", **cache_facts},
        "environment": facts,
    }
    return question, means, begin


def _kept(recorder: Recorder, folder: Path, ask: Ask) -> Ask:
    """Wrap an asker so that each exchange is stored next to the journal, with both digests in the journal."""
    keeping = Recorded(ask, folder)

    def asked(prompt: Prompt) -> str:
        answer = keeping(prompt)
        digest = hashlib.sha256(answer.encode("utf-8", "surrogatepass")).hexdigest()
        recorder.write({"kind": "exchange", "prompt_sha256": prompt.sha256, "answer_sha256": digest})
        return answer

    return asked


def _keep(order: Order, subject: Subject, outcome: Outcome, recorder: Recorder) -> Path | None:
    """Store the accepted changes as a patch in the lake; with `apply` also replace the source, if it is unchanged.

    Changes whose combination was not confirmed are stored as a patch for inspection, and never applied.
    """
    recorder.is_applied, patch, unwritten = False, None, None
    after = subject.source if outcome.held is None else outcome.held.version.source
    if after != subject.source:
        name = subject.path.name
        written = unified_diff(subject.source, after, name)
        if (hidden := hidden_in(written)) is not None:
            raise UsageError(f"the patch of {name} is not written: {hidden}")
        patch = recorder.keep_patch(written, f"{subject.path.stem}.patch")
        if order.apply and outcome.is_kept:
            try:
                replace_source(subject.path, sha256(subject.source), after)
                recorder.is_applied = True
            except UsageError as error:
                unwritten = UsageError(f"{error}; the patch is {patch}")
    recorder.publish()
    if unwritten is not None:
        raise unwritten
    return patch


def _replaying(begin: Mapping[str, Any]) -> RuleTimer:
    return RuleTimer(recorded_plan(begin["plan"]), begin["seed"])
