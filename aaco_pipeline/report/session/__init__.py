"""A session: its document, its sentences and its views."""
