"""Running models in measured processes, one at a time on a host."""
