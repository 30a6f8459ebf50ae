"""Figures of a complete session: latency, tokens, scaling, environment and invariants."""
