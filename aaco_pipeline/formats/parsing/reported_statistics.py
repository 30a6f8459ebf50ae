"""Sums that a profiler made itself and wrote as CSV, to the table `reported_statistics`."""

import polars as pl

from aaco_pipeline.formats.parsing.csv_text import TextTable, kernel_name, number, whole_number
from aaco_pipeline.lake.validation import to_contract


def statistics_rows(table: TextTable, domain: str) -> pl.DataFrame:
    """The table `reported_statistics` of one file, without the rows that state no name or number of calls."""

    def rounded(name: str) -> pl.Expr:
        text = table.text(name)
        return pl.coalesce(whole_number(text), number(text).round().cast(pl.Int64, strict=False))

    name = table.text("name")
    rows = table.frame.select(
        source=pl.lit(table.path.name),
        domain=pl.lit(domain),
        name=kernel_name(name) if domain == "kernel" else name,
        call_count=table.whole("calls"),
        total_ns=rounded("totaldurationns"),
        mean_ns=rounded("averagens"),
        min_ns=rounded("minns"),
        max_ns=rounded("maxns"),
        standard_deviation_ns=rounded("stddev"),
        share_ratio=number(table.text("percentage")) / 100,
    )
    return to_contract("reported_statistics", rows.drop_nulls(("name", "call_count")))
