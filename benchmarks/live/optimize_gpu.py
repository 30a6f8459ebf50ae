"""The guarded optimization loop on a real GPU: bad kernels refused, identical code never accepted.

`--target amd` for an AMD GPU; `--results FILE` keeps every decision. Needs numpy, scipy and tree-sitter-cuda only.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.guards.text import check_text
from aaco_pipeline.optimization.harness import Harness, load_harness
from aaco_pipeline.optimization.loop.checking import HarnessChecker
from aaco_pipeline.optimization.loop.means import Limits, Means, Question
from aaco_pipeline.optimization.loop.search import Outcome, optimize
from aaco_pipeline.optimization.loop.timing import InterleavedPairs, RuleTimer, plan_record
from aaco_pipeline.optimization.proposers import PROPOSERS
from aaco_pipeline.optimization.source import parse
from aaco_pipeline.optimization.targets import Buffer, Call, Execution, Launch, Layout, Scalar
from aaco_pipeline.optimization.timing_rule import Pairs, Plan, against_itself, decide, draw_layouts, log_ratio
from aaco_pipeline.resources.targets.gpu.target import GpuTarget, find_gpu

SAMPLES: Final = Path(__file__).parents[2] / "aaco_pipeline" / "optimization" / "samples"
#: Samples with the sizes that are timed here: large enough for a GPU, small enough that drawing and checking contents
#: on the host leaves time for many layouts.
SIZES: Final[Mapping[str, Any]] = {"row_dot": (4096, 256), "tiled_gemm": (512, 512, 512), "softmax": (4096, 256)}
PLAN: Final = Plan(pairs=8, candidates=4, confirming_layouts=(12, 16))
_DISTRIBUTION: Final = "normal"
_BAD_SECONDS: Final = 4.0
_ELEMENTS: Final = 100_003
_SUM: Final = "if (i < n) out[i] = a[i] + b[i];"
#: Bodies of a kernel that is to add two vectors, and the guard that refuses each.
BAD: Final = {
    "writes one element past the end": ("if (i <= n) out[i] = a[i % n] + b[i % n];", "memory"),
    "writes one element before the begin": (f"{_SUM} if (i == 0) out[-1] = 1.0f;", "memory"),
    "writes far outside": ("out[(size_t)i << 40] = a[0];", "memory"),
    "changes an input": (f"{_SUM} if (i == n - 1) a[i] += 1.0f;", "inputs"),
    "never ends": (f"{_SUM} volatile float* seen = out; while (seen[0] == seen[0]) {{}}", "time"),
    "prints": (f'{_SUM} printf("%d", i);', "symbols"),
    "allocates": ("float* p = (float*)malloc(4); *p = a[0]; out[i % n] = *p;", "symbols"),
    "keeps a value from call to call": (f"{_SUM} static float kept; kept += 1.0f; out[0] = kept;", "symbols"),
    "leaves half undone": ("if (i < n / 2) out[i] = a[i] + b[i];", "outputs"),
    "is wrong in one element": (f"{_SUM} if (i == 77) out[i] += 1.0f;", "outputs"),
    "asks for too much local data share": (_SUM, "resources"),
}

Log = Callable[[Mapping[str, Any]], None]


def main() -> int:
    """Run all parts, print their table, and say whether every claim held."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", choices=("cuda", "amd"), default="cuda")
    parser.add_argument("--decisions", type=int, default=51, help="identical code is judged so often")
    parser.add_argument("--seconds", type=int, default=85, help="for the search on each sample")
    parser.add_argument("--seed", type=int, default=20261123)
    parser.add_argument("--results", type=Path, default=None)
    options = parser.parse_args()
    began = time.monotonic()
    target = find_gpu(options.target)

    def log(line: Mapping[str, Any]) -> None:
        if options.results is not None:
            with options.results.open("a") as stream:
                stream.write(json.dumps(line) + "\n")

    log({"kind": "begin", "executed_on": target.executed_on, "clock": target.clock, "seed": options.seed})
    print(f"{target.name}: {target.executed_on}; {target.clock}", flush=True)
    with tempfile.TemporaryDirectory(prefix="aaco-optimize-gpu-") as name:
        folder = Path(name)
        broken = guards(target, folder / "guards", log)
        broken += identical(target, folder / "identical", options.decisions, options.seed, log)
        broken += searches(target, folder / "searches", options.seconds, options.seed, log)
        broken += well(target, folder / "well")
    print(f"{'; '.join(broken) if broken else 'all claims hold'} ({time.monotonic() - began:.0f} s)")
    return 1 if broken else 0


