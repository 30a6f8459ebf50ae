"""The `cpu` target: build the device part of a HIP source, keeping line numbers, and start a process with it.

`compiler` compiles and links; `worker` is the outside view of the confined process.
"""

import ctypes
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar, Final, Literal

import tree_sitter
import tree_sitter_cuda

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.guards.objects import check_object, local_bytes, writable_bytes
from aaco_pipeline.optimization.targets import Build, Layout, Parameter
from aaco_pipeline.resources.targets.cpu.compiler import (
    KERNEL_OBJECT,
    Compiler,
    ObjectFile,
    compile_confined,
    find_compiler,
    flush_library,
    link,
    read_object,
    worker_object,
)
from aaco_pipeline.resources.targets.cpu.worker import CpuWorker

_PARSER: Final = tree_sitter.Parser(tree_sitter.Language(tree_sitter_cuda.language()))
#: Headers whose names a kernel may use; all other headers belong to the host code.
_DEVICE_HEADERS: Final = re.compile(
    rb"<(hip/\w+\.h|c?math|math\.h|cstdint|stdint\.h|cstddef|stddef\.h|cfloat|float\.h|climits|limits\.h|limits"
    rb"|type_traits|utility)>"
)
_WRAPPED: Final = ("template_declaration", "linkage_specification")
_OF_DEVICE: Final = re.compile(rb"__(global|device)__|\bconstexpr\b")
_NUMBER: Final = re.compile(rb"\s*(?:\(\s*(\w+)\s*\)|(\w+))?\s*(?://.*|/\*.*)?")
#: The factor of `#pragma unroll` without a number: loops of known length are fully unrolled up to it.
_WHOLE: Final = b"16"


def device_part(source: bytes, *, for_gcc: bool) -> bytes:
    """Return the device part of a HIP source, with the same number of lines. Refused (guard `parse`) for zero bytes."""
    if b"\0" in source:
        raise Refused("parse", "the source holds a zero byte")
    root = _PARSER.parse(source).root_node
    numbers = dict(_numbers(root, source))
    marks = _device_macros(root, source)
    changes: list[tuple[int, int, bytes]] = []
    for node in _host_nodes(root, source, marks):
        lines = source.count(b"\n", node.start_byte, node.end_byte)
        changes.append((node.start_byte, node.end_byte, b"\n" * lines))
    if for_gcc:
        changes += _unrolling(root, source, numbers)
    return _changed(source, changes)


def kernel_names(source: bytes) -> tuple[str, ...]:
    """Return the names of all functions declared `__global__`."""
    found = re.findall(rb"__global__[^;{}=]*?(\w+)\s*\((?!\s*\d)[^;{}]*?\)\s*[;{]", source)
    return tuple(sorted({name.decode() for name in found}))


def _host_nodes(node: tree_sitter.Node, source: bytes, marks: re.Pattern[bytes]) -> Iterator[tree_sitter.Node]:
    """Return the nodes to remove, also within namespaces and conditional parts, but never in a class."""
    for child in node.children:
        text = source[child.start_byte : child.end_byte]
        if child.type == "preproc_include":
            if not _DEVICE_HEADERS.search(text) and not child.has_error:
                yield child
        elif child.type in ("function_definition", "template_declaration"):
            head = text[: _body_start(child) - child.start_byte]
            if _is_function(child) and not marks.search(head):
                yield child
        elif child.type in ("namespace_definition", "linkage_specification", "declaration_list") or (
            child.type.startswith("preproc_") and child.type not in ("preproc_def", "preproc_function_def")
        ):
            if child.type == "linkage_specification" and _has(child, "function_definition"):
                if not marks.search(text[: _body_start(child) - child.start_byte]):
                    yield child
            else:
                yield from _host_nodes(child, source, marks)
        elif child.type == "declaration" and _has(child, "function_declarator") and not marks.search(text):
            yield child


def _has(node: tree_sitter.Node, kind: str) -> bool:
    return any(child.type == kind for child in node.children)


def _is_function(node: tree_sitter.Node) -> bool:
    return node.type == "function_definition" or _has(node, "function_definition")


