"""From the sessions of two arms to a verdict: effects by block, levels, thresholds, the decision and its words."""
