"""`aaco optimize`: make a kernel or a model faster, or report that no tried change helps.

`aaco_pipeline.pipeline.optimizing` searches, measures and records.
"""

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from aaco_pipeline.cli.compare import INCONCLUSIVE, request_in
from aaco_pipeline.cli.options import new_lake_option, open_lake, wait_option
from aaco_pipeline.cli.output import data_format, print_document, progress_bar, say, tell
from aaco_pipeline.errors import IncompleteError

if TYPE_CHECKING:
    from aaco_pipeline.pipeline.optimizing.asking import Order
    from aaco_pipeline.resources.project import Project


_SOURCES: Final = (".hip", ".cu", ".cpp")
#: Options for kernel sources, with their defaults.
_OF_KERNELS: Final = {"kernel": None, "harness": None, "target": "auto", "apply": False}
_UNITS_NS: Final = {"s": 1_000_000_000, "m": 60_000_000_000, "h": 3_600_000_000_000}
_BUDGET: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([smh])")
_THRESHOLD: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(%?)")
_LONGEST_NS: Final = 7 * 24 * 3_600_000_000_000


def is_of_a_model(source: Path | None, session: str | None) -> bool:
    """Return whether to optimize a model: given as a model name, an .onnx file, or a session without a source."""
    if source is None:
        return session is not None
    first = str(source).partition(" ")[0]
    return first.endswith(".onnx") or not (first.endswith(_SOURCES) or source.exists() or "/" in first or "." in first)


def optimize_model(
    project: "Project", specification: str | None, asked: dict[str, Any], *, strict: bool, as_json: bool
) -> int:
    """Search runtime configurations, print the answer and return its exit code."""
    from aaco_pipeline.pipeline.optimizing import models
    from aaco_pipeline.report.optimization.document import optimization_document
    from aaco_pipeline.report.optimization.search import is_decided, search_view

    if wrong := [name for name, default in _OF_KERNELS.items() if asked[name] != default]:
        raise click.UsageError(f"--{wrong[0]} is for a kernel's source; leave it out for a model")
    lake, session = open_lake(project), asked["session"]
    if specification is not None and session is not None:
        raise click.UsageError(f"--session {session} names a model of its own; leave {specification!r} or it out")
    if specification is not None:
        request = request_in(specification)
    else:
        request, session = models.request_of_session(lake, session, project.configs)
    order = models.ModelOrder(request, session, asked["budget"], asked["threshold"])

    name = models.optimize_model(project.configs, lake, order, log=tell, shown=partial(progress_bar, as_json))
    document = optimization_document(lake, name)
    print_document(document, search_view, as_json=as_json)
    return INCONCLUSIVE if strict and not is_decided(document) else 0


def budget_ns(context: click.Context, parameter: click.Parameter, value: str) -> int:
    """Parse `90s`, `10m` or `1.5h` into nanoseconds."""
    match = _BUDGET.fullmatch(value.strip())
    amount = round(float(match[1]) * _UNITS_NS[match[2]]) if match else 0
    if not 0 < amount <= _LONGEST_NS:
        raise click.BadParameter(f"{value!r} is not a time of up to 7 days; expected a number and s, m or h: 10m")
    return amount


def threshold_ratio(context: click.Context, parameter: click.Parameter, value: str) -> float:
    """Parse `2%` or `0.02` into a difference from 1."""
    match = _THRESHOLD.fullmatch(value.strip())
    ratio = float(match[1]) / (100 if match[2] else 1) if match else 2.0
    if ratio > 1:
        raise click.BadParameter(f"{value!r} is not a gain of up to 100%; expected a number such as 2% or 0.02")
    return ratio


@click.command()
@click.argument("source", required=False, type=click.Path(path_type=Path))
@click.option("--kernel", metavar="NAME", help="Kernel name (default: from the harness or session).")
@click.option(
    "--harness",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Harness that calls the kernel and checks its output (default: NAME_harness.py beside NAME.hip).",
)
@click.option(
    "--session",
    metavar="SESSION",
    help="Optimize the kernel of this session with the largest potential gain; without SOURCE, its model.",
)
@click.option(
    "--target",
    type=click.Choice(["auto", "amd", "cuda", "cpu"]),
    default="auto",
    show_default=True,
    help="Device for candidates; auto prefers an AMD GPU, then an NVIDIA GPU, then the CPU.",
)
@click.option("--budget", default="10m", show_default=True, callback=budget_ns, metavar="TIME", help="Total time.")
@click.option(
    "--threshold",
    default="2%",
    show_default=True,
    callback=threshold_ratio,
    metavar="GAIN",
    help="Smallest gain that counts.",
)
@click.option(
    "--apply", is_flag=True, help="Replace the source with the accepted version (default: only keep a patch)."
)
@click.option("--strict", is_flag=True, help="Exit with 7 if any candidate could not be decided.")
@click.option(
    "--samples", type=click.Path(path_type=Path), metavar="FOLDER", help="Copy the sample kernels to FOLDER instead."
)
@click.option(
    "--replay", metavar="JOURNAL", help="Recompute the decisions of a journal (a file or a search id); run nothing."
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
    """Make a kernel in SOURCE (.hip, .cu, .cpp) faster; a change is accepted only if it is correct and measurably
    faster.

    If in doubt, the source stays unchanged. Speedups on AMD GPUs are only claimed if the kernel ran on one.

    For a model (MODEL.onnx, a SPEC as in `aaco compare`, or a --session that measured one), runtime configurations are
    tried: graph optimization, threads, provider options and batch size. Its files are never changed.
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


def _search(project: "Project", order: "Order", *, strict: bool, as_json: bool) -> int:
    from aaco_pipeline.optimization.harness import NoHarness
    from aaco_pipeline.pipeline.optimizing.search import run
    from aaco_pipeline.report.optimization.document import optimization_document
    from aaco_pipeline.report.optimization.search import is_decided, search_view

    lake = open_lake(project)
    try:
        ended = run(project.configs, lake, order, tell)
    except NoHarness as error:
        for line in (error.skeleton or "").splitlines():
            say(line)  # on standard output, so that it can be redirected to the missing file
        raise
    document = optimization_document(lake, ended.name)
    print_document(document, search_view, as_json=as_json)
    return INCONCLUSIVE if strict and not is_decided(document) else 0


def _replay(project: "Project", named: str, *, as_json: bool) -> int:
    from aaco_pipeline.pipeline.optimizing.record import find_optimization, read_kept
    from aaco_pipeline.pipeline.optimizing.search import decide_again
    from aaco_pipeline.report.optimization.search import replay_view

    path = Path(named)
    if path.is_file():
        content = path.read_bytes()
    else:
        lake = open_lake(project)
        content = read_kept(lake, find_optimization(lake, named))
    journal, decisions = decide_again(content, named)
    document = {
        "journal": named,
        "notes": list(journal.notes),
        "is_ended": journal.is_ended,
        "is_same": all(one.differs is None for one in decisions),
        "decisions": [vars(one) for one in decisions],
    }
    print_document(document, replay_view, as_json=as_json)
    return 0 if document["is_same"] else IncompleteError.exit_code


def _copy_samples(folder: Path) -> int:
    from aaco_pipeline.pipeline.optimizing.sources import copy_samples

    copied = copy_samples(folder)
    for path in copied:
        say(path)
    say(f"now: `aaco optimize {copied[0]}`", err=True)
    return 0
