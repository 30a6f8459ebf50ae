"""Handle incomplete sessions: `show` and `report` finish them first, other commands only list them.

`aaco_pipeline.pipeline.session_stages` finishes sessions. A session in use by another process, or with a stage that
failed in the present code, is not finished; the output says why, and what to do.
"""

from typing import TYPE_CHECKING, Final

from aaco_pipeline.cli.output import progress_bar, say
from aaco_pipeline.errors import AacoError

if TYPE_CHECKING:
    from aaco_pipeline.lake.manifest import LostManifestError
    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.resources.project import Project

#: Maximum number of sessions listed, newest first.
_NAMED: Final = 3


def finish_first(project: "Project", lake: "TraceLake", session: str, *, quiet: bool) -> None:
    """Run the stages that a killed run left unfinished, with a progress bar, before the session is shown."""
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
    from aaco_pipeline.pipeline.session_stages import finish_session

    try:
        say(f"finishing {session}: {progress.count}", err=True)
        with progress_bar(quiet):
            finish_session(lake, session, project.configs)
    except AacoError as error:
        say(f"aaco: {session} is not whole: {error}", err=True)


def say_unfinished(lake: "TraceLake") -> "LostManifestError | None":
    """List incomplete sessions that no process is working on, on standard error.

    Returns a lost manifest for the caller to report, unless the answer depends on it.
    """
    with lake.catalogue() as known:
        loss = known.loss
        half = {session: one.count for session, one in known.progress().items() if one.is_whole is False}
    named = [f"{session} ({count})" for session, count in half.items() if not lake.is_running(session)]
    if named:
        more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
        say(f"not whole: {', '.join(named[-_NAMED:])}{more}; `aaco doctor --mend` finishes them", err=True)
    return loss
