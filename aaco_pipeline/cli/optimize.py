"""`aaco optimize`: make a kernel of a standalone source faster, or say that nothing that was tried does.

What is searched, measured and kept is `aaco_pipeline.pipeline.optimizing`; a model's half is `optimize_model`.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from aaco_pipeline.cli.compare import INCONCLUSIVE
from aaco_pipeline.cli.lake_option import new_lake_option
from aaco_pipeline.cli.optimize_model import is_of_a_model, optimize_model
from aaco_pipeline.cli.output import data_format, print_json, say, tell
from aaco_pipeline.cli.wait_option import wait_option
from aaco_pipeline.errors import IncompleteError

if TYPE_CHECKING:
    from aaco_pipeline.pipeline.optimizing.asking import Order
    from aaco_pipeline.resources.project import Project

_UNITS_NS: Final = {"s": 1_000_000_000, "m": 60_000_000_000, "h": 3_600_000_000_000}
_BUDGET: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([smh])")
_THRESHOLD: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(%?)")
_LONGEST_NS: Final = 7 * 24 * 3_600_000_000_000


def budget_ns(context: click.Context, parameter: click.Parameter, value: str) -> int:
    """`90s`, `10m` or `1.5h` in nanoseconds."""
    match = _BUDGET.fullmatch(value.strip())
    amount = round(float(match[1]) * _UNITS_NS[match[2]]) if match else 0
    if not 0 < amount <= _LONGEST_NS:
        raise click.BadParameter(f"{value!r} is not a time of up to 7 days; expected a number and s, m or h: 10m")
    return amount


def threshold_ratio(context: click.Context, parameter: click.Parameter, value: str) -> float:
    """`2%` or `0.02` as a difference from 1."""
    match = _THRESHOLD.fullmatch(value.strip())
    ratio = float(match[1]) / (100 if match[2] else 1) if match else 2.0
    if ratio > 1:
        raise click.BadParameter(f"{value!r} is not a gain of up to 100%; expected a number such as 2% or 0.02")
    return ratio


@click.command()
@click.argument("source", required=False, type=click.Path(path_type=Path))
@click.option("--kernel", metavar="NAME", help="The kernel (default: its harness' own, or the session's).")
@click.option(
    "--harness",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="How the kernel is called and what comes out (default: NAME_harness.py beside NAME.hip).",
)
@click.option(
    "--session",
    metavar="SESSION",
    help="Take the kernel of this session that has most to gain, and its evidence; without a SOURCE, its model.",
)
@click.option(
    "--target",
    type=click.Choice(["auto", "amd", "cuda", "cpu"]),
    default="auto",
    show_default=True,
    help="Where candidates run: auto is an AMD GPU, else an NVIDIA GPU, else the CPU.",
)
@click.option("--budget", default="10m", show_default=True, callback=budget_ns, metavar="TIME", help="Time in all.")
@click.option(
    "--threshold",
    default="2%",
    show_default=True,
    callback=threshold_ratio,
    metavar="GAIN",
    help="Least gain that counts.",
)
@click.option("--apply", is_flag=True, help="Replace the source by what was accepted; else it is left as a patch.")
@click.option("--strict", is_flag=True, help="Exit with 7 when not every candidate could be decided.")
@click.option(
    "--samples", type=click.Path(path_type=Path), metavar="FOLDER", help="Copy the sample kernels to FOLDER instead."
)
@click.option(
    "--replay", metavar="JOURNAL", help="Decide again from a journal, a file or the id of a search; run nothing."
)
@wait_option(tell)
@new_lake_option
@data_format
def optimize(
    project: "Project",
    *,
    source: Path | None,
    as_json: bool,
    strict: bool,
    samples: Path | None,
    replay: str | None,
    **asked: Any,
) -> int:
    """Make a kernel of SOURCE (.hip, .cu, .cpp) faster: each change is proved right, then proved faster, or rejected.

    Where it cannot be decided beyond doubt the source stays as it is. Nothing is said about the speed on an AMD GPU
    unless it ran on one.

    Of a model (MODEL.onnx, a SPEC as `aaco compare` takes it, or a --session that measured one), configurations of
    the runtime are tried: graph optimization, threads, options of the provider, batch. No file of it is changed.
    """
    if samples is None and replay is None and is_of_a_model(source, asked["session"]):
        return optimize_model(project, None if source is None else str(source), asked, strict=strict, as_json=as_json)
    if [source, samples, replay].count(None) != 2:
        raise click.UsageError("give a SOURCE or a model, or --session of a model, or --samples, or --replay")
    if samples is not None:
        return _copy_samples(samples)
    if replay is not None:
        return _replay(project, replay, as_json=as_json)
    from aaco_pipeline.pipeline.optimizing.asking import Order

    assert source is not None
    order = Order(
        source,
        kernel=asked["kernel"],
        harness=asked["harness"],
        session=asked["session"],
        target=asked["target"],
        budget_ns=asked["budget"],
        threshold_ratio=asked["threshold"],
        apply=asked["apply"],
    )
    return _search(project, order, strict=strict, as_json=as_json)


# ---- inside ----------------------------------------------------------------------------------------------------------


def _search(project: "Project", order: "Order", *, strict: bool, as_json: bool) -> int:
    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.optimization.harness import NoHarness
    from aaco_pipeline.pipeline.optimizing.running import run
    from aaco_pipeline.report.document.optimization import optimization_document
    from aaco_pipeline.report.terminal.optimization import print_optimization
    from aaco_pipeline.report.words.optimization import is_decided

    lake = TraceLake(project.lake)
    try:
        ended = run(project.configs, lake, order, tell)
    except NoHarness as error:
        for line in (error.skeleton or "").splitlines():
            say(line)  # on standard output: it can be sent to the file that is missing
        raise
    document = optimization_document(lake, ended.name)
    if as_json:
        print_json(document)
    else:
        print_optimization(document)
    return INCONCLUSIVE if strict and not is_decided(document) else 0


def _replay(project: "Project", named: str, *, as_json: bool) -> int:
    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.pipeline.optimizing.record import find_optimization, read_kept
    from aaco_pipeline.pipeline.optimizing.running import decide_again
    from aaco_pipeline.report.terminal.optimization import print_replay

    path = Path(named)
    if path.is_file():
        content = path.read_bytes()
    else:
        lake = TraceLake(project.lake)
        content = read_kept(lake, find_optimization(lake, named))
    journal, decisions = decide_again(content, named)
    document = {
        "journal": named,
        "notes": list(journal.notes),
        "is_ended": journal.is_ended,
        "is_same": all(one.differs is None for one in decisions),
        "decisions": [vars(one) for one in decisions],
    }
    if as_json:
        print_json(document)
    else:
        print_replay(document)
    return 0 if document["is_same"] else IncompleteError.exit_code


def _copy_samples(folder: Path) -> int:
    from aaco_pipeline.pipeline.optimizing.samples import copy_samples

    copied = copy_samples(folder)
    for path in copied:
        say(path)
    say(f"now: `aaco optimize {copied[0]}`", err=True)
    return 0
