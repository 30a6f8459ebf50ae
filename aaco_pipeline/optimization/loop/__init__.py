"""The search for a faster kernel or a faster configuration of a model.

`means` holds its inputs, `attempt` takes one candidate through the guards and decides on it, `search` and
`configurations` go from one to the next, `replay` decides again from a journal.
"""
