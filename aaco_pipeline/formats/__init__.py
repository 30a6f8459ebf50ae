"""Readers, one package per foreign format, from files to canonical tables. They start nothing and keep no state."""
