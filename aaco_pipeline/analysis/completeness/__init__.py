"""Completeness of recordings: missing records, their symptoms, and the figures that they invalidate or bound."""
