"""`aaco report` and `aaco perfetto`: a session as a page, text, Markdown or JSON, or as a trace for ui.perfetto.dev.

`aaco_pipeline.report` creates the views.
"""

import json
from collections.abc import Callable, Mapping
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from aaco_pipeline.cli.finishing import finish_first
from aaco_pipeline.cli.options import lake_option, open_lake
from aaco_pipeline.cli.output import BESIDE, give, json_value, say
from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.files import lake_errors, write_atomically

if TYPE_CHECKING:
    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.report.session.sentences import Document
    from aaco_pipeline.report.view import View
    from aaco_pipeline.resources.project import Project

    MakeView = Callable[[Document], View]

_FORMATS: Final = ("html", "terminal", "markdown", "json")
#: Prefix of search ids of `aaco optimize`.
_SEARCHES: Final = "optimize-"
#: Formats for verdicts only.
_OF_VERDICTS: Final = ("junit", "bencher", "github-action-benchmark")


@click.command()
@click.argument("session", default="latest")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Output file (default: in the lake).")
@lake_option
def perfetto(project: "Project", *, session: str, output: Path | None) -> None:
    """Write a session (id, unique prefix, or latest) as a trace for ui.perfetto.dev, and print the trace's path.

    All data shares one time axis: iterations, calls, kernels and copies, critical path, idle time by cause, threads,
    counters.
    """
    from aaco_pipeline.report.on_demand import trace_of

    lake = open_lake(project)
    identifier = lake.find_session(session)
    finish_first(project, lake, identifier, quiet=False)
    say(written(trace_of(lake, identifier), lake.trace(identifier), output))


def written(view: bytes, kept: Path, output: Path | None) -> Path:
    """Write a view to `output`, or else keep it at `kept` in the lake; return its path. LakeError if neither works."""
    if output is None:
        if not kept.is_file() or kept.read_bytes() != view:
            raise LakeError(f"{kept}: the lake cannot be written; name another file with --output")
        return kept
    with lake_errors(path := output.absolute()):
        write_atomically(path, view)
    return path


@click.command()
@click.argument("session", default="latest")
@click.option(
    "--format",
    "form",
    type=click.Choice([*_FORMATS, *_OF_VERDICTS]),
    default="html",
    show_default=True,
    help="Output format: a page with plots, or text, Markdown or JSON; for campaigns also CI formats.",
)
@click.option("--json", "as_json", is_flag=True, help="Short for --format json.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Output file (default: in the lake for a page, else standard output).",
)
@click.option("--open", "opened", is_flag=True, help="Serve the page on 127.0.0.1 until Ctrl-C, and open it.")
@lake_option
def report(project: "Project", *, session: str, form: str, as_json: bool, output: Path | None, opened: bool) -> None:
    """Report on a session (id, unique prefix, or latest): the answer first, then the evidence.

    For a campaign's id, report its verdict and write verdict.json to the page's folder. For an `aaco optimize` search
    id (optimize-…), report the search.
    """
    form = "json" if as_json else form
    if opened and form != "html":
        raise click.UsageError("--open shows the page: it goes with --format html")
    lake = open_lake(project)
    if session.startswith(_SEARCHES):
        return _report_search(lake, session, form, output, opened=opened)
    if lake.has_campaign(session):
        return _report_verdict(lake, session, form, output, opened=opened)
    if form in _OF_VERDICTS:
        raise click.UsageError(f"--format {form} is of verdicts, and {session} is no campaign")
    identifier = lake.find_session(session)
    finish_first(project, lake, identifier, quiet=form == "json")
    if form == "html":
        return _report_page(lake, identifier, output, opened=opened)
    from aaco_pipeline.report.session.document import session_document

    document = session_document(lake, identifier)
    if output is None and form == "terminal":  # the width of the terminal
        from aaco_pipeline.report.session.view import session_view
        from aaco_pipeline.report.terminal import print_view

        return print_view(session_view(document))
    if output is None:
        return click.echo(_rendered(document, form), nl=False)
    with lake_errors(path := output.absolute()):
        write_atomically(path, _rendered(document, form).encode())
    say(path)
    return None


