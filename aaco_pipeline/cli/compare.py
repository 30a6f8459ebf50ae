"""`aaco compare` and `aaco diff`: a verdict on two arms of fresh sessions, and a comparison of two existing sessions.

`aaco_pipeline.pipeline.comparing` plans, measures and judges.
"""

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from aaco_pipeline.cli.finishing import finish_first
from aaco_pipeline.cli.interruption import FULL_DISK, is_of_a_full_disk
from aaco_pipeline.cli.options import lake_option, new_lake_option, open_lake, request_of, request_options, wait_option
from aaco_pipeline.cli.output import give, print_plan, progress_bar, tell, verdict_format
from aaco_pipeline.errors import AacoError, LakeError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from aaco_pipeline.capture.request import Arm, MeasurementRequest
    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.pipeline.comparing.plan import History, Plan
    from aaco_pipeline.resources.project import Project
    from aaco_pipeline.statistics.verdicts.service_level import Limit


REGRESSION: Final = 5
INCONCLUSIVE: Final = 7
_UNITS_NS: Final = {"ns": 1, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}
_LIMIT: Final = re.compile(rf"(p\d+)=(\d+(?:\.\d+)?) ?({'|'.join(_UNITS_NS)})", re.IGNORECASE)
_DECIDED: Final = ("regressed", "regressed between nights", "improved", "equivalent")


@click.command()
@click.option("--baseline", metavar="SPEC", help="Baseline to compare with.")
@click.option("--candidate", metavar="SPEC", help="Candidate to judge.")
@click.option("--resume", metavar="CAMPAIGN", help="Continue a killed or failed campaign as planned.")
@click.option("--plan", "only_plan", is_flag=True, help="Show the expected time and resolution; measure nothing.")
@click.option("--strict", is_flag=True, help="Exit with 7 if there is no verdict.")
@click.option(
    "--sessions", "blocks", type=int, default=10, show_default=True, help="Fresh sessions per arm, one per block."
)
@click.option(
    "--traced",
    "traced_blocks",
    type=int,
    default=5,
    show_default=True,
    help="Traced sessions per arm, run afterwards to find causes.",
)
@click.option(
    "--threshold",
    "threshold_ratio",
    type=float,
    default=0.01,
    show_default=True,
    metavar="RATIO",
    help="Smallest relative difference that counts.",
)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="QUANTILE=TIME",
    help="Service level to check: maximum time of a quantile, such as p99=20ms.",
)
@click.option("--seed", type=int, help="Seed for the order of arms within blocks (default: random; always recorded).")
@wait_option(tell)
@new_lake_option
@verdict_format
def compare(
    project: "Project",
    *,
    form: str,
    output: "Path | None",
    strict: bool,
    only_plan: bool,
    resume: str | None,
    baseline: str | None,
    candidate: str | None,
    limits: tuple[str, ...],
    **design: Any,
) -> int:
    """Measure a baseline and a candidate and decide whether one is slower.

    A SPEC is a model with options of `aaco run`, as one argument: "resnet50", or "new.onnx --threads 2". Each block
    measures both in fresh processes, in random order, so that disturbances of the host affect both equally.
    """
    from aaco_pipeline.pipeline.comparing.measuring import require_resumable
    from aaco_pipeline.pipeline.comparing.plan import (
        history_of,
        new_plan,
        predict,
        read_plan,
        require_same_shapes,
        subject,
        write_plan,
    )
    from aaco_pipeline.pipeline.comparing.running import run
    from aaco_pipeline.resources.measure.inference import check_request

    lake = open_lake(project)
    if resume is not None:
        if baseline is not None or candidate is not None or limits or only_plan:
            raise click.UsageError(
                "a campaign is resumed as it was planned; leave --baseline, --candidate, --limit and --plan out"
            )
        plan = read_plan(lake, resume)
        require_resumable(lake, plan)
    elif baseline is None or candidate is None:
        raise click.UsageError("give --baseline and --candidate, or a campaign to --resume")
    else:
        requests: dict[Arm, MeasurementRequest] = {"baseline": request_in(baseline), "candidate": request_in(candidate)}
        require_same_shapes({arm: check_request(request, project.configs) for arm, request in requests.items()})
        arms = {arm: subject(request, project.configs) for arm, request in requests.items()}
        plan = new_plan("compare", arms, limits=[limit_in(text) for text in limits], **design)
        history = history_of(lake, plan.workload, requests["baseline"], plan.metric)
        plan = replace(plan, prediction=predict(history, plan))
        if only_plan:
            _show_plan(plan, history, as_json=form == "json")
            return 0
    with progress_bar(form != "table"):
        write_plan(lake, plan)
        with _naming_the_campaign(lake, plan.campaign, is_new=resume is None):
            run(project.configs, lake, plan.campaign)
    return show_verdict(lake, plan.campaign, strict=strict, form=form, output=output)