# ---- guards ----------------------------------------------------------------------------------------------------------


def guards(target: GpuTarget, folder: Path, log: Log) -> list[str]:
    """Each bad kernel, and who refused it."""
    broken = []
    for number, (what, (body, expected)) in enumerate(BAD.items()):
        lds = 1 << 20 if expected == "resources" else 0
        began = time.monotonic()
        guard, reason = _outcome(target, _adding(body), folder / str(number), lds)
        held = guard == expected
        log({"kind": "guard", "what": what, "guard": guard, "expected": expected, "reason": reason})
        seconds = time.monotonic() - began
        print(f"{'ok ' if held else 'NOT'} {what}: {guard} ({seconds:.1f} s): {reason[:110]}", flush=True)
        if not held:
            broken.append(f"{what}: {guard} instead of {expected}")
    return broken


def well(target: GpuTarget, folder: Path) -> list[str]:
    """Check that the device still adds."""
    guard, reason = _outcome(target, _adding(_SUM), folder, 0)
    return [] if guard == "none" else [f"the device is not well: {guard}: {reason}"]


def _adding(body: str) -> bytes:
    return (
        "#include <hip/hip_runtime.h>\n#include <cstdio>\n"
        "__global__ void adding(float* a, const float* b, float* out, int n) {\n"
        f"  int i = blockIdx.x * blockDim.x + threadIdx.x;\n  {body}\n}}\n"
    ).encode()


