"""`aaco amend`: state what a capture does not say of its devices, and have every figure that rests on it again."""

from typing import TYPE_CHECKING

import click

from aaco_pipeline.cli.lake_option import lake_option
from aaco_pipeline.cli.output import data_format, print_json, say
from aaco_pipeline.errors import UsageError

if TYPE_CHECKING:
    from aaco_pipeline.resources.project import Project

ARCH_HELP = "Architecture of the devices, such as gfx942, where the capture does not name it."
PRODUCT_HELP = "Product that the devices are, such as MI250X, where the capture does not name it."


@click.command()
@click.argument("session")
@click.option("--arch", help=ARCH_HELP)
@click.option("--product", help=PRODUCT_HELP)
@lake_option
@data_format
def amend(project: "Project", session: str, *, arch: str | None, product: str | None, as_json: bool) -> None:
    """State what device a capture was taken on, and run the session's stages again.

    It is recorded as stated by a person, and never put in place of what the capture itself says.
    """
    from aaco_pipeline.cli.progress_bar import progress_bar
    from aaco_pipeline.hardware.identification import require_unstated, statement
    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.pipeline.session_stages import run_session
    from aaco_pipeline.resources.progress import progress_listener

    facts = statement(arch, product)
    if not facts:
        raise UsageError("nothing is stated; give --arch, --product or both")
    lake = TraceLake(project.lake)
    found = lake.find_session(session)
    if found not in lake.captured():
        raise UsageError(f"session {found} has no capture whose devices could be stated")
    require_unstated(lake.read("devices", found), facts)
    lake.state(found, facts)
    with progress_bar(as_json) as show, progress_listener(show):
        run_session(lake, found, project.configs)
    devices = lake.read("devices", found).select("device_id", "arch", "arch_source", "product").to_dicts()
    if as_json:
        print_json({"session_id": found, "stated": facts, "devices": devices})
        return
    said = ", ".join(facts.values())
    say(f"{found}: stated {said}; `aaco show {found}` shows what follows")
