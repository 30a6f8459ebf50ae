"""Emulate a kernel's real machine code, instruction by instruction: results and instruction counts, never time.

`target` builds it, starts the confined process that runs `driver`, and communicates with it. `program` does the work of
a GPU's driver and command processor before the first instruction.
"""
