"""What runs, without Dagster: a session's stages, taking captures in, mending, and what spans sessions.

The command calls these functions; Dagster's assets, jobs and sensors in `aaco_pipeline.automation` call the same ones.
"""
