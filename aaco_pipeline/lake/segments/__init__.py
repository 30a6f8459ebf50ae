"""Segments: Parquet files with one table's rows of many sessions, each with a list of their owners beside it.

`format` reads segments, `writing` makes one, `compaction` is a round over the lake. `aaco_pipeline.lake.repair` finds
damage, and `aaco_pipeline.lake.reading` chooses between a segment and a table's own file.
"""
