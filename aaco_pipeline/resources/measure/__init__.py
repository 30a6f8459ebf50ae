"""Run models in measured processes, one at a time per host."""
