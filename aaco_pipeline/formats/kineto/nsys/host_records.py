"""What the host did, in an export of Nsight Systems: calls into CUDA, NVTX ranges and marks.

Device activities are `aaco_pipeline.formats.kineto.nsys.reading`'s.
"""

from typing import Final

import polars as pl

from aaco_pipeline.formats.capture_tables import Findings
from aaco_pipeline.formats.kineto.nsys.export import CALLS, RANGES, Export
from aaco_pipeline.formats.kineto.nsys.surroundings import PID_BITS
from aaco_pipeline.lake.validation import to_contract

_TIMES: Final = {"start_ns": "start", "end_ns": "end"}
_CALL: Final = {
    **_TIMES,
    **{"global": "globalTid", "correlation": "correlationId", "class": "eventClass", "name_id": "nameId"},
}
_RANGE: Final = {**_TIMES, "global": "globalTid", "type": "eventType", "text_id": "textId"}
#: Classes of calls. With backtraces older releases write a call a second time, as another class.
_RUNTIME: Final = 0
_DRIVER: Final = 1
#: Kinds of NVTX events that are a mark or a range; the others name threads, categories, domains and objects.
_MARK: Final = 34
_SPANS: Final = (59, 60)
#: What a runtime's function is called behind its name: the version of CUDA that it came with.
_API_VERSION: Final = r"_v\d{4,5}$"


def recorded_calls(export: Export, findings: Findings) -> tuple[pl.DataFrame, int]:
    """The calls with their names, each once, and how many rows were left out."""
    rows = export.integers(CALLS, _CALL)
    names = export.names.applied(rows.get_column("name_id")).alias("name")
    every = placed(rows.with_columns(names))
    rows = every.drop_nulls(list(_TIMES))
    lost = every.height - rows.height
    findings.note(lost, f"unusable rows of {CALLS}", "invalid", f"{lost} rows without times; left out")
    own = pl.col("class").is_in([_RUNTIME, _DRIVER]).fill_null(True)
    key = ["process", "correlation"]
    once = rows.filter(own).select(key).unique()
    repeated = rows.filter(own.not_()).join(once, on=key, how="semi", nulls_equal=True).height
    reason = f"{repeated} calls are there twice, the second time with their backtrace; taken once"
    findings.note(repeated, "calls with backtraces", "present", reason)
    others = rows.filter(own.not_()).join(once, on=key, how="anti", nulls_equal=True)
    if repeated:
        rows = pl.concat([rows.filter(own), others]).sort("start_ns", maintain_order=True)
    return rows, lost + repeated


def recorded_ranges(export: Export, findings: Findings) -> pl.DataFrame:
    """The NVTX ranges and marks, each with its text."""
    rows = export.integers(RANGES, _RANGE)
    texts = export.texts(RANGES, "text")
    name = pl.Series("name", texts) if len(texts) == rows.height else pl.Series("name", [None] * rows.height)
    registered = export.names.applied(rows.get_column("text_id"))
    rows = placed(rows.with_columns(name.cast(pl.String))).with_columns(
        name=pl.coalesce("name", registered), type=pl.col("type").fill_null(_SPANS[0])
    )
    open_count = rows.filter(pl.col("type").is_in(_SPANS) & pl.col("end_ns").is_null()).height
    reason = f"{open_count} ranges were still open when the recording ended; left out"
    findings.note(open_count, "open NVTX ranges", "partial", reason)
    marks = pl.col("type") == _MARK
    rows = rows.with_columns(end_ns=pl.when(marks).then("start_ns").otherwise("end_ns"))
    return rows.filter(marks | pl.col("type").is_in(_SPANS)).drop_nulls(list(_TIMES))


def api_calls(recorded: pl.DataFrame) -> pl.DataFrame:
    """The table `api_calls`, from what `recorded_calls` gives."""
    name = pl.col("name").fill_null("call not stated").str.replace(_API_VERSION, "")
    rows = recorded.with_columns(name)
    by_name = pl.col("name").str.contains("^cu[A-Z]")
    is_driver = pl.when(pl.col("class").is_null()).then(by_name).otherwise(pl.col("class") == _DRIVER)
    return to_contract(
        "api_calls",
        rows.select(
            *("process_id", "name", "start_ns", "end_ns"),
            call_id=pl.int_range(pl.len(), dtype=pl.Int32),
            thread_id="thread",
            domain=pl.when(is_driver).then(pl.lit("cuda_driver")).otherwise(pl.lit("cuda_runtime")),
            correlation_id=correlation(),
        ),
    )


def markers(recorded: pl.DataFrame) -> pl.DataFrame:
    """The table `markers`, from what `recorded_ranges` gives."""
    return to_contract(
        "markers",
        recorded.select(
            *("process_id", "start_ns", "end_ns"),
            marker_id=pl.int_range(pl.len(), dtype=pl.Int32),
            thread_id="thread",
            name=pl.col("name").fill_null(""),
        ),
    )


def placed(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows with `process`, the identifier of their process, and `thread` instead of the serialized identifier."""
    identifier = pl.col("global")
    # Negative identifiers are the profiler's own.
    known = pl.when(identifier >= 0)
    return rows.with_columns(
        process=known.then(identifier - identifier % (PID_BITS + 1)),
        thread=known.then(identifier % (PID_BITS + 1)),
    ).drop("global")


def correlation() -> pl.Expr:
    """The correlation as an unsigned number; 0 and below stand for none."""
    return pl.when(pl.col("correlation") > 0).then("correlation").cast(pl.UInt64, strict=False)
