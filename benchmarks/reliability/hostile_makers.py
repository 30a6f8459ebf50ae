"""The hostile captures of `hostile_captures.py`, made here: what a stranger would hand over to hurt who takes it in.

A maker fills an empty folder and gives the path to ingest. `host` is a folder beside it that stands for the rest of the
machine: whole captures whose every name is a marker, which must never get into the lake.
"""

from benchmarks.reliability.hostile_any_format import of_every_format
from benchmarks.reliability.hostile_databases import of_databases
from benchmarks.reliability.hostile_documents import of_documents, of_metrics, of_series, of_texts
from benchmarks.reliability.hostile_folders import of_folders, of_taken
from benchmarks.reliability.hostile_parts import Case


def cases() -> list[Case]:
    """All of them, in one order."""
    found = [
        *of_every_format(),
        *of_databases(),
        *of_documents(),
        *of_texts(),
        *of_metrics(),
        *of_series(),
        *of_folders(),
        *of_taken(),
    ]
    assert len({one.name for one in found}) == len(found)
    return found
