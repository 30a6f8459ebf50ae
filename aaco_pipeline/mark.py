"""Marks that a program sets in its own `aaco record` recording; run as a module, it prints the folder of aaco_mark.h.

In Python, use `from aaco_pipeline.mark import iteration, mark, phase`; in C and C++, `#include <aaco_mark.h>`, compiled
with `-I"$(python -m aaco_pipeline.mark)"`. See docs/marks.md.
"""

from pathlib import Path

from aaco_pipeline.recording import mark as _marks

__all__ = ["iteration", "mark", "phase"]

iteration = _marks.iteration
mark = _marks.mark
phase = _marks.phase

if __name__ == "__main__":
    print(Path(_marks.__file__).parent)
