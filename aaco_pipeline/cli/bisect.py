"""`aaco bisect`: find which of many builds or revisions introduced a change.

`aaco_pipeline.pipeline.bisecting` creates, measures and records builds.
"""

import shlex
from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from aaco_pipeline.cli.compare import INCONCLUSIVE, REGRESSION, request_in
from aaco_pipeline.cli.options import (
    RequestCommand,
    new_lake_option,
    open_lake,
    request_of,
    request_options,
    wait_option,
)
from aaco_pipeline.cli.output import data_format, print_document, print_plan, progress_bar, say, tell

if TYPE_CHECKING:
    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.pipeline.bisecting import Build, Recipe
    from aaco_pipeline.pipeline.comparing.plan import History
    from aaco_pipeline.resources.project import Project

_MAKE_SECONDS: Final = 3600.0


@click.command(cls=RequestCommand)
@click.option("--builds", "file", metavar="FILE", help="File of existing builds, oldest first, one SPEC per line.")
@click.option("--revisions", metavar="GOOD..BAD", help="Range of git revisions to search; each is built with --make.")
@click.option("--repository", default=".", show_default=True, metavar="DIR", help="Git repository for --revisions.")
@click.option(
    "--make",
    metavar="COMMAND",
    help="Command that builds one revision in its own work tree, run without a shell; {revision} and {output} are "
    "replaced. It must create a model at {output}, or, with --model, a Python that can run the model.",
)
@click.option(
    "--make-timeout",
    type=click.FloatRange(min=0, min_open=True, max=1e6),
    default=_MAKE_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="Time limit for each build.",
)
@click.option("--model", metavar="NAME|PATH", help="With --revisions: model to run with the built Python.")
@click.option("--resume", metavar="SEARCH", help="Continue a search that was killed or failed.")
@click.option("--plan", "only_plan", is_flag=True, help="Show the expected time and resolution; measure nothing.")
@click.option("--strict", is_flag=True, help="Exit with 7 if no build is found and a change is not ruled out.")
@wait_option(tell)
@new_lake_option
@data_format
@click.pass_context
def bisect(
    context: click.Context,
    /,
    project: "Project",
    *,
    as_json: bool,
    strict: bool,
    resume: str | None,
    only_plan: bool,
    **asked: Any,
) -> int:
    """Find which build introduced a change, in an ordered series of builds.

    Each build is measured in blocks with the first build until it can be classified as good or bad. If a build cannot
    be created or run, the answer can only be a range. With --revisions, the options of `aaco run` apply as well.
    """
    from aaco_pipeline.pipeline.bisecting import go_on, new_search, read, write

    from_command_line = click.core.ParameterSource.COMMANDLINE
    names = [option.name or "" for option in context.command.get_params(context)]
    given = {name for name in names if context.get_parameter_source(name) is from_command_line}
    lake = open_lake(project)
    if resume is not None:
        if asked["file"] is not None or asked["revisions"] is not None or only_plan:
            raise click.UsageError("a search is resumed as it was begun; give --resume alone")
        name = read(lake, resume).name
    else:
        builds, recipe = _builds_of(asked, given, project)
        search, history = new_search(lake, builds, recipe)
        if only_plan:
            _show_plan(search, history, as_json=as_json)
            return 0
        name = search.name
        write(lake, search, {})
        say(f"{name}: {len(builds)} builds; if it is broken off, `aaco bisect --resume {name}` goes on", err=True)
    go_on(project.configs, lake, name, log=tell, shown=partial(progress_bar, as_json))
    return show_bisection(lake, name, strict=strict, as_json=as_json)


def show_bisection(lake: "TraceLake", name: str, *, strict: bool, as_json: bool) -> int:
    """Print a search's answer and return its exit code."""
    from aaco_pipeline.report.bisection import bisection_document, bisection_view, is_decided

    document = bisection_document(lake, name)
    print_document(document, bisection_view, as_json=as_json)
    if strict and not is_decided(document):
        return INCONCLUSIVE
    return REGRESSION if document["regression"] else 0


def specifications_in(file: str) -> list[str]:
    """Read the SPECs in a file of builds, one per line; skip empty lines and comments (#)."""
    try:
        lines = Path(file).read_text("utf-8").splitlines()
    except OSError as error:
        raise click.UsageError(f"{file}: {error.strerror}; give a file with a SPEC on each line") from error
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{file}: not a text in UTF-8; give a file with a SPEC on each line") from error
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def labels_of(specifications: Sequence[str]) -> list[str]:
    """Label builds by their SPECs, without trailing options that all of them share."""
    words = [shlex.split(one) for one in specifications]
    backwards = zip(*(reversed(one) for one in words), strict=False)
    shared = len(list(takewhile(lambda place: len(set(place)) == 1, backwards)))
    return [shlex.join(one[: len(one) - shared] or one) for one in words]


def _builds_of(
    asked: dict[str, Any], given: set[str], project: "Project"
) -> tuple[tuple["Build", ...], "Recipe | None"]:
    if (asked["file"] is None) == (asked["revisions"] is None):
        raise click.UsageError("give --builds or --revisions, or a search to --resume")
    if asked["file"] is not None:
        from aaco_pipeline.pipeline.bisecting import builds_there

        settings = {option.name for option in request_options()} | {"make", "repository", "make_timeout"}
        if wrong := sorted(settings & given):
            raise click.UsageError(
                f"--{wrong[0].replace('_', '-')} goes with --revisions; with --builds each line has its own options"
            )
        lines = specifications_in(asked["file"])
        requests = [request_in(line) for line in lines]
        return builds_there(list(zip(labels_of(lines), requests, strict=True)), project.configs), None
    return _revisions_of(asked)


def _revisions_of(asked: dict[str, Any]) -> tuple[tuple["Build", ...], "Recipe"]:
    from aaco_pipeline.pipeline.bisecting import Recipe, from_revision
    from aaco_pipeline.resources.toolchains.builds import OUTPUT, revisions_between, words_of

    if asked["make"] is None:
        raise click.UsageError("--revisions needs --make, the command that makes one of them")
    words_of(asked["make"])
    if asked["model"] is None:
        request = request_of({**asked, "model": OUTPUT})
    elif asked["interpreter"] is None:
        request = request_of({**asked, "interpreter": None}, interpreter=OUTPUT)
    else:
        raise click.UsageError("with --model a Python is built; leave --interpreter out")
    repository = Path(asked["repository"]).absolute()
    revisions = revisions_between(repository, asked["revisions"])
    builds = tuple(from_revision(one.name, one.title) for one in revisions)
    return builds, Recipe(repository, asked["make"], asked["make_timeout"], request)


def _show_plan(search: Any, history: "History", *, as_json: bool) -> None:
    from aaco_pipeline.report.bisection import search_plan
    from aaco_pipeline.statistics.bisection import LEAST_BLOCKS, LOOKS, MOST_BLOCKS, most_measured

    most = most_measured(search.last)
    document = {
        "workload": search.workload,
        "backend": search.backend,
        "builds": [{"label": one.label, "revision": one.revision, "title": one.title} for one in search.builds],
        "most_measured": most,
        "least_blocks": LOOKS[0] + LEAST_BLOCKS * (most - 1),
        "most_blocks": MOST_BLOCKS * most,
        "history": vars(history),
        "foretold": {
            "blocks": search.predicted_blocks,
            "time_ns": search.prediction.time_ns,
            "detectable_ratio": search.prediction.detectable_ratio,
        },
    }
    print_plan(document, search_plan, as_json=as_json)