def _outcome(target: GpuTarget, source: bytes, folder: Path, lds: int) -> tuple[str, str]:
    """The guard that refuses a kernel, `none` where none does."""
    rng = np.random.default_rng(7)
    contents = {name: rng.standard_normal(_ELEMENTS, dtype=np.float32) for name in ("a", "b")}
    arguments = (
        Buffer("a", "float32", _ELEMENTS, "in"),
        Buffer("b", "float32", _ELEMENTS, "in"),
        Buffer("out", "float32", _ELEMENTS, "out"),
        Scalar("n", "int32", _ELEMENTS),
    )
    call = Call(Launch((_ELEMENTS // 256 + 1, 1, 1), (256, 1, 1), lds), arguments, contents)
    try:
        build = target.build(source, "adding", (), Layout(1), folder)
        with replace(target, deadline_seconds=_BAD_SECONDS).start(build) as worker:
            execution = worker.run(call)
    except Refused as refused:
        return refused.guard, refused.reason
    wrong = np.flatnonzero(execution.outputs["out"] != contents["a"] + contents["b"])
    if wrong.size:
        return "outputs", f"{wrong.size} elements are wrong, the first is {wrong[0]}"
    return "none", "right"


# ---- identical code --------------------------------------------------------------------------------------------------


class _Medians:
    """Hands on pairs, and keeps each layout's medians: how well this device repeats."""

    def __init__(self, source: InterleavedPairs) -> None:
        self._source = source
        self.medians_ns: list[float] = []
        self.log_ratios: list[float] = []

    def pairs(self, layout_seed: int, count: int) -> Pairs:
        pairs = self._source.pairs(layout_seed, count)
        self.medians_ns += [float(np.median(pairs.baseline_ns)), float(np.median(pairs.candidate_ns))]
        self.log_ratios.append(log_ratio(pairs))
        return pairs


def identical(target: GpuTarget, folder: Path, decisions: int, seed: int, log: Log) -> list[str]:
    """The whole rule on a kernel against itself, each decision in layouts and processes of its own."""
    accepted = 0
    for number, (name, size) in enumerate(SIZES.items()):
        share = decisions // len(SIZES) + (number < decisions % len(SIZES))
        source, harness = _sample(name, size)
        pairs = _Medians(_itself(target, source, harness, folder / name, seed))
        itself = against_itself(pairs, draw_layouts(seed, PLAN).itself, PLAN)
        guards_seen: Counter[str] = Counter()
        for trial in range(share):
            layouts = draw_layouts(seed + 1 + trial, PLAN)
            decision = decide(pairs, pairs, layouts, PLAN, itself=itself)
            accepted += decision.accepted
            guards_seen[decision.guard or "ACCEPTED"] += 1
            log({"kind": "identical", "sample": name, "trial": trial, **asdict(decision)})
        spread = float(np.std(pairs.medians_ns) / np.mean(pairs.medians_ns))
        worst = float(np.max(np.abs(pairs.log_ratios)))
        log({"kind": "resolution", "sample": name, "medians_ns": pairs.medians_ns, "log_ratios": pairs.log_ratios})
        print(
            f"identical {name} {size}: {share} decisions, {dict(guards_seen)}; median "
            f"{np.median(pairs.medians_ns):.0f} ns, standard deviation of {len(pairs.medians_ns)} processes' medians "
            f"{spread:.2%}, of a layout's ratio {np.std(pairs.log_ratios):.2%}, at most {worst:.2%}; itself "
            f"{itself.ci_low:.4f} to {itself.ci_high:.4f}",
            flush=True,
        )
    return [f"identical code was accepted {accepted} times"] if accepted else []


def _itself(target: GpuTarget, source: bytes, harness: Harness, folder: Path, seed: int) -> InterleavedPairs:
    kernel = parse(source).kernel(harness.kernel)
    size = harness.timed_size(target.name)

    def start(layout: int) -> Any:
        return target.start(target.build(source, kernel.name, kernel.parameters, Layout(layout), folder))

    def unchecked(call: Call, before: Execution, after: Execution) -> None:
        """The rule alone is tried here."""

    return InterleavedPairs(start, start, lambda rng: harness.drawn(size, _DISTRIBUTION, rng), unchecked, seed)


def _sample(name: str, size: Any) -> tuple[bytes, Harness]:
    path = SAMPLES / f"{name}.hip"
    return path.read_bytes(), replace(load_harness(path, None, None), gpu_timing_size=size)


# ---- searches --------------------------------------------------------------------------------------------------------


def searches(target: GpuTarget, folder: Path, seconds: int, seed: int, log: Log) -> list[str]:
    """The loop on every sample, to its end or the end of its time."""
    broken = []
    for name, size in SIZES.items():
        source, harness = _sample(name, size)
        began = time.monotonic()
        outcome = _search(target, source, harness, folder=folder / name, seconds=seconds, seed=seed, log=log)
        print(f"search {name} {size}: {outcome.end} after {time.monotonic() - began:.0f} s", flush=True)
        for attempt in outcome.attempts:
            found = attempt.decision
            ratio = "" if found.speedup_ratio is None else f" {found.speedup_ratio:.4f}"
            interval = "" if found.ci_low is None else f" [{found.ci_low:.4f}, {found.ci_high:.4f}]"
            print(
                f"  {attempt.number} {attempt.candidate.transformation}: {found.decision}{ratio}{interval} "
                f"({found.guard}: {found.reason[:90]})",
                flush=True,
            )
        if outcome.end not in ("searched", "time", "attempts") or not outcome.attempts:
            broken.append(f"{name}: {outcome.end}: {outcome.reason}")
    return broken


def _search(
    target: GpuTarget, source: bytes, harness: Harness, *, folder: Path, seconds: int, seed: int, log: Log
) -> Outcome:
    kernel = parse(source).kernel(harness.kernel)
    launch = harness.drawn(harness.timed_size(target.name), _DISTRIBUTION, np.random.default_rng(seed)).launch
    question = Question(
        source=source,
        kernel=kernel.name,
        parameters=kernel.parameters,
        block=launch.block,
        limits=Limits(time_ns=seconds * 10**9, attempts=PLAN.candidates),
        seed=seed,
    )
    means = Means(
        target=target,
        proposers=PROPOSERS,
        check_text=check_text,
        static=None,
        checker=HarnessChecker(harness),
        timer=RuleTimer(PLAN, seed, harness),
        now_ns=time.monotonic_ns,
        record=log,
        tell=lambda _: None,
        folder=folder,
    )
    return optimize(question, means, {"sample": harness.kernel, "plan": plan_record(PLAN)})


if __name__ == "__main__":
    sys.exit(main())
