"""Attacks on, and ends of, a running `aaco ui`."""