def _report_page(lake: "TraceLake", session: str, output: Path | None, *, opened: bool) -> None:
    """Generate the page of a session, or take it from the lake; write it and, if requested, serve it."""
    from aaco_pipeline.report.on_demand import page_of, trace_of

    page = page_of(lake, session)
    say(written(page, lake.report(session), output))
    if opened:
        addresses = [f"/{'/'.join(place.parts[-3:])}" for place in (lake.report(session), lake.trace(session))]
        _serve(dict(zip(addresses, (page, trace_of(lake, session)), strict=True)))


def _report_verdict(lake: "TraceLake", campaign: str, form: str, output: Path | None, *, opened: bool) -> None:
    """Report a campaign's verdict; by default the page is written to the lake."""
    from aaco_pipeline.report.comparing.campaign import verdict_document

    document = verdict_document(lake, campaign)
    path = lake.verdict_page(campaign) if form == "html" and output is None else output
    give(document, "table" if form == "terminal" else form, path, "verdict")
    if opened and path is not None:
        _serve({f"/{path.name}": path.read_bytes(), f"/{BESIDE}": path.with_name(BESIDE).read_bytes()})


def _report_search(lake: "TraceLake", named: str, form: str, output: Path | None, *, opened: bool) -> None:
    """Report an `aaco optimize` search; by default the page is written to the lake."""
    from aaco_pipeline.pipeline.optimizing.record import find_optimization
    from aaco_pipeline.report.optimization.document import optimization_report
    from aaco_pipeline.report.optimization.search import search_view

    if form in _OF_VERDICTS:
        raise click.UsageError(f"--format {form} is of verdicts, and {named} is a search by `aaco optimize`")
    name = find_optimization(lake, named)
    document = optimization_report(lake, name)
    if form == "terminal" and output is None:
        from aaco_pipeline.report.terminal import print_view

        return print_view(search_view(document))
    content = _search_rendered(document, form)
    path = lake.search_page(name) if form == "html" and output is None else output
    if path is None:
        return click.echo(content, nl=False)
    with lake_errors(path):
        write_atomically(path.absolute(), content.encode())
    say(path)
    if opened:
        _serve({f"/{path.name}": content.encode()})
    return None


def _search_rendered(document: "Document", form: str) -> str:
    """Render a search as text for a file."""
    if form == "html":
        from aaco_pipeline.report.optimization.page import render_search as render_page

        return render_page(document)
    if form == "json":
        return json.dumps(document, indent=2, default=json_value) + "\n"
    from aaco_pipeline.report.optimization.evidence import report_view
    from aaco_pipeline.report.optimization.search import search_view

    return _laid_out(document, form, report_view, search_view)


def _rendered(document: "Document", form: str) -> str:
    """Render the report in any format other than a page."""
    from aaco_pipeline.report.session.view import report_view, session_view

    if form == "json":
        # Only the page needs timeline data.
        return json.dumps({key: part for key, part in document.items() if key != "drawn_timeline"}, indent=2) + "\n"
    return _laid_out(document, form, report_view, session_view)


def _laid_out(document: "Document", form: str, in_full: "MakeView", on_screen: "MakeView") -> str:
    """Render a document's view as Markdown or for a terminal."""
    from aaco_pipeline.report.markdown import render_view
    from aaco_pipeline.report.terminal import print_view

    if form == "markdown":
        return render_view(in_full(document))
    print_view(on_screen(document), text := StringIO())
    return text.getvalue()


def _serve(files: Mapping[str, bytes]) -> None:
    """Serve `files` behind the access check until Ctrl-C, and open the first one in the browser."""
    import webbrowser

    from aaco_pipeline.web.door import names_of
    from aaco_pipeline.web.serving import LOOPBACK, contents_app, link_to, listen, port_of, server_behind_the_door

    links = []
    with listen(LOOPBACK, 0) as listening:
        port = port_of(listening)

        def announce(token: str) -> None:
            links.append(link_to(LOOPBACK, port, token))
            say(f"{links[-1]} — stop with Ctrl-C")

        app = contents_app(files.get, first=next(iter(files)))
        server = server_behind_the_door(app, listening, names_of(LOOPBACK, port), announce)
        webbrowser.open(links[0])
        server.run(sockets=[listening])
