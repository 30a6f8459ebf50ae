"""Parsing shared by several formats: large JSON, CSV as text columns, SQLite, counter passes, redaction."""
