"""One dispatch taken out of a program: what was captured of it, and where its memory would have to lie to run again.

`capture` reads and checks a folder that rocm-perf-lab's isolate tool or kerncap wrote, `plan` says which address ranges
must be reserved, `regions` compares two states of the same memory. Nothing here runs a kernel.
"""
