"""What a search is made with: target, proposers, static and emulated verdict, and the kernel a session points at."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import polars as pl

from aaco_pipeline.errors import UnavailableError, UsageError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.optimization.calls import Launch
from aaco_pipeline.optimization.candidates import Proposer
from aaco_pipeline.optimization.first_to_fix import READS, kernels_to_fix, same_kernel
from aaco_pipeline.optimization.harness import Harness
from aaco_pipeline.optimization.loop.checking import HarnessChecker
from aaco_pipeline.optimization.loop.emulated import EmulatedChecker
from aaco_pipeline.optimization.loop.means import Checker, Static
from aaco_pipeline.optimization.proposers import PROPOSERS
from aaco_pipeline.optimization.proposers.language_model import LanguageModelProposer
from aaco_pipeline.optimization.proposers.questions import Ask
from aaco_pipeline.optimization.targets import Target
from aaco_pipeline.resources.language_model.client import Client
from aaco_pipeline.resources.language_model.settings import key_of, load_language_model
from aaco_pipeline.resources.targets.cpu import CpuTarget
from aaco_pipeline.resources.targets.cpu.compiler import find_compiler
from aaco_pipeline.resources.targets.emulated.finding import NoEmulator
from aaco_pipeline.resources.targets.emulated.target import emulated_target
from aaco_pipeline.resources.targets.gpu.target import find_gpu
from aaco_pipeline.resources.toolchains.amdgpu.finding import Missing
from aaco_pipeline.resources.toolchains.amdgpu.verdict import static_verdict

TargetChoice = Literal["auto", "amd", "cuda", "cpu"]
CHOICES: Final[tuple[TargetChoice, ...]] = ("auto", "amd", "cuda", "cpu")


def choose_target(choice: TargetChoice) -> Target:
    """The target that was asked for; `auto` is an AMD GPU, else an NVIDIA GPU, else this processor.

    UnavailableError says in one line what is missing.
    """
    if choice == "cpu":
        return _cpu()
    if choice != "auto":
        return find_gpu(choice)
    for name in ("amd", "cuda"):
        try:
            return find_gpu(name)
        except UnavailableError:
            continue  # the next one, and at last this processor, which says itself what it lacks
    return _cpu()


def static_of(folder: Path, launch: Launch) -> tuple[Static | None, str | None]:
    """The static verdict, or why there is none. `folder` takes what is compiled."""
    found = static_verdict(folder, launch)
    return (None, found.reason) if isinstance(found, Missing) else (found, None)


def checker_of(harness: Harness, folder: Path) -> tuple[Checker, str | None]:
    """The checker of a harness, with the user's emulator where there is one, or why nothing is emulated.

    `folder` takes what is compiled.
    """
    checker, found = HarnessChecker(harness), emulated_target(folder)
    if isinstance(found, NoEmulator):
        return checker, found.reason
    return EmulatedChecker(checker, harness, found, folder), None


def proposers_of(configs: Path, kept: Callable[[Ask], Ask]) -> tuple[Proposer, ...]:
    """Who is asked: the deterministic ones, then the language model of `configs`, where one is configured.

    `kept` makes of an asker one that keeps what was asked and answered.
    """
    settings = load_language_model(configs)
    if settings is None:
        return PROPOSERS
    return (*PROPOSERS, LanguageModelProposer(kept(Client(settings, key_of(settings))), settings.model))


def ranked_kernels(lake: TraceLake, session: str) -> list[str]:
    """A session's kernels on its critical path by their recorded names, the one with most to gain first."""
    tables = {name: lake.read(name, session).drop("session_id") for name in READS}
    ranked = kernels_to_fix(tables).filter(pl.col("critical_ns") > 0)
    names = tables["kernels"].select("kernel_id", pl.col("name").cast(pl.String))
    return ranked.join(names, on="kernel_id", how="left", maintain_order="left").get_column("name").to_list()


def evidence_of(lake: TraceLake, session: str, kernel: str) -> Mapping[str, Any]:
    """What a session says of one kernel, for proposers: its label, roofline, occupancy. Empty where it has none."""
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


# ---- inside ----------------------------------------------------------------------------------------------------------


def _is_called(kernel: str) -> pl.Expr:
    return pl.col("name").cast(pl.String).map_elements(lambda name: same_kernel(name, kernel), return_dtype=pl.Boolean)


def _cpu() -> Target:
    try:
        find_compiler()
    except UsageError as error:
        raise UnavailableError(f"target cpu: {error}") from error
    return CpuTarget()
