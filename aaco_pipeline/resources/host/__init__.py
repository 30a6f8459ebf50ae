"""Facts about this host, its backends and its processes."""
