"""Verdicts on two arms: effects over blocks, error levels, thresholds and the decision."""
