"""Segments: Parquet files with one table's rows of many sessions, each with a list of their owners beside it.

`format` reads segments, `writing` makes one, `compaction` is a round over the lake, `health` finds damage. Whether a
table is read from a segment or from its own file is decided in `aaco_pipeline.lake.reading`.
"""
