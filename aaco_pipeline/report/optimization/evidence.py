"""Describe the evidence for a search's answer: layouts, blocks and guards.

`document` collects it. Nothing here loads polars.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from aaco_pipeline.report.formatting import counted, duration, grouped, long_duration, number
from aaco_pipeline.report.optimization import search
from aaco_pipeline.report.optimization.search import Row
from aaco_pipeline.report.view import Code, Columns, Sentence, Table, View, sentences

_STEPS: Final = {"aa": "A/A", "search": "search", "confirmation": "confirmation", "whole": "confirmation"}
#: Steps that are timed in addition to attempts.
_NO_ATTEMPT: Final = {"aa": "identical code", "whole": "all that was accepted"}
_ATTEMPTS: Final = (
    "In the order in which they were tried, each compared with the source as accepted so far. The "
    "guard is what stopped an attempt, or the last that it passed."
)
_LAYOUTS: Final = (
    "Time before divided by time after: right of 1 is faster. Each mark is one random layout of the code, with two "
    "fresh processes of its own, at the median ratio of its pairs. Rings are of the search, which only chooses what is "
    "worth a confirmation; dots are of the confirmation, which decides in layouts that no search has seen."
)
#: Static figures in order of importance, by their names in the journal.
_FIGURES: Final[Mapping[str, str]] = {
    "waves_per_simd": "wavefronts per SIMD (occupancy)",
    "vgprs": "VGPRs, accumulation registers included",
    "agprs": "accumulation registers",
    "sgprs": "SGPRs",
    "vgpr_spills": "spilled VGPRs",
    "sgpr_spills": "spilled SGPRs",
    "lds_bytes": "LDS of a workgroup, bytes",
    "scratch_bytes": "scratch memory of a work-item, bytes",
    "code_bytes": "machine code, bytes",
}
#: Host facts listed first, with a label; the complete list follows below.
_OF_THE_HOST: Final = {("cpu", "model"): "", ("kernel", "release"): "kernel "}


def title(document: Row) -> str:
    """Return the title of a search's report."""
    if document["kernel"] is None:
        return f"{document['source_name']}: a search for a faster configuration"
    return f"{document['kernel']}: a search for a faster kernel"


def asked(document: Row) -> str:
    """Describe the request, for the text below the title."""
    began = f"{document['began_at']:%Y-%m-%d %H:%M} UTC"
    return f"{document['source_name']} on {document['executed_on']}, {began}"


def attempts_intro(document: Row) -> str:
    """Return the introduction above the table of attempts."""
    return _ATTEMPTS if document["kernel"] is not None else search.ATTEMPTS_INTRO


def layouts_intro(document: Row) -> tuple[str, str]:
    """Return the heading above the layout plot, which explains its marks."""
    heading, told = ("Layout by layout", _LAYOUTS)
    if document["kernel"] is None:
        heading, told = ("Block by block", search.BLOCKS_INTRO)
    least = number(1 + document["threshold_ratio"])
    return heading, f"{told} The orange line is the least gain that counts ({least}), the bar the interval."


def itself(document: Row) -> tuple[str, str | None, str] | None:
    """Return the result of timing identical code twice: name, ratio and count; None if there is none."""
    found = next((row for row in timed(document) if row["step"] == "aa"), None)
    if found is None:
        return None
    count = len(found["layouts"])
    ratio = None if found["speedup_ratio"] is None else found["figure"]
    return (_called_itself(document).capitalize(), ratio, f"beside itself, {counted(count, _layout(document))}")


