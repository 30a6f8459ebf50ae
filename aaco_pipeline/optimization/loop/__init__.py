"""The search for a faster kernel: what it is given, one candidate's way through the guards, and the search itself.

`means` is what it is given, `attempt` takes one candidate through the guards, `search` goes from one to the next,
`decisions` is the rule by which evidence becomes a decision: the same when a journal is replayed.
"""
