"""Segments: Parquet files with one table's rows of many sessions, each with a separate list of their owners.

`format` reads segments, `writing` creates one, and `compaction` processes the lake. `aaco_pipeline.lake.repair` finds
damage, and `aaco_pipeline.lake.reading` chooses between a segment and a table's own file.
"""
