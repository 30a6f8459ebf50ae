"""Sessions: document, sentences and views."""
