"""Partitions, jobs, schedules, sensors and policies: when stages run."""
