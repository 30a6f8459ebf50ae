"""Rendering from lake tables for people: terminal, HTML, plots."""
