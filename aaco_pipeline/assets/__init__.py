"""One module per stage: read the lake, call the analysis, publish, describe. No arithmetic here."""
