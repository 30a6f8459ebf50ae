"""Check a request to optimize a kernel, and choose the target, proposers and static verdict of its search.

`search` runs the search; `models` handles models.
"""

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import polars as pl

from aaco_pipeline.errors import UnavailableError, UsageError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.optimization.candidates import Proposer, Refused
from aaco_pipeline.optimization.first_to_fix import READS, kernels_to_fix, same_kernel
from aaco_pipeline.optimization.guards.characters import hidden_in
from aaco_pipeline.optimization.guards.text import check_files
from aaco_pipeline.optimization.harness import Harness, load_harness
from aaco_pipeline.optimization.loop.checking import EmulatedChecker, HarnessChecker
from aaco_pipeline.optimization.loop.means import Checker, Static
from aaco_pipeline.optimization.proposers import PROPOSERS
from aaco_pipeline.optimization.proposers.language_model import Ask, LanguageModelProposer
from aaco_pipeline.optimization.source import Kernel, Unit, parse
from aaco_pipeline.optimization.targets import Launch, Target
from aaco_pipeline.pipeline.optimizing.sources import read_source
from aaco_pipeline.resources.language_model import Client, key_of, load_language_model
from aaco_pipeline.resources.targets.cpu import CpuTarget
from aaco_pipeline.resources.targets.cpu.compiler import find_compiler
from aaco_pipeline.resources.targets.emulated.target import emulated_target
from aaco_pipeline.resources.targets.gpu.target import find_gpu
from aaco_pipeline.resources.toolchains.amdgpu.finding import Missing, NoEmulator
from aaco_pipeline.resources.toolchains.amdgpu.verdict import static_verdict

TargetChoice = Literal["auto", "amd", "cuda", "cpu"]
#: Maximum number of candidates per search; they share its alpha equally, so more candidates need more layouts.
MOST_ATTEMPTS: Final = 24
DEFAULT_BUDGET_NS: Final = 600 * 1_000_000_000
DEFAULT_THRESHOLD: Final = 0.02


def choose_target(choice: TargetChoice) -> Target:
    """Find the requested target; `auto` prefers an AMD GPU, then an NVIDIA GPU, then this processor.

    UnavailableError names what is missing.
    """
    if choice == "cpu":
        return _cpu()
    if choice != "auto":
        return find_gpu(choice)
    for name in ("amd", "cuda"):
        try:
            return find_gpu(name)
        except UnavailableError:
            continue  # the last one, this processor, reports what it lacks
    return _cpu()


def static_of(folder: Path, launch: Launch) -> tuple[Static | None, str | None]:
    """Return the static verdict, or the reason why there is none. `folder` is for compiled files."""
    found = static_verdict(folder, launch)
    return (None, found.reason) if isinstance(found, Missing) else (found, None)


def checker_of(harness: Harness, folder: Path) -> tuple[Checker, str | None]:
    """Create the checker of a harness, with the user's emulator if available, else the reason why there is none.

    `folder` is for compiled files.
    """
    checker, found = HarnessChecker(harness), emulated_target(folder)
    if isinstance(found, NoEmulator):
        return checker, found.reason
    return EmulatedChecker(checker, harness, found, folder), None


def proposers_of(configs: Path, kept: Callable[[Ask], Ask]) -> tuple[Proposer, ...]:
    """List the proposers: the deterministic ones, then the language model if `configs` names one.

    `kept` wraps an asker so that questions and answers are stored.
    """
    settings = load_language_model(configs)
    if settings is None:
        return PROPOSERS
    return (*PROPOSERS, LanguageModelProposer(kept(Client(settings, key_of(settings))), settings.model))


def ranked_kernels(lake: TraceLake, session: str) -> list[str]:
    """Rank a session's kernels on its critical path by potential gain; returns recorded names, largest gain first."""
    tables = {name: lake.read(name, session).drop("session_id") for name in READS}
    ranked = kernels_to_fix(tables).filter(pl.col("critical_ns") > 0)
    names = tables["kernels"].select("kernel_id", pl.col("name").cast(pl.String))
    return ranked.join(names, on="kernel_id", how="left", maintain_order="left").get_column("name").to_list()


