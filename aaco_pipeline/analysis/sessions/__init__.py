"""Figures of a whole session: latency, tokens, scaling, the environment, and what must hold."""
