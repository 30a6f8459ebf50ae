"""The search for a faster kernel or a faster configuration of a model.

`means` holds its inputs, `attempt` takes one candidate through the guards and decides on it, `search` and
`configurations` iterate over candidates, `replay` repeats the decisions from a journal.
"""
