"""The `aaco` command, one module per command group. Heavy packages are imported inside functions."""
