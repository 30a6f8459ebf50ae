"""`aaco init`: a project's own settings, to edit. Without them those of the package hold, which are the same files."""

import shlex
from pathlib import Path

import click

from aaco_pipeline.cli.output import say


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=".")
def init(folder: Path) -> None:
    """Write dagster.yaml, workspace.yaml and configs/ into FOLDER (default: here), to edit.

    Nothing needs them: every command works with the same settings from the package. A folder with a dagster.yaml is a
    project: its lake is tracelake/ in it, whichever folder below it a command is run in.
    """
    from aaco_pipeline.errors import UsageError
    from aaco_pipeline.resources.project import DEFAULTS

    names = sorted(path.relative_to(DEFAULTS) for path in DEFAULTS.rglob("*.yaml"))
    if there := [str(folder / name) for name in names if (folder / name).exists()]:
        raise UsageError(f"init: not overwritten: {', '.join(there)}; nothing was written")
    try:
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with (folder / name).open("xb") as file:
                file.write((DEFAULTS / name).read_bytes())
    except OSError as error:
        raise UsageError(f"init: {error.filename}: {error.strerror}") from error
    for name in names:
        say(folder / name)
    go = "" if folder.resolve() == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    say(f"Edit what you like; nothing has to be. Next: {go}aaco run --model squeezenet")
