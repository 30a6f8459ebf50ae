"""Recorder for any running program; it needs only Python's standard library, so it can be copied to any GPU node.

Recordings are interpreted by `aaco_pipeline.capture` and `aaco_pipeline.formats`.
"""
