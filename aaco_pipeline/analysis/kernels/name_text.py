"""Kernel names made readable and comparable: what is cut off, and what the remaining text is made of.

A capture writes one kernel in many ways: mangled or not, with the suffix of its descriptor, an address, the version of
the library that was compiled in, or a counter that differs with every compilation.
"""

import re
from typing import Final

from aaco_pipeline.analysis.kernels.demangling import demangled

#: Arguments are read this far; what a kernel does stands at their beginning, and a name may have thousands of them.
ARGUMENT_CHARACTERS: Final = 480
#: Suffixes are searched in this much of a name's end.
SUFFIX_CHARACTERS: Final = 64

_SUFFIX: Final = re.compile(
    r"(?:\s*\[clone [^\]]*\]|\.kd|\.(?:isra|constprop|part|cold|llvm|lto_priv|managed)(?:\.\d+)*"
    r"|\s*[@+]?\s*0x[0-9a-fA-F]+)+$"
)
_VERSION_NAMESPACE: Final = re.compile(r"\b[A-Z][A-Z0-9]*_\d[0-9A-Z_]*_NS::|\b__(?:1|cxx11|hip_internal|detail_v\d+)::")
_VERSION: Final = re.compile(r"__\d+x_")
_COUNTER: Final = re.compile(r"(?<=_)(triton_[a-z_]+_fused\w*?|triton_[a-z_]+?)_\d+$|^(triton_\w+?)_\d+$")
_HEAD: Final = re.compile(r"(?:(?:static|inline|__global__|extern \"C\") )*(?:void )?([^<(]*)")
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NO_WORD: Final = re.compile(r"[^a-z0-9]+")
_BRACKETS: Final = re.compile(r"[<>() ]")
#: What a launcher for all elements applies to each of them.
_FUNCTOR: Final = re.compile(
    r"[<,: ](?!gpu_kernel_impl)(\w*(?:[Ff]unctor|_kernel|Ops|Kernel|_cuda_out|launch_)\w*)(?=[<(,>])"
)
#: Functions that run whatever class they are given, and how the name of such a class looks.
_LAUNCHER: Final = re.compile(r"(?:_*(?:device_)?kernel(?:_agent|_entry)?\d?|kentry|trampoline_kernel)$", re.IGNORECASE)
_LAUNCHED: Final = re.compile(r"(?<![\w])(?!default_config\b|__)(?=\w*[A-Z_])([A-Za-z]\w{6,})(?!\w|::)")


def cleaned(name: str) -> str:
    """The demangled name without descriptor and clone suffixes, addresses, anonymous and version namespaces."""
    text = name.strip()
    suffix = _SUFFIX.search(text, max(0, len(text) - SUFFIX_CHARACTERS))
    text = text[: suffix.start()] if suffix else text
    text = demangled(text) if text.startswith("_Z") else text
    text = text.replace("(anonymous namespace)::", "")
    # Both searches are slow on long names, where most have neither.
    if "_NS::" in text or "::__" in text:
        text = _VERSION_NAMESPACE.sub("", text)
    return _VERSION.sub("_", text) if "x_cu" in text else text


def comparable(clean: str) -> str:
    """A cleaned name without what differs from one compilation to the next: parameters stay, counters go."""
    return _COUNTER.sub(r"\1\2", clean) if clean.startswith("triton_") else clean


def head_and_arguments(clean: str) -> tuple[str, str]:
    """The qualified name of the kernel's function, and the beginning of its template arguments and parameters."""
    found = _HEAD.match(clean)
    assert found is not None
    head = found.group(1)
    if clean.startswith(("<", "("), found.end()) and _returns_template(clean, found.end()):
        return _behind_return_type(clean)
    return head.strip(), clean[found.end() : found.end() + ARGUMENT_CHARACTERS]


def _returns_template(clean: str, bracket: int) -> bool:
    """Whether the first bracket belongs to the type returned: only types of the standard library are seen there."""
    return clean.startswith("std::enable_if", 0, bracket)


def _behind_return_type(clean: str) -> tuple[str, str]:
    """Name and arguments of a function whose returned type has template arguments of its own."""
    depth, start = 0, 0
    for found in _BRACKETS.finditer(clean):
        sign = found.group()
        if sign == " " and depth == 0:
            start = found.end()
        elif sign in "<(" and depth == 0 and start:
            return clean[start : found.start()], clean[found.start() : found.start() + ARGUMENT_CHARACTERS]
        depth += (sign in "<(") - (sign in ">)")
    return clean, ""


def words(text: str) -> str:
    """Lower-case words of a name between underscores, camel case split: `_soft_max_forward_`."""
    return f"_{_NO_WORD.sub('_', _CAMEL.sub('_', text).lower())}_"


def shortened(head: str, arguments: str) -> str:
    """The function's own name without namespaces; a launcher's is followed by what it runs."""
    own = head.rpartition("::")[2] or head
    run = launched(head, arguments)
    if run is None and not _LAUNCHER.match(own):
        functor = _FUNCTOR.search(arguments)
        run = functor.group(1) if functor else None
    return own if run is None else f"{own} [{run}]"


def launched(head: str, arguments: str) -> str | None:
    """The class that a function runs which runs whatever class it is given; null for every other function."""
    found = _LAUNCHED.search(arguments) if _LAUNCHER.match(head.rpartition("::")[2] or head) else None
    return None if found is None else found.group(1)
