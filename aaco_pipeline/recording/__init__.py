"""Recording of any program as it runs: what needs Python's standard library alone, so that it goes to any GPU node.

What a recording becomes is `aaco_pipeline.capture`'s and `aaco_pipeline.formats`'s.
"""
