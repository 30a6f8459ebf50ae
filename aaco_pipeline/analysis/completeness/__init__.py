"""Completeness of recordings: missing records, their symptoms, and the figures that they make a bound or void."""
