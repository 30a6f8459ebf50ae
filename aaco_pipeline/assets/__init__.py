"""One module per stage: read the session, call the analysis, say what was there. No arithmetic, no plotting."""
