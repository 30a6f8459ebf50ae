"""What a search is made with: the target, the proposers, the static verdict, and the kernel a session points at."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import polars as pl

from aaco_pipeline.errors import UnavailableError, UsageError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.optimization.calls import Launch
from aaco_pipeline.optimization.candidates import Proposer
from aaco_pipeline.optimization.loop.means import Static
from aaco_pipeline.optimization.proposers import PROPOSERS
from aaco_pipeline.optimization.proposers.language_model import LanguageModelProposer
from aaco_pipeline.optimization.proposers.questions import Ask
from aaco_pipeline.optimization.targets import Target
from aaco_pipeline.resources.language_model.client import Client
from aaco_pipeline.resources.language_model.settings import key_of, load_language_model
from aaco_pipeline.resources.targets.cpu import CpuTarget
from aaco_pipeline.resources.targets.cpu.compiler import find_compiler
from aaco_pipeline.resources.targets.gpu.target import find_gpu
from aaco_pipeline.resources.toolchains.amdgpu.finding import Missing
from aaco_pipeline.resources.toolchains.amdgpu.verdict import static_verdict

TargetChoice = Literal["auto", "amd", "cuda", "cpu"]
CHOICES: Final[tuple[TargetChoice, ...]] = ("auto", "amd", "cuda", "cpu")


@dataclass(frozen=True)
class Ranked:
    """A kernel of a session: its time on the critical path, and the part of it above its roof; null where not known."""

    name: str
    critical_ns: int
    headroom_ratio: float | None

    @property
    def weight_ns(self) -> float:
        """Criticality × headroom: the most that could be saved. A kernel whose roof is not known may save it all."""
        return self.critical_ns * (1.0 if self.headroom_ratio is None else self.headroom_ratio)


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


def proposers_of(configs: Path, kept: Callable[[Ask], Ask]) -> tuple[Proposer, ...]:
    """Who is asked: the deterministic ones, then the language model of `configs`, where one is configured.

    `kept` makes of an asker one that keeps what was asked and answered.
    """
    settings = load_language_model(configs)
    if settings is None:
        return PROPOSERS
    return (*PROPOSERS, LanguageModelProposer(kept(Client(settings, key_of(settings))), settings.model))


def ranked_kernels(lake: TraceLake, session: str) -> list[Ranked]:
    """A session's kernels by criticality × headroom, the most to gain first; of `what_if` and `roofline`."""
    names = lake.read("kernels", session).select("kernel_id", pl.col("name").cast(pl.String))
    critical = lake.read("what_if", session).group_by("kernel_id").agg(pl.col("critical_ns").max())
    roof = lake.read("roofline", session).filter(pl.col("dispatch_id").is_null())
    headroom = roof.group_by("kernel_id").agg(headroom_ratio=1 - pl.col("efficiency_ratio").max().clip(0, 1))
    table = names.join(critical, on="kernel_id").join(headroom, on="kernel_id", how="left")
    rows = table.select("name", "critical_ns", "headroom_ratio").drop_nulls("critical_ns").iter_rows()
    return sorted((Ranked(*row) for row in rows), key=lambda one: (-one.weight_ns, one.name))


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


def same_kernel(recorded: str, name: str) -> bool:
    """Whether a recorded kernel is the source's `name`: it is recorded with parameters or template arguments, too."""
    plain = (
        recorded.removesuffix(".kd").replace("(anonymous namespace)::", "").split("(", 1)[0].split("<", 1)[0].strip()
    )
    return plain.split(" ")[-1].split("::")[-1] == name


# ---- inside ----------------------------------------------------------------------------------------------------------


def _is_called(kernel: str) -> pl.Expr:
    return pl.col("name").cast(pl.String).map_elements(lambda name: same_kernel(name, kernel), return_dtype=pl.Boolean)


def _cpu() -> Target:
    try:
        find_compiler()
    except UsageError as error:
        raise UnavailableError(f"target cpu: {error}") from error
    return CpuTarget()
