"""The Perfetto trace of a session: `session` lays it out, `encoding` makes the bytes."""
