"""Run one kernel search from its question to its patch, with the lower bound of its time and the predicted gain.

The loop itself is `aaco_pipeline.optimization.loop`. What the lake keeps of a search is `record`.
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
from aaco_pipeline.pipeline.optimizing.record import Recorder, journal_path, new_name, open_journal
from aaco_pipeline.pipeline.optimizing.sources import replace_source, unified_diff
from aaco_pipeline.pipeline.scratch import scratch
from aaco_pipeline.resources.confinement import landlock
from aaco_pipeline.resources.host.facts import host_facts
from aaco_pipeline.resources.language_model import Recorded
from aaco_pipeline.resources.measure.measurement_slot import measurement_slot

_ARCHITECTURE: Final = re.compile(r"\(([^()\s]+)\)$")
_NOTHING: Final = dict.fromkeys(
    ("effect_scope", "critical_share_ratio", "shorter_ratio", "shorter_low_ratio", "shorter_high_ratio")
)


def predicted_effect(lake: TraceLake, session: str, kernel: str, gain: Gain | None, applies_to: str) -> dict[str, Any]:
    """The columns of `optimizations` from `effect_scope` on, for a gain that `applies_to` a device.

    What is not predicted is null, and `effect_reason` says why.
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


# ---- inside ----------------------------------------------------------------------------------------------------------


def _why_not(lake: TraceLake, session: str, kernel: int, gain: Gain | None, applies_to: str) -> str | None:
    """Why the gain predicts nothing of the device that ran the kernel in the session."""
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
    """An architecture by one name: without its features, and as the architecture files call it."""
    known = architecture(name)
    return name.partition(":")[0].lower() if known is None else known.name


_THREADS: Final = 1
_NS: Final = 1e9


def floor_ns(
    lake: Path, harness: Harness, target: TargetName, facts: list[dict[str, Any]]
) -> tuple[float | None, str | None]:
    """The floor of one call at the timed size, or why there is none; `facts` are the host's.

    The rates are the highest of any format and any level of cache: what is faster than that did not do its work.
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


Log = Callable[[str], None]
SCRATCH: Final = "optimizing"
_CALL_DISTRIBUTION: Final = "normal"


@dataclass(frozen=True)
class Ended:
    """A search that came to its end: its name in the lake, what it found, and where the patch lies, if there is one."""

    name: str
    outcome: Outcome
    patch: Path | None


def run(
    configs: Path, lake: TraceLake, order: Order, log: Log, read: Callable[[Path], bytes] = Path.read_bytes
) -> Ended:
    """Search, publish after every attempt, and leave a patch of what was accepted; with `apply` replace the source.

    `configs` is the folder of settings, where a language model may be named. AacoError when something asked for is
    missing or wrong, before the lake is written. Source and harness are read once, by `read`; the source is written at
    the very end at most, and only where it is still as it was read.
    """
    subject = find_subject(order, lake, read)
    target = choose_target(order.target)
    if (unconfined := landlock.lacking()) is not None:
        log(f"compilers get at every file that you may read: {unconfined}")
    proposers = proposers_of(configs, lambda ask: ask)  # an endpoint that is wrongly configured is told first
    name, began_at = new_name()
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
    """A journal's decisions made again from what it holds. UsageError when it is no journal, or contradicts itself."""
    try:
        journal = read_journal(content)
        if "specification" in journal.begin:
            return journal, replay_configurations(journal)
        return journal, replay(journal, check_text, _replaying)
    except (JournalError, KeyError, TypeError) as error:
        raise UsageError(f"{source}: {error}") from error


def telling(recorder: Recorder, log: Log) -> Callable[[Mapping[str, Any]], None]:
    """Keeps each line, then says what a person wants to see of it while the search goes on."""

    def record(line: Mapping[str, Any]) -> None:
        recorder.write(line)
        if line["kind"] == "attempt":
            gain = ""
            if line["speedup_ratio"] is not None:
                gain = f" {line['speedup_ratio']:.3f} times as fast"
            log(f"{line['attempt']} {line['transformation']}: {line['decision']}{gain} ({line['guard']})")
            emulated = line.get("deep_correctness", {}).get("emulated")
            if emulated is not None:
                said = emulated["verdict"] or f"nothing can be said, {emulated['lacking']}"
                log(f"{line['attempt']} on {emulated['executed_on']}: {said}")
        elif line["kind"] == "whole":
            log(f"the accepted changes as a whole: {line['decision']} ({line['guard']}): {line['reason']}")

    return record


# ---- inside ----------------------------------------------------------------------------------------------------------


def _prepared(
    order: Order, subject: Subject, target: Target, folder: Path, lake: TraceLake
) -> tuple[Question, Callable[..., Means], dict[str, Any]]:
    """The question, the means but for what is given when it is asked, and what the journal begins with."""
    harness, seed = subject.harness, SystemRandom().getrandbits(62)
    launch = harness.drawn(harness.timed_size(target.name), _CALL_DISTRIBUTION, np.random.default_rng(seed)).launch
    (static_folder := folder / "static").mkdir()
    static, lacking = static_of(static_folder, launch)
    (emulated_folder := folder / "emulated").mkdir()
    checker, not_emulated = checker_of(harness, emulated_folder)
    # What is accepted is confirmed once more as a whole: a claim beside the candidates', with an equal part of alpha.
    plan = Plan(threshold=order.threshold_ratio, candidates=MOST_ATTEMPTS + 1)
    facts = host_facts()["facts"]
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
        # What compiles a source here gets at its own installation and its folder alone, or it is said why not.
        "compiler_files": {"lacking": landlock.lacking()},
        "floor": {"call_ns": floor, "lacking": no_floor},
        # What is compiled is compiled in an empty folder, and once more in another one to be confirmed.
        "caches": {"compiled": "cold: empty folders", "tuned": "none is used", **_cache_facts(facts)},
        "environment": facts,
    }
    return question, means, begin


def _cache_facts(facts: list[dict[str, Any]]) -> dict[str, Any]:
    return {f"{one['key']}": one["value"] for one in facts if one["category"] == "cache"}


def _kept(recorder: Recorder, folder: Path, ask: Ask) -> Ask:
    """Asks, keeps the exchange beside the journal, and writes both digests into it."""
    keeping = Recorded(ask, folder)

    def asked(prompt: Prompt) -> str:
        answer = keeping(prompt)
        recorder.write(
            {
                "kind": "exchange",
                "prompt_sha256": prompt.sha256,
                "answer_sha256": hashlib.sha256(answer.encode("utf-8", "surrogatepass")).hexdigest(),
            }
        )
        return answer

    return asked


def _keep(order: Order, subject: Subject, outcome: Outcome, recorder: Recorder) -> Path | None:
    """The patch of what was accepted, in the lake; with `apply` the source is replaced by it, as it was read.

    Changes that did not hold as a whole are kept as a patch for a person to look at, and never applied.
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
