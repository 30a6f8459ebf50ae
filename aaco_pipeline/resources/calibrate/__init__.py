"""Measuring what this machine can do at best."""
