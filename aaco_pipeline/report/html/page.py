"""Render a session's document as a self-contained HTML page: text and tables from templates, plots drawn by a script.

Frame, script and style are files in `templates/`; `sections` defines the sections, `plots` the plotted data. This
module combines them.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.resources import files
from typing import Any, Final

from jinja2 import BytecodeCache, Environment, PackageLoader, StrictUndefined
from jinja2.bccache import Bucket, bc_magic
from markupsafe import Markup

from aaco_pipeline.cache_folder import kept_code, own_code, own_folder
from aaco_pipeline.errors import UsageError
from aaco_pipeline.report import formatting
from aaco_pipeline.report.formatting import bounded, capital, counted, duration, exact, number, printable, share
from aaco_pipeline.report.html import sections
from aaco_pipeline.report.html.plots import PASSES, QUANTILES, plotted
from aaco_pipeline.report.kernel import instructions
from aaco_pipeline.report.kernel.page import first_kernel, kernel_views, paged_kernels
from aaco_pipeline.report.session import bottlenecks
from aaco_pipeline.report.session import view as tables
from aaco_pipeline.report.session.answer import sharpening
from aaco_pipeline.report.session.sentences import (
    Document,
    answer,
    disturbances,
    facts,
    half,
    interval,
    metric,
    run_description,
    steadiness,
    title,
    value,
)
from aaco_pipeline.report.session.spikes import quietness
from aaco_pipeline.report.session.statements import LISTED_INSTRUCTIONS, LISTED_KERNELS

#: Traces up to this size are embedded in the page, so that the file alone can pass them to Perfetto.
EMBEDDED_TRACE_BYTES: Final = 700_000
_GENERATION: Final = {
    "time_to_first_token_p50": "First token",
    "time_per_output_token_p50": "Further token",
    "request_latency_p50": "Request",
}
#: Invisible characters used by the page itself.
OF_THE_PAGE: Final = "\n\N{NO-BREAK SPACE}"
#: No-break space between a number and its unit.
UNIT: Final = re.compile(r"(?<=[0-9]) (?=(?:%|[mµn]?s|inferences)\b|%)")


def render_html(document: Document, trace: bytes | None) -> str:
    """Render the page of a long document. `trace` is the content of the session's trace file, or None.

    Equal arguments give equal pages. The page uses no network until the user opens the trace in Perfetto.
    """
    embedded = trace is not None and len(trace) <= EMBEDDED_TRACE_BYTES
    page = (
        templates()
        .get_template("page.html.jinja")
        .render(
            document=document,
            sections=[(one, Markup(render_section(document, one))) for one in sections.sections_of(document)],
            views=[Markup(view) for view in rendered_kernels(document)],
            first=first_kernel(document),
            style=joined("report.css", "timeline.css", "kernel.css"),
            script=joined("report.js", "timeline_range.js", "timeline.js", "kernel.js"),
            description=capital(run_description(document).removeprefix(f"{title(document)}, ")),
            half=half(document),
            answer=UNIT.sub("\N{NO-BREAK SPACE}", answer(document)),
            sharpen=sharpening(document),
            facts=UNIT.sub("\N{NO-BREAK SPACE}", facts(document)) if document["answers"] else "",
            noise=UNIT.sub("\N{NO-BREAK SPACE}", quietness(document) or ""),
            tiles=[tile for tile in _tiles(document) if tile[1] is not None],
            holes=len(bottlenecks.without_repetition(document["missing"])) + len(document["unpublished_stages"]),
            has_trace=trace is not None,
            data=_as_json(plotted(document, trace)),
            trace=base64.b64encode(trace).decode() if trace is not None and embedded else "",
        )
    )
    return printable(page, keep=OF_THE_PAGE)


def render_section(document: Document, section: sections.Section) -> str:
    """Render a section without its heading and its SQL."""
    template = templates().get_template(f"sections/{section.name}.html.jinja")
    return template.render(document=document, paged=paged_kernels(document), **section.values(document))


def rendered_kernels(document: Document) -> list[str]:
    """Render the page of each kernel that has one, as a view selected by a URL fragment."""
    names = {section.name for section in sections.sections_of(document)}
    back = next((name for name in ("kernels", "limits", "instructions") if name in names), "answer")
    template = templates().get_template("kernel/view.html.jinja")
    return [template.render(view=view, back=back) for view in kernel_views(document)]


class _Compiled(BytecodeCache):
    """Cache of compiled templates; if a template cannot be stored, for example on a full disk, it is compiled every
    time.
    """

    def load_bytecode(self, bucket: Bucket) -> None:
        if (kept := kept_code(_compiled_name(bucket))) is not None:
            bucket.bytecode_from_string(kept)

    def dump_bytecode(self, bucket: Bucket) -> None:
        with suppress(UsageError):
            own_code(_compiled_name(bucket), lambda made: made.write_bytes(bucket.bytecode_to_string()))


def _compiled_name(bucket: Bucket) -> str:
    """Return a cache name from the source and everything else that affects whether Python can load the code."""
    return f"templates/{bucket.key}-{hashlib.sha256(bc_magic + bucket.checksum.encode()).hexdigest()[:32]}"


@cache
def templates() -> Environment:
    """Load the templates with their helper functions: number formatting, and the cells and parts shared by all
    sections.
    """
    made = Environment(
        loader=PackageLoader("aaco_pipeline.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        bytecode_cache=None if own_folder("templates") is None else _Compiled(),
    )
    made.filters |= {
        "digest": lambda text: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode(),
        "numbered": lambda name: f"*{name.capitalize()}" if name in instructions.NUMBERS else name.capitalize(),
    }
    numbers = (
        "capital",
        "counted",
        "duration",
        "exact",
        "grouped",
        "in_unit",
        "number",
        "share",
        "shortened",
        "size",
        "work",
    )
    of_sections = ("folds", "ratio_of_all", "longest_share", "shell_command", "tables_read", "why_empty")
    made.filters |= {name: getattr(formatting, name) for name in numbers}
    made.filters |= {name: getattr(sections, name) for name in of_sections}
    made.filters["kernel_in_words"] = tables.kernel_in_words
    made.globals |= {"title": title, "steadiness": steadiness, "words": bottlenecks, "listed": instructions}
    made.globals |= {"LISTED_ROWS": sections.LISTED_ROWS, "SHOWN_ROWS": sections.SHOWN_ROWS, "PASSES": PASSES}
    made.globals |= {"LISTED_INSTRUCTIONS": LISTED_INSTRUCTIONS, "LISTED_KERNELS": LISTED_KERNELS}
    made.globals |= {name: made.get_template(f"{name}.html.jinja").module for name in ("cells", "parts")}
    return made


def _tiles(document: Document) -> Iterator[tuple[str, str | None, str | None, str | None]]:
    """Return label, figure, caption and exact value of each tile."""
    generates = document.get("output_tokens") is not None
    labels = _GENERATION if generates else {name: f"{label} latency" for name, label in QUANTILES.items()}
    rate, unit = ("output_tokens_per_s", "tokens / s") if generates else ("throughput", "inferences / s")
    found = {name: metric(document, name, "latency") for name in (*labels, rate, "steady_state")}
    distortion, steady = value(document, "profiler_distortion"), found.pop("steady_state")
    for name, row in found.items():
        if row is not None and name == rate:
            yield "Throughput", number(row["value"]), unit, exact(row["value"], "per s")
        elif row is not None:
            yield labels[name], duration(row["value"]), interval(row), exact(row["value"], "ns")
    for row in document["answers"][:1]:
        if row["window_ns"] is not None and row["period_ns"] is not None:
            each = f"{counted(row['repetitions'], 'repetition')} in {duration(row['window_ns'])}"
            yield "Steady part", duration(row["period_ns"]), each, exact(row["period_ns"], "ns")
        if row["busy_ratio"] is not None:
            yield "Device busy", share(row["busy_ratio"]), "of the judged window", exact(row["busy_ratio"], "ratio")
    for row in document["timeline"][:1] if not document["answers"] else ():
        busy = bounded(share(row["active_ratio"]), row["busy_bound"])
        yield "Device busy", busy, "while profiled", exact(row["active_ratio"], "ratio")
    if distortion is not None:
        yield "Profiler distortion", f"× {distortion:.3g}", "on the median", exact(distortion, "ratio")
    if steady is None or steady["value"] is None:
        yield "Steady", None, "not judged" if steady is None else "too short to tell", None
    else:
        held = "disturbed" if disturbances(document) else "yes"
        yield "Steady", held if steady["value"] >= 1 else "no", None, None


def _as_json(figures: dict[str, Any]) -> Markup:
    """Encode JSON for a script element: names from a capture may contain `</script>` or `<!--`."""
    text = json.dumps(_cleaned(figures), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _cleaned(figure: Any) -> Any:
    """Make all texts of a figure `printable`, because the script shows them unchanged."""
    if isinstance(figure, str):
        return printable(figure)
    if isinstance(figure, dict):
        return {_cleaned(key): _cleaned(one) for key, one in figure.items()}
    return [_cleaned(one) for one in figure] if isinstance(figure, list | tuple) else figure


def joined(*names: str) -> Markup:
    """Concatenate the page's own files, which need no escaping."""
    folder = files("aaco_pipeline.report.html").joinpath("templates")
    return Markup("".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names))
