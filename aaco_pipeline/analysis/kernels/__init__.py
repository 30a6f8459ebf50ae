"""Kernel names and times."""
