"""Classify instructions of AMD GPUs (CDNA and RDNA) by the unit that executes them, from the mnemonic.

Costs of instructions and meanings of operands are not here.
"""

from typing import Final

import polars as pl

#: Class and the mnemonics it takes, tried in this order; the first that fits wins.
_CLASSES: Final = (
    ("matrix", r"v_(mfma|smfmac|wmma|swmmac)_"),
    ("valu", r"v_"),
    ("lds", r"(ds|lds)_"),
    ("flat", r"flat_"),
    # Global and scratch accesses never reach the LDS, whatever their encoding; the same path serves image and buffer.
    ("vmem", r"(t?buffer|image|global|scratch|cluster|tensor)_"),
    ("export", r"(exp|export)\b"),
    ("barrier", r"s_(barrier|get_barrier_state)"),
    # What holds the wavefront back by design: counters awaited, cycles passed, sleep.
    ("wait", r"s_(wait|nop\b|sleep|delay_alu|monitor_sleep)"),
    ("branch", r"s_(branch|cbranch|setpc|swappc|call|rfe|subvector_loop|add_pc)"),
    ("message", r"s_(sendmsg|endpgm|ttracedata)"),
    (
        "smem",
        r"s_(buffer_)?(load|store|atomic|prefetch)|s_scratch_(load|store)|s_(dcache|gl1_inv|memtime|memrealtime|atc_probe)"
        r"|s_get_waveid",
    ),
    # State of the wavefront or of the instruction stream: no unit does work for it.
    (
        "other",
        r"s_(code_end|clause|set_?prio|sethalt|setkill|trap|icache_inv|inst_prefetch|set_inst_prefetch|incperflevel"
        r"|decperflevel|version|round_mode|denorm_mode|set_vgpr_msb)",
    ),
    ("salu", r"s_"),
)
#: Every class that `instruction_class` can give.
INSTRUCTION_CLASSES: Final = tuple(sorted({name for name, _ in _CLASSES}))


def instruction_class(instruction: pl.Expr) -> pl.Expr:
    """The class of each disassembled instruction; `other` for what is not recognized, null where it is null."""
    mnemonic = instruction.str.strip_chars_start().str.to_lowercase()
    chosen = [pl.when(mnemonic.str.contains(f"^({pattern})")).then(pl.lit(name)) for name, pattern in _CLASSES]
    return pl.when(instruction.is_not_null()).then(pl.coalesce(*chosen, pl.lit("other")))