def timed(document: Row) -> list[dict[str, Any]]:
    """List the timed steps with their names and numbers of layouts."""
    no_attempt = {**_NO_ATTEMPT, "aa": _called_itself(document)}
    named = {row["attempt"]: f"{row['attempt']}: {search.what(row)}" for row in document["attempts"]}
    return [
        {
            **row,
            "called": no_attempt.get(row["step"]) or named.get(row["attempt"], str(row["attempt"])),
            "aside": f"{_STEPS[row['step']]}, {_how_many(row['layouts'], _layout(document))}",
            "figure": "–" if row["speedup_ratio"] is None else f"{row['speedup_ratio']:.3f}",
            "interval": None
            if None in (row["ci_low"], row["ci_high"])
            else f"{row['ci_low']:.3f} … {row['ci_high']:.3f}",
        }
        for row in document["evidence"]["timings"]
    ]


def static_columns(document: Row) -> dict[str, Callable[[Row], str | None]]:
    """Build the table of static figures: a row per figure, a column per architecture, `before → after` if changed."""

    def of(one: Row) -> Callable[[Row], str | None]:
        return lambda figure: _changed(one["before"].get(figure["name"]), one["after"], figure["name"])

    columns: dict[str, Callable[[Row], str | None]] = {"figure": lambda figure: figure["in_words"]}
    return columns | {f"*on {one['architecture']}": of(one) for one in document["evidence"]["static"]}


def static_rows(document: Row) -> list[dict[str, str]]:
    """Return the figures stated for any architecture."""
    stated = {name for one in document["evidence"]["static"] for name in one["before"]}
    return [{"name": name, "in_words": told} for name, told in _FIGURES.items() if name in stated]


def static_intro(document: Row) -> str:
    """Explain the static figures, and name architectures whose machine code did not change."""
    if not document["evidence"]["static"]:
        lacking = document["evidence"]["static_lacking"]
        return f"None: {lacking}." if lacking else "None: the search ended before the source was compiled for a GPU."
    told = "What a compiler states for AMD GPUs, which need not be here: what the kernel takes, not how fast it is."
    if all(one["after"] is None for one in document["evidence"]["static"]):
        return f"{told} Of the source as it is; nothing was accepted."
    same = [
        one["architecture"]
        for one in document["evidence"]["static"]
        if one["after"] is not None and one["after"]["code_sha256"] == one["before"]["code_sha256"]
    ]
    return f"{told} Before → after, where they differ." + (
        f" On {' and '.join(same)} the machine code is the same as before." if same else ""
    )


def patch_lines(text: str) -> list[tuple[str, str]]:
    """Return the lines of a unified diff with their kinds: file, hunk, added, removed or kept. Tabs are expanded."""
    kinds = {"+": "added", "-": "removed", "@": "hunk", "\\": "hunk"}
    lines = text.rstrip("\n").split("\n")
    return [("file" if at < 2 else kinds.get(line[:1], "kept"), line.expandtabs(8)) for at, line in enumerate(lines)]


def circumstances(document: Row) -> list[tuple[str, str, Sequence[str]]]:
    """Describe the machine and the method: label, text, and compiler flags if known."""
    evidence = document["evidence"]
    built = [
        ("Compiler" if one["of"] is None else f"Compiler for {one['of']}", str(one["compiler"]), one["flags"])
        for one in evidence["builds"]
    ]
    first: tuple[tuple[str, str | None], ...] = (
        ("Ran on", document["executed_on"]),
        ("Measured as", None if (options := evidence["run_options"]) is None else f"`aaco run {options}`"),
        ("A gain says something of", _applies_to(document)),
        ("Host", _host(evidence["environment"] or ())),
        ("Clock", evidence["clock"]),
        ("Compilers got at every file of the user", evidence["compiler_unconfined"]),
    )
    then: tuple[tuple[str, str | None], ...] = (
        ("Least time of a call", _floor(evidence["floor"])),
        ("Least gain that counts", f"{number(100 * document['threshold_ratio'])} %"),
        ("Chance of a false gain", f"at most {number(100 * document['alpha'])} % over the whole search"),
        ("Time", _time(document)),
        ("Evidence of a session", document["session"]),
        ("Seed", str(document["seed"])),
        (f"SHA-256 of the {'model' if document['kernel'] is None else 'source'}", document["source_sha256"]),
        ("SHA-256 of the harness", document["harness_sha256"]),
        ("Written by", evidence["writer"]),
    )
    before, after = ([(label, text, ()) for label, text in part if text is not None] for part in (first, then))
    return [*before, *built, *after]


