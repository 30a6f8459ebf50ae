"""Timelines: activities, gaps and their causes, dependencies, the critical path, ranks."""
