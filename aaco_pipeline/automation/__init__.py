"""Dagster alone: partitions, assets, jobs, schedules and sensors, which decide when stages run."""
