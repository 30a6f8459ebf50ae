"""Verdicts of campaigns and differences of sessions: documents, sentences, views and pages."""