@contextmanager
def _naming_the_campaign(lake: "TraceLake", campaign: str, *, is_new: bool) -> Iterator[None]:
    """Add the campaign to resume to an error's message; remove a new campaign without a finished block."""
    from aaco_pipeline.pipeline.comparing.measuring import members
    from aaco_pipeline.pipeline.retention import remove_campaigns, sessions_of

    try:
        yield
    except AacoError as error:
        is_empty = "finished" not in members(lake, campaign).get_column("state")
        if is_new and is_empty and not isinstance(error, LakeError):  # resumable once the lake has space
            remove_campaigns(lake, {campaign: sessions_of(lake, campaign)})
            raise
        raise type(error)(
            f"{error}; `aaco compare --resume {campaign}` goes on with what is left, `aaco rm {campaign}` gives it up"
        ) from error
    except KeyboardInterrupt as error:
        error.add_note(f"`aaco compare --resume {campaign}` goes on with what is left")
        raise
    except Exception as error:
        if is_of_a_full_disk(error):
            raise LakeError(f"{FULL_DISK}, then `aaco compare --resume {campaign}` goes on") from error
        raise


def show_verdict(
    lake: "TraceLake", campaign: str, *, strict: bool, form: str = "table", output: "Path | None" = None
) -> int:
    """Print or write a campaign's verdict and return its exit code."""
    from aaco_pipeline.report.comparing.campaign import verdict_document

    document = verdict_document(lake, campaign)
    give(document, form, output, "verdict")
    if document["regression"]:
        return REGRESSION
    return INCONCLUSIVE if strict and document["verdict"] not in _DECIDED else 0


def limit_in(text: str) -> "Limit":
    """Parse a service level such as `p99=20ms`, with the usual budget for its quantile.

    Raises click.UsageError if the text is invalid.
    """
    from aaco_pipeline.statistics.verdicts.service_level import LIMITED, Limit, usual_budget

    match = _LIMIT.fullmatch(text.strip())
    metric = f"latency_{match[1].lower()}" if match else ""
    if match is None or metric not in LIMITED:
        raise click.UsageError(f"{text!r} is not a limit; expected one such as p99=20ms, of p50, p90 or p99")
    return Limit(metric, round(float(match[2]) * _UNITS_NS[match[3].lower()]), usual_budget(metric))


def request_in(specification: str) -> "MeasurementRequest":
    """Parse a SPEC: options of `aaco run` as one string, with the model first or as an option.

    Raises click.UsageError if the text is invalid.
    """
    try:
        words = shlex.split(specification)
    except ValueError as error:
        raise click.UsageError(f"{specification!r} is not a SPEC: {error}") from error
    if words and not words[0].startswith("-"):
        words.insert(0, "--model")
    reader = click.Command("SPEC", params=list(request_options()), add_help_option=False)
    try:
        return request_of(reader.make_context("SPEC", words).params)
    except click.UsageError as error:
        raise click.UsageError(f"{specification!r} is not a SPEC: {error.format_message()}") from error


def _show_plan(plan: "Plan", history: "History", *, as_json: bool) -> None:
    from aaco_pipeline.report.bisection import campaign_plan

    document = {
        "workload": plan.workload,
        "backend": plan.arms["baseline"].request.backend,
        "arms": len(plan.arms),
        "blocks": plan.blocks,
        "traced_blocks": plan.traced_blocks,
        "history": vars(history),
        "foretold": vars(plan.prediction),
    }
    print_plan(document, campaign_plan, as_json=as_json)


@click.command()
@click.argument("baseline")
@click.argument("candidate")
@lake_option
@verdict_format
def diff(project: "Project", *, baseline: str, candidate: str, form: str, output: Path | None) -> None:
    """Show what changed between the sessions BASELINE and CANDIDATE (ids, unique prefixes, or latest), and why.

    There is no verdict, because processes of identical code also differ. BASELINE may be a baseline file from an
    earlier tool, whose figures are checked first.
    """
    from aaco_pipeline.report.comparing.two_sessions import difference_document

    lake = open_lake(project)
    if Path(baseline).is_file():
        session = lake.find_session(candidate)
        finish_first(project, lake, session, quiet=form != "table")
        from aaco_pipeline.capture.stored_baseline import read_stored_baseline
        from aaco_pipeline.report.comparing.two_sessions import stored_difference_document

        figures = read_stored_baseline(Path(baseline))
        document = stored_difference_document(lake, Path(baseline), figures, session)
        return give(document, form, output, "stored difference")
    before, after = (lake.find_session(name) for name in (baseline, candidate))
    if before == after:
        raise UsageError(f"{before} is both sides: name two sessions; `aaco ls` lists them")
    for session in (before, after):
        finish_first(project, lake, session, quiet=form != "table")
        if (failure := lake.read("sessions", session).item(0, "failure")) is not None:
            raise UsageError(f"{session}: its program failed ({failure}), so it is compared with no other")
    return give(difference_document(lake, before, after), form, output, "difference")