def _body_start(node: tree_sitter.Node) -> int:
    inner = node
    while inner.type in _WRAPPED:
        inner = next((child for child in inner.children if child.type in (*_WRAPPED, "function_definition")), inner)
        if inner.type in _WRAPPED and not _is_function(inner):
            break
    body = inner.child_by_field_name("body")
    return body.start_byte if body is not None else node.end_byte


def _device_macros(root: tree_sitter.Node, source: bytes) -> re.Pattern[bytes]:
    """Return the words that mark a function as device code: HIP's own, and macros of this file that stand for them."""
    names = [
        source[name.start_byte : name.end_byte]
        for node in _all(root, "preproc_def")
        if (name := node.child_by_field_name("name")) is not None
        and _OF_DEVICE.search(source[name.end_byte : node.end_byte])
    ]
    return re.compile(b"|".join([_OF_DEVICE.pattern, *(rb"\b" + re.escape(name) + rb"\b" for name in names)]))


def _numbers(root: tree_sitter.Node, source: bytes) -> Iterator[tuple[bytes, bytes]]:
    for node in _all(root, "preproc_def"):
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name is not None and value is not None:
            text = source[value.start_byte : value.end_byte].split(b"//")[0].strip()
            if text.isdigit():
                yield source[name.start_byte : name.end_byte], text


def _unrolling(root: tree_sitter.Node, source: bytes, numbers: dict[bytes, bytes]) -> Iterator[tuple[int, int, bytes]]:
    """Return `#pragma unroll` in the form that g++ understands, because it ignores HIP's form."""
    for node in _all(root, "preproc_call"):
        text = source[node.start_byte : node.end_byte]
        match = re.fullmatch(rb"\s*#\s*pragma\s+(unroll|nounroll)\b(.*?)\s*", text, re.DOTALL)
        if match is None:
            continue
        given = _NUMBER.fullmatch(match[2])
        word = b"" if given is None else given[1] or given[2] or b""
        factor = b"1" if match[1] == b"nounroll" else numbers.get(word, word) or _WHOLE
        written = b"#pragma GCC unroll " + factor if factor.isdigit() else b""
        yield node.start_byte, node.end_byte, written + b"\n" * text.count(b"\n")


def _all(node: tree_sitter.Node, kind: str) -> Iterator[tree_sitter.Node]:
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if one.type == kind:
            yield one
        waiting.extend(one.children)


def _changed(source: bytes, changes: list[tuple[int, int, bytes]]) -> bytes:
    pieces: list[bytes] = []
    at = 0
    for start, end, text in sorted(changes):
        if start < at:
            continue  # inside a node that is already removed
        pieces += [source[at:start], text]
        at = end
    return b"".join([*pieces, source[at:]])


