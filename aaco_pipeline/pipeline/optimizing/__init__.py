"""Making a kernel faster: what `aaco optimize` and the asset `optimization` run, and what the lake holds of it.

`asking` finds the source, kernel and harness that are meant, `choosing` the target and a session's kernel, `running`
runs the search of `aaco_pipeline.optimization.loop` and writes its journal, `record` publishes it, `patches` makes the
diff and replaces the source. The user's source is read once and never written before the search has ended.
"""
