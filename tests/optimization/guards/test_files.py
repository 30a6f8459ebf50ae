"""A source names no file but headers, in whatever way, neither as a baseline nor as a candidate."""

from typing import Final

import pytest

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.guards.files import check_files
from aaco_pipeline.optimization.guards.text import check_text
from tests.optimization.guards.kernel_text import BASELINE

READING: Final = {
    "incbin": r'asm(".incbin \"/etc/passwd\"");',
    "incbin in another case": r'asm(".INCBIN \"/etc/passwd\"");',
    "incbin in parts": r'asm(".inc" "bin \"/etc/passwd\"");',
    "incbin in escapes": r'asm(".\x69ncbin \"/etc/passwd\"");',
    "incbin in octal": r'asm(".\151ncbin \"/etc/passwd\"");',
    "incbin in a raw string": 'asm(R"(.incbin "/etc/passwd")");',
    "incbin in a section": r'asm(".section .rodata\n .incbin \"/etc/passwd\"\n .text");',
    "incbin as a word": '#define S(x) #x\nasm(S(.incbin "/etc/passwd"));',
    "incbin in a macro": r'#define A ".incbin \"/etc/passwd\""',
    "incbin in a pragma": r'_Pragma(".incbin")',
    "an assembler's include": r'asm(".include \"/etc/passwd\"");',
    "an assembler's macro": r'asm(".macro a x,y\n.\\x\\y \"/etc/passwd\"\n.endm\na inc,bin");',
    "an absolute include": '#include "/etc/passwd"',
    "an absolute include in brackets": "#include </etc/passwd>",
    "an include that goes up": '#include "../../etc/passwd"',
    "an include that goes up within": "#include <hip/../../../etc/passwd>",
    "an include by a macro": '#define F "/etc/passwd"\n#include F',
    "an include over two lines": '#include \\\n"/etc/passwd"',
    "an include next": '#include_next "/etc/passwd"',
    "an import": '#import "/etc/passwd"',
    "an include of a process": '#include "/proc/self/environ"',
    "embed": 'const char a[] = {\n#embed "/etc/passwd"\n};',
    "a question": '#if __has_include("/etc/passwd")\n#endif',
    "a question in brackets": "#if __has_include(</etc/passwd>)\n#endif",
    "a question by a macro": '#define F "/etc/passwd"\n#if __has_include(F)\n#endif',
    "a question for embed": '#if __has_embed("/etc/passwd")\n#endif',
    "a line": '#line 1 "/etc/passwd"',
    "a line of a preprocessor": '# 1 "/etc/passwd"',
    "a pragma": '#pragma GCC dependency "/etc/passwd"',
    "a pragma for headers": '#pragma GCC pch_preprocess "/etc/passwd"',
    "a pragma for libraries": '#pragma comment(lib, "/etc/passwd")',
}


@pytest.mark.parametrize("name", READING)
def test_a_source_that_names_a_file_is_refused_with_its_line(name: str) -> None:
    source = f"{BASELINE}\n{READING[name]}\n".encode()
    with pytest.raises(Refused, match=r"^files: line \d+: ") as caught:
        check_files(source)
    assert "\n" not in caught.value.reason
    with pytest.raises(Refused, match=r"^files: "):
        check_text(source, source, "row_dot")


def test_headers_and_plain_assembly_pass() -> None:
    check_files(
        BASELINE.encode()
        + b'#include <cmath>\n#include "hip/hip_fp16.h"\n#include "a..b.h"\n#if __has_include(<cmath>)\n#endif\n'
        + b'#line 7 "kernel.hip"\n#pragma unroll 4\n__device__ void f() { asm volatile("s_nop 0"); }\n'
        + b'// asm(".incbin") in a comment\nconst char* said = "macro include";\n'
    )
