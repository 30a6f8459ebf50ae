"""What commands do about a session that is not whole: `show` and `report` finish it first, others only say it.

What finishing is says `aaco_pipeline.pipeline.session_stages`. A session that another process is at work on is left to
it, and so is one whose stage failed by the very code that would run again: the answer then says why, and what to do.
"""

from typing import TYPE_CHECKING, Final

from aaco_pipeline.cli.output import say
from aaco_pipeline.errors import AacoError

if TYPE_CHECKING:
    from aaco_pipeline.lake.manifest import LostManifestError
    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.resources.project import Project

#: So many are named, the newest.
_NAMED: Final = 3


def finish_first(project: "Project", lake: "TraceLake", session: str, *, quiet: bool) -> None:
    """Run what a killed run left undone of a session, with a bar, before anything is said of it."""
    progress = lake.progress(session)
    if progress.is_whole is not False:
        return
    if lake.is_running(session):
        say(f"{session}: {progress.count} so far; a run is at work on it", err=True)
        return
    from aaco_pipeline.assets.stage import stages

    codes = {name: one.code_version for name, one in stages().items()}
    if any(state.code_version == codes.get(state.stage) for state in progress.failed):
        return
    from aaco_pipeline.cli.output import progress_bar
    from aaco_pipeline.pipeline.session_stages import finish_session
    from aaco_pipeline.resources.progress import progress_listener

    try:
        say(f"finishing {session}: {progress.count}", err=True)
        with progress_bar(quiet) as show, progress_listener(show):
            finish_session(lake, session, project.configs)
    except AacoError as error:
        say(f"aaco: {session} is not whole: {error}", err=True)


def say_unfinished(lake: "TraceLake") -> "LostManifestError | None":
    """Name on standard error the sessions that are not whole and that nobody is at work on, if there are any.

    What is lost is for the caller to say, unless its answer rests on it.
    """
    with lake.catalogue() as known:
        loss = known.loss
        half = {session: one.count for session, one in known.progress().items() if one.is_whole is False}
    named = [f"{session} ({count})" for session, count in half.items() if not lake.is_running(session)]
    if named:
        more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
        say(f"not whole: {', '.join(named[-_NAMED:])}{more}; `aaco doctor --mend` finishes them", err=True)
    return loss
