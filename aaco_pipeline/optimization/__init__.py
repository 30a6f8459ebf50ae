"""Kernel sources in, decisions out: what to change, whether it is right, whether it is faster, and what was decided.

Pure: builds, runs, compilers and language models are passed in from `aaco_pipeline.resources`. `candidates`
(a changed source) and `targets` (a kernel's call, where it is built and run) hold what the packages exchange.
"""
