"""Emulation of a kernel's real machine code, instruction by instruction: results and instruction counts, never time.

`target` builds and starts it and talks to the confined process, in which `driver` runs. `program` does what a GPU's
driver and command processor do before the first instruction.
"""
