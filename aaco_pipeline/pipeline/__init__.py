"""Everything that runs, without Dagster: a session's stages, ingestion, repair, and work across sessions.

The command calls these functions; Dagster's assets, jobs and sensors in `aaco_pipeline.automation` call the same ones.
"""
