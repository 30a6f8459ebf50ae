"""What a person asks for: the source, its kernel and harness, and a session's evidence, found and checked once."""

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.first_to_fix import same_kernel
from aaco_pipeline.optimization.guards.characters import hidden_in
from aaco_pipeline.optimization.guards.files import check_files
from aaco_pipeline.optimization.harness import Harness, load_harness
from aaco_pipeline.optimization.source import Kernel, Unit, parse
from aaco_pipeline.pipeline.optimizing.choosing import TargetChoice, evidence_of, ranked_kernels
from aaco_pipeline.pipeline.optimizing.patches import read_source

#: Candidates that one search may try; each has an equal part of its alpha, so that more of them ask for more layouts.
MOST_ATTEMPTS: Final = 24
DEFAULT_BUDGET_NS: Final = 600 * 1_000_000_000
DEFAULT_THRESHOLD: Final = 0.02


@dataclass(frozen=True)
class Order:
    """What is asked for. Without a kernel it is the session's that has most to gain, else the harness' own."""

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
    """The source as it was read, its kernel as parsed, its harness, and what the session says of the kernel."""

    path: Path
    source: bytes
    kernel: Kernel
    harness: Harness
    harness_sha256: str
    session: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)


def find_subject(order: Order, lake: TraceLake, read: Callable[[Path], bytes] = Path.read_bytes) -> Subject:
    """Read and check all that is asked for. UsageError in one line when something of it is missing or wrong.

    Source and harness are read by `read`, once each: what is hashed is what is compiled and run.
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


# ---- inside ----------------------------------------------------------------------------------------------------------


def _of_session(lake: TraceLake, session: str | None, unit: Unit) -> str | None:
    """The kernel of the source that has most to gain in the session. None without a session.

    UsageError when the source has none of its kernels: another would be made faster for nothing.
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
