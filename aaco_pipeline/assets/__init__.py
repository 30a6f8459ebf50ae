"""One module per stage: it reads the session, calls the analysis and reports the result. No arithmetic, no plotting."""
