"""All pipeline work, independent of Dagster: a session's stages, ingestion, repair, and work across sessions.

The command and Dagster's assets, jobs and sensors in `aaco_pipeline.automation` call the same functions.
"""
