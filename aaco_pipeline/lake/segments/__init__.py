"""Segments: one Parquet file with a table's rows of many sessions, and the list beside it that says whose they are.

`format` is the list and reading by it, `writing` makes a segment, `compaction` is one round over the lake by the
`facts`, `replaced` removes what segments stand for once its grace is over, `health` finds what is torn. Whether a table
is read from a segment or from its own file decides `aaco_pipeline.lake.reading`.
"""
