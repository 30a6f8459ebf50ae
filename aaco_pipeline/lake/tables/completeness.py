"""Whether a recording can carry the answer: the ledger of what was to be recorded and was, and what follows from it.

What was recorded lives in `trace`, and figures made of it in `analysis`; these tables say how far to believe either.
"""

from typing import Final

from aaco_pipeline.lake.declaration import (
    COUNT,
    ID,
    INT32,
    INT64,
    NAME,
    NS,
    STRING,
    STRINGS,
    TEXT,
    Table,
    column,
    nullable,
)

# A column is one call of at most three lines.
# fmt: off
TABLES: Final[tuple[Table, ...]] = (
    Table(
        name="completeness", section="Completeness",
        meaning="One row counts what one device, process and kind of record was to have and has. Filled by the stage "
                "completeness.",
        sort_by=("record_kind", "process_id", "device_id"),
        columns=(
            column("record_kind", STRING, NAME, "Table whose records are counted: `dispatches`, `memory_copies`, "
                "`api_calls`, `counters` or `att_instructions`."),
            nullable("process_id", INT32, ID, "Process whose records they are, in `processes`; null for records of no "
                "known process."),
            nullable("device_id", INT32, ID, "Device of the records, in `devices`; null where none is known, as of "
                "host calls, and of launches that left no record in a process with several devices."),
            nullable("launched", INT64, COUNT, "Host calls that launch work of this kind, those inside a graph capture "
                "left out; null when no host calls were recorded."),
            nullable("unrecorded", INT64, COUNT, "Of these, launches of which no record is there; of graphs, records "
                "that other replays of the graph have. Null when launches are not known."),
            column("recorded", INT64, COUNT, "Records of the kind."),
            nullable("linked", INT64, COUNT, "Records whose launching call was recorded; null when no host calls "
                "were."),
            nullable("counted", INT64, COUNT, "Dispatches with a value of at least one counter; null for other "
                "kinds."),
            nullable("dropped", INT64, COUNT, "Records that the tool itself says it dropped; null when it says "
                "nothing either way."),
            nullable("out_of_range", INT64, COUNT, "Records that the tool itself left out because they lay outside its "
                "recording; null when it says nothing."),
            nullable("out_of_order", INT64, COUNT, "Records that begin before the call that launched them, or end "
                "before they begin; null when neither can be told."),
            nullable("before_recording", INT64, COUNT, "Records whose launch came before the recording of host calls "
                "began; null when no host calls were recorded."),
            nullable("before_recording_ns", INT64, NS, "Summed durations of those records; null as before_recording."),
            nullable("clock_step_ns", INT64, NS, "Least jump between host and device clock within the recording that "
                "its own order demands; zero when one offset fits; null without links."),
            nullable("passes", INT64, COUNT, "Counter passes that the records come from; null for other kinds."),
            nullable("repetitions", INT64, COUNT, "Most often that one counter of one dispatch was taken in one pass; "
                "null for other kinds."),
            nullable("reason", STRING, TEXT, "Why counts of the row are null; null when there is nothing to explain."),
        ),
    ),
    Table(
        name="completeness_findings", section="Completeness",
        meaning="One row is one way in which the recording falls short, with what that does to which figures and how "
                "to record again. Filled by the stage completeness; empty when nothing was found.",
        sort_by=("finding_id",),
        columns=(
            column("finding_id", INT32, ID, "Dense number of the finding within the session, the gravest first."),
            column("finding", STRING, NAME, "What was found, by the names listed in the documentation, such as "
                "`launches_unrecorded`."),
            column("severity", STRING, NAME, "`fault` when the capture contradicts itself or the tool says so, `bound` "
                "when figures become bounds, `note` when no figure changes."),
            column("grade", STRING, NAME, "`observed` when records show it, `inferred` when it is the best explanation "
                "of what they show."),
            column("subject", STRING, TEXT, "What the finding is about: a device, a process, a file, a counter."),
            nullable("process_id", INT32, ID, "Process that it is about, in `processes`; null for all."),
            nullable("device_id", INT32, ID, "Device that it is about, in `devices`; null for all."),
            nullable("start_ns", INT64, NS, "Start of the time that it is about, on the session's axis; null for all "
                "of it."),
            nullable("end_ns", INT64, NS, "End of that time, exclusive; null for all of it."),
            nullable("records", INT64, COUNT, "Records, launches or values that it is about; null when not countable."),
            column("evidence", STRING, TEXT, "What shows it, in a sentence with its numbers."),
            column("voids", STRINGS, NAME, "Figures (table.column) that it makes void: they are null."),
            column("at_least", STRINGS, NAME, "Figures that it makes a lower bound: the truth is at least as much."),
            column("at_most", STRINGS, NAME, "Figures that it makes an upper bound: the truth is at most as much."),
            column("mend", STRING, TEXT, "The command or setting that records it whole."),
        ),
    ),
)
