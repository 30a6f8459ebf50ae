"""`aaco bisect`: which of many builds or revisions brought a change.

What is measured and told apart is `aaco_pipeline.pipeline.bisecting`.
"""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from aaco_pipeline.cli.compare import INCONCLUSIVE, REGRESSION, request_in
from aaco_pipeline.cli.options import RequestCommand, new_lake_option, request_of, request_options, wait_option
from aaco_pipeline.cli.output import data_format, print_json, progress_bar, say, tell

if TYPE_CHECKING:
    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.pipeline.bisecting import Build, Recipe
    from aaco_pipeline.pipeline.comparing.plan import History
    from aaco_pipeline.resources.project import Project

_MAKE_SECONDS: Final = 3600.0


@click.command(cls=RequestCommand)
@click.option("--builds", "file", metavar="FILE", help="Builds that are there, the oldest first: a SPEC on each line.")
@click.option("--revisions", metavar="GOOD..BAD", help="Revisions of a git repository, each made with --make.")
@click.option("--repository", default=".", show_default=True, metavar="DIR", help="The repository of --revisions.")
@click.option(
    "--make",
    metavar="COMMAND",
    help="Makes a revision in a work tree of its own: a program with arguments, no shell, in which {revision} and "
    "{output} are replaced. It leaves a model at {output}, or with --model a Python that runs that.",
)
@click.option(
    "--make-timeout",
    type=click.FloatRange(min=0, min_open=True, max=1e6),
    default=_MAKE_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="Time limit for making one build.",
)
@click.option("--model", metavar="NAME|PATH", help="With --revisions: what the Python that is made runs.")
@click.option("--resume", metavar="SEARCH", help="Go on with a search that was killed or failed.")
@click.option("--plan", "only_plan", is_flag=True, help="Say what it would take and find; measure nothing.")
@click.option("--strict", is_flag=True, help="Exit with 7 when no one build is named and a change is not ruled out.")
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
    """Find the build that brought a change, among many in order.

    Each is measured in blocks beside the first one, as many as are needed to tell it good or bad; one that cannot be
    made or run widens the answer to a range. The options of `aaco run` go with --revisions.
    """
    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.pipeline.bisecting import go_on, new_search, read, write
    from aaco_pipeline.resources.progress import progress_listener

    @contextmanager
    def shown() -> Iterator[None]:
        with progress_bar(as_json) as show, progress_listener(show):
            yield

    given = [option for option in context.command.get_params(context) if _is_given(context, option)]
    lake = TraceLake(project.lake)
    if resume is not None:
        if asked["file"] is not None or asked["revisions"] is not None or only_plan:
            raise click.UsageError("a search is resumed as it was begun; give --resume alone")
        name = read(lake, resume).name
    else:
        builds, recipe = _builds_of(asked, [option.name for option in given], project)
        search, history = new_search(lake, builds, recipe)
        if only_plan:
            _show_plan(search, history, as_json=as_json)
            return 0
        name = search.name
        write(lake, search, {})
        say(f"{name}: {len(builds)} builds; if it is broken off, `aaco bisect --resume {name}` goes on", err=True)
    go_on(project.configs, lake, name, log=tell, shown=shown)
    return show_bisection(lake, name, strict=strict, as_json=as_json)


def show_bisection(lake: "TraceLake", name: str, *, strict: bool, as_json: bool) -> int:
    """Print the answer of a search; the exit code that it means."""
    from aaco_pipeline.report.bisection import bisection_document, is_decided, print_bisection

    document = bisection_document(lake, name)
    if as_json:
        print_json(document)
    else:
        print_bisection(document)
    if strict and not is_decided(document):
        return INCONCLUSIVE
    return REGRESSION if document["regression"] else 0


def specifications_in(file: str) -> list[str]:
    """The SPECs of a file of builds, one a line; empty lines and those that begin with # say nothing."""
    try:
        lines = Path(file).read_text("utf-8").splitlines()
    except OSError as error:
        raise click.UsageError(f"{file}: {error.strerror}; give a file with a SPEC on each line") from error
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{file}: not a text in UTF-8; give a file with a SPEC on each line") from error
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def labels_of(specifications: Sequence[str]) -> list[str]:
    """What builds are called: their SPECs without the options at the end that all of them share."""
    words = [shlex.split(one) for one in specifications]
    backwards = zip(*(reversed(one) for one in words), strict=False)
    shared = len(list(takewhile(lambda place: len(set(place)) == 1, backwards)))
    return [shlex.join(one[: len(one) - shared] or one) for one in words]


# ---- inside ----------------------------------------------------------------------------------------------------------


def _is_given(context: click.Context, option: click.Parameter) -> bool:
    return context.get_parameter_source(option.name or "") is click.core.ParameterSource.COMMANDLINE


def _builds_of(
    asked: dict[str, Any], given: list[str | None], project: "Project"
) -> tuple[tuple["Build", ...], "Recipe | None"]:
    if (asked["file"] is None) == (asked["revisions"] is None):
        raise click.UsageError("give --builds or --revisions, or a search to --resume")
    if asked["file"] is not None:
        from aaco_pipeline.pipeline.bisecting import builds_there

        settings = {option.name for option in request_options()} | {"make", "repository", "make_timeout"}
        if wrong := sorted(settings & {name for name in given if name is not None}):
            raise click.UsageError(
                f"--{wrong[0].replace('_', '-')} goes with --revisions; of --builds each line has its own options"
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
        raise click.UsageError("with --model a Python is made; leave --interpreter out")
    repository = Path(asked["repository"]).absolute()
    revisions = revisions_between(repository, asked["revisions"])
    builds = tuple(from_revision(one.name, one.title) for one in revisions)
    return builds, Recipe(repository, asked["make"], asked["make_timeout"], request)


def _show_plan(search: Any, history: "History", *, as_json: bool) -> None:
    from aaco_pipeline.report.bisection import search_plan
    from aaco_pipeline.report.terminal import open_screen, print_prose
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
    if as_json:
        print_json(document)
        return
    screen = open_screen()
    for line in search_plan(document):
        print_prose(screen, line)
    print_prose(screen, "Nothing was measured.", "bold")
