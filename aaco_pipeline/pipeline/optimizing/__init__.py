"""Make a kernel or a model faster: the searches behind `aaco optimize` and the asset `optimization`.

`asking` checks a request, `search` runs it for a kernel and `models` for a model, `record` publishes it, `sources`
writes the user's files. A source is read once and not written before the search has ended.
"""
