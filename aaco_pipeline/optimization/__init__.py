"""Kernel sources in, decisions out: what to change, whether it is right, whether it is faster, and what was decided.

Pure: builds, runs, compilers and language models are passed in from `aaco_pipeline.resources`. What passes between the
halls is in `calls` (a kernel's call with its data), `candidates` (a changed source) and `targets` (where it is built).
"""