def evidence_of(lake: TraceLake, session: str, kernel: str) -> Mapping[str, Any]:
    """Collect a session's evidence on one kernel for proposers: label, roofline, occupancy; may be empty."""
    found = lake.read("kernels", session).filter(_is_called(kernel))
    if found.is_empty():
        return {}
    identifier = pl.col("kernel_id") == found.item(0, "kernel_id")
    label = lake.read("bottlenecks", session).filter(identifier, pl.col("scope") == "kernel")
    roof = lake.read("roofline", session).filter(identifier, pl.col("dispatch_id").is_null())
    resident = lake.read("occupancy", session).filter(identifier, pl.col("dispatch_id").is_null())
    wanted = (
        (label, ("label", "runner_up", "recommendation")),
        (roof, ("bound", "efficiency_ratio", "fabric_arithmetic_intensity", "dram_arithmetic_intensity")),
        (resident, ("theoretical_ratio", "limiter", "achieved_ratio")),
    )
    return {
        column: value
        for frame, columns in wanted
        if not frame.is_empty()
        for column in columns
        if (value := frame.item(0, column)) is not None
    }


def _is_called(kernel: str) -> pl.Expr:
    return pl.col("name").cast(pl.String).map_elements(lambda name: same_kernel(name, kernel), return_dtype=pl.Boolean)


def _cpu() -> Target:
    try:
        find_compiler()
    except UsageError as error:
        raise UnavailableError(f"target cpu: {error}") from error
    return CpuTarget()


@dataclass(frozen=True)
class Order:
    """A request to optimize. The default kernel is the session's with the largest potential gain, else the harness'."""

    source: Path
    kernel: str | None = None
    harness: Path | None = None
    session: str | None = None
    target: TargetChoice = "auto"
    budget_ns: int = DEFAULT_BUDGET_NS
    threshold_ratio: float = DEFAULT_THRESHOLD
    apply: bool = False


@dataclass(frozen=True)
class Subject:
    """The source text, its parsed kernel, its harness, and the session's evidence on the kernel."""

    path: Path
    source: bytes
    kernel: Kernel
    harness: Harness
    harness_sha256: str
    session: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)


def find_subject(order: Order, lake: TraceLake, read: Callable[[Path], bytes] = Path.read_bytes) -> Subject:
    """Read and check everything that a request names; UsageError if something is missing or invalid.

    `read` reads source and harness once each, so that the hashed bytes are those compiled and run.
    """
    once = cache(read)
    source = read_source(order.source, once)
    if hidden := hidden_in(source) or hidden_in(os.fsencode(order.source.name)):
        raise UsageError(f"{order.source}: {hidden}; take it out: nobody could read what is changed")
    try:
        unit = parse(source)
        check_files(source)
    except Refused as refused:
        raise UsageError(f"{order.source}: {refused.reason}") from refused
    if not unit.kernels:
        raise UsageError(f"{order.source} has no __global__ function, so no kernel to make faster")
    session = None if order.session is None else lake.find_session(order.session)
    name = order.kernel or _of_session(lake, session, unit)
    try:
        harness = load_harness(order.source, order.harness, name, once)
        kernel = unit.kernel(harness.kernel)
    except Refused as refused:
        names = ", ".join(one.name for one in unit.kernels)
        raise UsageError(f"{order.source}: {refused.reason}; its kernels: {names}") from refused
    assert harness.path is not None, "it was read from a file"
    digest = hashlib.sha256(once(harness.path)).hexdigest()
    evidence = {} if session is None else evidence_of(lake, session, kernel.name)
    return Subject(order.source, source, kernel, harness, digest, session, evidence)


def _of_session(lake: TraceLake, session: str | None, unit: Unit) -> str | None:
    """Choose the source's kernel with the largest potential gain in the session; None without a session.

    UsageError if the source has none of the session's kernels, because optimizing another one would be useless.
    """
    if session is None:
        return None
    ranked = ranked_kernels(lake, session)
    names = [one.name for one in unit.kernels]
    found = next((name for one in ranked for name in names if same_kernel(one, name)), None)
    if found is None:
        most = f"; most is to gain in {ranked[0]}" if ranked else ", which has no critical path"
        raise UsageError(f"the source has no kernel of session {session}{most}; name one of the source's with --kernel")
    return found
