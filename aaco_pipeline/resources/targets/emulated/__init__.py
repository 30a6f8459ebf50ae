"""A kernel's real machine code, executed instruction by instruction by an emulator of the user's: what it computes and
how many instructions it takes, never how long.

`finding` says which emulator there is, `target` builds and starts, `process` speaks with the confined process, in which
`driver` runs. `program` does what a GPU's driver and command processor do before the first instruction.
"""
