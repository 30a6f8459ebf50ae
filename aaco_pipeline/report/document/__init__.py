"""What the lake holds about a session or a kernel, gathered by SQL."""
