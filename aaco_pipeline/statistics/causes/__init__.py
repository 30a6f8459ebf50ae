"""Why one set of sessions is slower than another: what was selected differently, and where the time went.

`accounts` adds up a session's steps exactly, `matching` finds the kernels of one set in the other, `selection` says
what was replaced, `decomposition` splits the change, `environment` lists what else differs. What is said of it in
words is `aaco_pipeline.report.words`.
"""