NOT_APPLICABLE: Final[Columns] = {"proposer": lambda row: row["proposer"], "reason": lambda row: row["reason"]}


def next_steps(document: Row) -> list[tuple[str, str | None]]:
    """Suggest next steps: a sentence and, if there is one, the command."""
    name = document["optimization_id"]
    told: list[tuple[str, str | None]] = []
    # Unconfirmed combinations are stored as a patch that must not be applied.
    is_kept = document["gain"] is not None
    if is_kept and document["patch"] is not None and document["is_applied"]:
        undo = f"patch -R -p1 < LAKE/{shlex.quote(document['patch'])}"
        told.append((f"The change stands in {document['source_name']} already. To take it back, in its folder:", undo))
    elif is_kept and document["patch"] is not None:
        apply = f"patch -p1 < LAKE/{shlex.quote(document['patch'])}"
        told.append((f"To apply the change, in the folder of {document['source_name']} (LAKE is the lake's):", apply))
    if is_kept and (block := document["evidence"]["launched_in"]) is not None:
        told.append((f"Launch the kernel in workgroups of {' × '.join(map(str, block))} work-items.", None))
    if is_kept and document["run_options"] is not None:
        told.append(("To measure the model as it was accepted:", f"aaco run {document['run_options']}"))
    again = "To decide everything again from the journal, without running anything:"
    return [*told, (again, f"aaco optimize --replay {name}")]


def _changed(before: int | None, after: Row | None, name: str) -> str | None:
    then = None if after is None else after.get(name)
    if before is None or then is None or then == before:
        return grouped(before)
    return f"{grouped(before)} → {grouped(then)}"


def _called_itself(document: Row) -> str:
    return _NO_ATTEMPT["aa"] if document["kernel"] is not None else "the same configuration"


def _layout(document: Row) -> str:
    return "layout" if document["kernel"] is not None else "block"


def _how_many(layouts: Sequence[float | None], noun: str) -> str:
    """Count the layouts, and the steady ones if some are not."""
    known = sum(ratio is not None for ratio in layouts)
    return counted(known, noun) if known == len(layouts) else f"{known} of {counted(len(layouts), noun)} steady"


def _applies_to(document: Row) -> str:
    if document["target"] == "cpu":
        return "this processor, not a GPU"
    return str(document["speedup_applies_to"])


def _host(facts: Sequence[Row]) -> str | None:
    known = {(one["category"], one["key"]): one["value"] for one in facts}
    told = [f"{word}{known[fact]}" for fact, word in _OF_THE_HOST.items() if known.get(fact)]
    return ", ".join(told) or None


def _floor(floor: Row | None) -> str | None:
    if floor is None:
        return None
    if floor["call_ns"] is None:
        return f"not checked: {floor['lacking']}"
    return f"{duration(floor['call_ns'])}, by the harness and this machine's measured ceilings: faster would be refused"


def _time(document: Row) -> str:
    given = f"of {long_duration(document['budget_ns'])}"
    return given if document["spent_ns"] is None else f"{long_duration(document['spent_ns'])} {given}"


def report_view(document: Row) -> View:
    """Lay out a search for Markdown: the answer, every attempt, and the change."""
    patch = document["evidence"]["patch_text"]
    return View(
        title(document),
        [
            Sentence(asked(document)),
            Sentence(search.sentence(document), search.tone(document)),
            *sentences(search.remarks(document)),
            Table(search.ATTEMPTS, document["attempts"], title="Attempts", most=len(document["attempts"])),
            *([] if patch is None else [Code("What was changed", patch, "diff")]),
            Sentence(f"`aaco report {document['optimization_id']}` makes the page with the plots."),
        ],
    )
