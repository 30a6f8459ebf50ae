"""Searches for a faster kernel or configuration: documents, sentences, views and pages."""
