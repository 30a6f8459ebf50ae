"""Causes of a difference between two sets of sessions.

`accounts` adds up a session's steps, `arms` collects sessions and their facts, `matching` matches the kernels of two
arms, `selection` finds what was selected differently, and `decomposition` splits the change with `split`.
"""
