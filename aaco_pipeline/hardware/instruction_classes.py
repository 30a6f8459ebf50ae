"""Classify instructions of AMD GPUs (CDNA and RDNA) by the unit that executes them, from the mnemonic.

Instruction costs and operand meanings are defined elsewhere.
"""

from typing import Final

import polars as pl

#: Classes and their mnemonics, tried in this order; the first match wins.
_CLASSES: Final = (
    ("matrix", r"v_(mfma|smfmac|wmma|swmmac)_"),
    ("valu", r"v_"),
    ("lds", r"(ds|lds)_"),
    ("flat", r"flat_"),
    # Global and scratch accesses never reach the LDS, whatever their encoding; image and buffer accesses share their
    # path.
    ("vmem", r"(t?buffer|image|global|scratch|cluster|tensor)_"),
    ("export", r"(exp|export)\b"),
    ("barrier", r"s_(barrier|get_barrier_state)"),
    # Instructions that stall the wavefront by design: waiting for counters, idle cycles, sleep.
    ("wait", r"s_(wait|nop\b|sleep|delay_alu|monitor_sleep)"),
    ("branch", r"s_(branch|cbranch|setpc|swappc|call|rfe|subvector_loop|add_pc)"),
    ("message", r"s_(sendmsg|endpgm|ttracedata)"),
    (
        "smem",
        r"s_(buffer_)?(load|store|atomic|prefetch)|s_scratch_(load|store)|s_(dcache|gl1_inv|memtime|memrealtime|atc_probe)"
        r"|s_get_waveid",
    ),
    # State of the wavefront or the instruction stream; no execution unit is involved.
    (
        "other",
        r"s_(code_end|clause|set_?prio|sethalt|setkill|trap|icache_inv|inst_prefetch|set_inst_prefetch|incperflevel"
        r"|decperflevel|version|round_mode|denorm_mode|set_vgpr_msb)",
    ),
    ("salu", r"s_"),
)
#: All classes that `instruction_class` can return.
INSTRUCTION_CLASSES: Final = tuple(sorted({name for name, _ in _CLASSES}))


def instruction_class(instruction: pl.Expr) -> pl.Expr:
    """Return the class of each disassembled instruction; `other` if not recognized, null for null."""
    mnemonic = instruction.str.strip_chars_start().str.to_lowercase()
    chosen = [pl.when(mnemonic.str.contains(f"^({pattern})")).then(pl.lit(name)) for name, pattern in _CLASSES]
    return pl.when(instruction.is_not_null()).then(pl.coalesce(*chosen, pl.lit("other")))