_INCLUDE: Final = Path(__file__).with_name("include")
_SOURCE: Final = "kernel.cpp"
_WARNINGS: Final = "warnings.txt"
#: The best optimization that a user would choose, but without contraction: a compiler may fuse a product and a sum in
#: only some copies of an unrolled loop (g++ 12 does), so unrolled loops would not be bit-exact.
BEST_FLAGS: Final = ("-O3", "-march=native", "-std=c++17", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
#: Code alignment, the same for every build, so that no candidate is faster because of its placement.
ALIGNMENT_FLAGS: Final = ("-falign-functions=64", "-falign-loops=32")
#: Flags that let the target inspect the object and place it in a layout.
_OWN_FLAGS: Final = (
    *("-fno-exceptions", "-fno-rtti", "-fno-pie", "-fno-stack-protector", "-fno-asynchronous-unwind-tables"),
    *("-fno-threadsafe-statics", "-ffunction-sections", "-fdata-sections", "-fno-common", "-fno-ident"),
)
_GCC_FLAGS: Final = ("-fno-gnu-unique", "-fno-extern-tls-init", "-frandom-seed=aaco")
_FIXED_TIME: Final = ('-D__DATE__="Jan  1 2000"', '-D__TIME__="00:00:00"', '-D__TIMESTAMP__="Sat Jan  1 00:00:00 2000"')
_MOST_SOURCE_BYTES: Final = 4 << 20
_CALL_LIMIT_NS: Final = 20_000_000_000


@dataclass(frozen=True)
class CpuTarget:
    """Builds and runs kernels on this machine's processor.

    `compiler` is a name on PATH, null for the first of c++, g++ and clang++. `flags` are the user's; the alignment
    flags are always added. A call is aborted after `call_limit_ns` of CPU time.
    """

    compiler: str | None = None
    flags: tuple[str, ...] = BEST_FLAGS
    call_limit_ns: int = _CALL_LIMIT_NS
    name: ClassVar[Literal["cpu"]] = "cpu"
    executed_on: ClassVar[str] = "cpu-emulation"
    clock: ClassVar[str] = "CPU time of the kernel's process, read from outside it"
    wavefront_size: ClassVar[int] = 64

    def build(self, source: bytes, kernel: str, parameters: Sequence[Parameter], layout: Layout, folder: Path) -> Build:
        """Compile only the source's device part, check the object, and link it in the layout of its seed.

        The object is cached in `folder` by content, so other layouts of the same source are only linked again.
        `resources` are `lds_bytes`, `writable_bytes` (data that persist between calls) and `code_bytes`. Refused with
        guard `compile`, `parse`, `symbols`, `constructors` or `resources`; UsageError if there is no compiler.
        """
        compiler = find_compiler(self.compiler)
        if len(source) > _MOST_SOURCE_BYTES:
            raise Refused("parse", f"the source has {len(source)} bytes; at most {_MOST_SOURCE_BYTES} are taken")
        flags = self._all_flags(compiler)
        text = _translation_unit(source, kernel, compiler)
        digest = hashlib.sha256("\0".join([compiler.path, compiler.version, *flags]).encode() + text).hexdigest()
        home = folder.resolve() / digest[:16]
        warnings = _compile(compiler, text, flags, home)
        found = read_object(home / KERNEL_OBJECT)
        check_object(found.sections, found.symbols, kernel_names(source))
        program = link(compiler, found, worker_object(compiler), layout, home)
        return Build(
            target=self.name,
            kernel=kernel,
            artefact=program,
            source_sha256=hashlib.sha256(source).hexdigest(),
            code_sha256=found.code_sha256,
            compiler=compiler.version,
            flags=flags,
            layout=layout,
            resources={**_resources(found), "parameters": len(parameters)},
            warnings=warnings,
        )

    @contextmanager
    def start(self, build: Build) -> Iterator[CpuWorker]:
        """Return a worker for the build; its process is started by its first call and ended with the context."""
        flush = _flush(find_compiler(self.compiler))
        worker = CpuWorker(build.artefact, build.resources["parameters"], self.call_limit_ns, flush)
        try:
            yield worker
        finally:
            worker.close()

    def _all_flags(self, compiler: Compiler) -> tuple[str, ...]:
        return (*self.flags, *ALIGNMENT_FLAGS, *_OWN_FLAGS, *(() if compiler.is_clang else _GCC_FLAGS), *_FIXED_TIME)


def _translation_unit(source: bytes, kernel: str, compiler: Compiler) -> bytes:
    """Return the device part, followed by the kernel's entry point. The header is always put first."""
    device = device_part(source, for_gcc=not compiler.is_clang)
    return b"".join([b"#include <hip/hip_runtime.h>\n#line 1\n", device, f"\nAACO_KERNEL({kernel})\n".encode()])


def _compile(compiler: Compiler, text: bytes, flags: Sequence[str], home: Path) -> tuple[str, ...]:
    """Return the warnings; they are stored next to the object, which is complete if they exist."""
    made, told = home / KERNEL_OBJECT, home / _WARNINGS
    if made.is_file():
        return tuple(told.read_text().splitlines())
    home.mkdir(parents=True, exist_ok=True)
    (home / _SOURCE).write_bytes(text)
    part = home / "unchecked.o"
    warnings = compile_confined(compiler, [*flags, f"-I{_INCLUDE}", "-c", _SOURCE, "-o", part.name], home)
    told.write_text("\n".join(warnings))
    part.replace(made)
    return warnings


def _resources(found: ObjectFile) -> dict[str, int]:
    return {
        "lds_bytes": local_bytes(found.sections),
        "writable_bytes": writable_bytes(found.sections, found.symbols),
        "code_bytes": sum(section.size_bytes for section in found.sections if section.executable),
    }


@cache
def _flush(compiler: Compiler) -> Callable[[int, int], None]:
    library = ctypes.CDLL(str(flush_library(compiler)))
    library.aaco_flush.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    flush: Callable[[int, int], None] = library.aaco_flush
    return flush
