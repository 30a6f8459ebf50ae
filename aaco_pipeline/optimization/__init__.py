"""Kernel optimization: what to change, whether the change is correct and faster, and the record of decisions.

Pure: builds, runs, compilers and language models are passed in from `aaco_pipeline.resources`. `candidates` (a changed
source) and `targets` (a kernel's call, where it is built and run) define the types that the packages exchange.
"""
