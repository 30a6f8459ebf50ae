"""Perfetto traces of sessions: `session` lays them out, `encoding` creates the bytes."""
