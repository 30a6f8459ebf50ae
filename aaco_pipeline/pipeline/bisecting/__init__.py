"""Which of many builds brought a change: each is made once, measured in campaigns beside the first, and told apart.

`record` is what the lake holds of a search, written before its first session; `builds` makes the builds; `search` goes
from one to the next as `aaco_pipeline.statistics.bisection` asks, and goes on where it was killed.
"""
