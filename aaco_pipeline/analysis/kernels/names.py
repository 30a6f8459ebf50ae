"""Determine the kind of work of a kernel from its name and the operator that launched it.

Names are first normalized. `families` has the word lists; `grammar` decodes encoded details.
"""

import re
from functools import lru_cache
from typing import Final

import polars as pl

from aaco_pipeline.analysis.kernels import grammar
from aaco_pipeline.analysis.kernels.demangling import demangled
from aaco_pipeline.analysis.kernels.families import (
    AUXILIARY_PHRASES,
    CONVOLUTION_LIBRARIES,
    ELEMENTWISE_ONNX_OPERATORS,
    FUNCTOR_PHRASES,
    LIBRARY_ARGUMENTS,
    LIBRARY_FAMILY,
    LIBRARY_PREFIXES,
    LIST_FUNCTOR_PHRASES,
    OPERATORS,
    PHRASES,
    WEAK_PHRASES,
    Symbol,
    grouped_pattern,
    phrase_pattern,
    symbol_of,
)
from aaco_pipeline.analysis.kernels.grammar import fused_operators, inductor_fusion, migraphx_family

#: Only this much of the arguments is read: the start identifies the kernel, and a name may have thousands.
ARGUMENT_CHARACTERS: Final = 480
#: Suffixes are searched only in the last characters of a name.
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
#: The functor that a launcher applies to each element.
_FUNCTOR: Final = re.compile(
    r"[<,: ](?!gpu_kernel_impl)(\w*(?:[Ff]unctor|_kernel|Ops|Kernel|_cuda_out|launch_)\w*)(?=[<(,>])"
)
#: Functions that run any class passed to them, and the pattern of that class's name.
_LAUNCHER: Final = re.compile(r"(?:_*(?:device_)?kernel(?:_agent|_entry)?\d?|kentry|trampoline_kernel)$", re.IGNORECASE)
_LAUNCHED: Final = re.compile(r"(?<![\w])(?!default_config\b|__)(?=\w*[A-Z_])([A-Za-z]\w{6,})(?!\w|::)")


def cleaned(name: str) -> str:
    """Return the demangled name without descriptors, clone suffixes, addresses, anonymous and version namespaces."""
    text = name.strip()
    suffix = _SUFFIX.search(text, max(0, len(text) - SUFFIX_CHARACTERS))
    text = text[: suffix.start()] if suffix else text
    text = demangled(text) if text.startswith("_Z") else text
    text = text.replace("(anonymous namespace)::", "")
    # Both searches are slow on long names, most of which match neither.
    if "_NS::" in text or "::__" in text:
        text = _VERSION_NAMESPACE.sub("", text)
    return _VERSION.sub("_", text) if "x_cu" in text else text


def comparable(clean: str) -> str:
    """Return a cleaned name without the parts that differ between compilations; parameters stay, counters go."""
    return _COUNTER.sub(r"\1\2", clean) if clean.startswith("triton_") else clean


def head_and_arguments(clean: str) -> tuple[str, str]:
    """Return the qualified name of the kernel's function, and the start of its template arguments and parameters."""
    found = _HEAD.match(clean)
    assert found is not None
    head = found.group(1)
    if clean.startswith(("<", "("), found.end()) and _returns_template(clean, found.end()):
        return _behind_return_type(clean)
    return head.strip(), clean[found.end() : found.end() + ARGUMENT_CHARACTERS]


def _returns_template(clean: str, bracket: int) -> bool:
    """Return whether the first bracket belongs to the return type, in which only standard library types occur."""
    return clean.startswith("std::enable_if", 0, bracket)


def _behind_return_type(clean: str) -> tuple[str, str]:
    """Return name and arguments of a function whose return type has its own template arguments."""
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
    """Return lower-case words joined by underscores, with camel case split: `_soft_max_forward_`."""
    return f"_{_NO_WORD.sub('_', _CAMEL.sub('_', text).lower())}_"


def shortened(head: str, arguments: str) -> str:
    """Return the function's own name without namespaces; a launcher's is followed by the class that it runs."""
    own = head.rpartition("::")[2] or head
    run = launched(head, arguments)
    if run is None and not _LAUNCHER.match(own):
        functor = _FUNCTOR.search(arguments)
        run = functor.group(1) if functor else None
    return own if run is None else f"{own} [{run}]"


def launched(head: str, arguments: str) -> str | None:
    """Return the class run by a function that runs any class passed to it; null for every other function."""
    found = _LAUNCHED.search(arguments) if _LAUNCHER.match(head.rpartition("::")[2] or head) else None
    return None if found is None else found.group(1)


#: Columns that a description adds to a kernel's name.
SCHEMA: Final[dict[str, pl.DataType]] = {
    **dict.fromkeys(("short_name", "comparable_name", "family", "library", "dtype", "tile", "role"), pl.String()),
    **{"family_source": pl.String(), "transpose_a": pl.Boolean(), "transpose_b": pl.Boolean()},
    **dict.fromkeys(("matrix_instruction", "architecture", "variant"), pl.String()),
}

#: Leading characters of a function name that identify its purpose; generated names continue with parameters.
HEAD_CHARACTERS: Final = 120

_FAMILIES: Final = tuple(PHRASES)
_PHRASES: Final = grouped_pattern(PHRASES)
_WEAK_FAMILIES: Final = tuple(WEAK_PHRASES)
_WEAK_PHRASES: Final = grouped_pattern(WEAK_PHRASES)
_FUNCTORS: Final = grouped_pattern(FUNCTOR_PHRASES)
_FUNCTOR_FAMILIES: Final = tuple(FUNCTOR_PHRASES)
_LIST_FUNCTORS: Final = grouped_pattern(LIST_FUNCTOR_PHRASES)
_LIST_FUNCTOR_FAMILIES: Final = tuple(LIST_FUNCTOR_PHRASES)
_AUXILIARY: Final = phrase_pattern(AUXILIARY_PHRASES)
_PREFIXES: Final = re.compile("|".join(f"({pattern})" for _, pattern in LIBRARY_PREFIXES))
_ARGUMENTS: Final = tuple((library, re.compile(pattern)) for library, pattern in LIBRARY_ARGUMENTS)
_OPERATOR_FAMILY: Final = {name: family for family, names in OPERATORS.items() for name in names.split()}
#: Kinds of work that often serve an operator of another kind, before or after it.
_SERVING: Final = (
    "copy/memset", "elementwise", "fft", "kv cache", "moe routing", "quantization", "reduction", "sort/scan",
)  # fmt: skip
#: Names with this prefix use `f16` for bfloat16 too.
_TELLS_WIDTH_ALONE: Final = "cudnn_generated"
#: Kinds of work whose kernel names include a tile size: three numbers in such a name are read as one.
_TILED: Final = frozenset({"gemm", "conv", "attention"})


def classify_names(names: pl.Series | pl.DataFrame) -> pl.DataFrame:
    """Describe each name: one row in the given order, with the name and the columns of `SCHEMA`.

    For a frame, the column `name` is read; its other columns are kept unless `SCHEMA` replaces them. A family is a key
    of `families.PHRASES`, or null if the name contains no evidence; `family_source` is then `none`, else `name`.
    `transpose_a` and `transpose_b` are null if the name does not state them. Each distinct name is parsed once; the
    result is deterministic.
    """
    kernels = names if isinstance(names, pl.DataFrame) else pl.DataFrame({"name": names.cast(pl.String)})
    distinct = kernels["name"].unique().drop_nulls().sort()
    rows = [_described(name) for name in distinct]
    table = pl.DataFrame({"name": distinct}).hstack(pl.DataFrame(rows, schema=SCHEMA, orient="row"))
    return kernels.drop(SCHEMA, strict=False).join(table, on="name", how="left", maintain_order="left")


def with_operators(kernels: pl.DataFrame, operator_of_kernel: pl.DataFrame) -> pl.DataFrame:
    """Replace the families of described kernels by those of the operators that launched them, if known.

    `operator_of_kernel` has `operator`, the key that it shares with `kernels` (`kernel_id`, else `name`), and
    optionally `total_ns`, the kernel's time for that operator. If there are several operators, the family with the most
    time counts, or without times the one with the most rows; ties are resolved alphabetically. A kernel named as copy,
    elementwise or other serving work that an operator of another kind launched gets the operator's family and the role
    `auxiliary`.
    """
    key = "kernel_id" if {"kernel_id"} <= set(kernels.columns) & set(operator_of_kernel.columns) else "name"
    weight = pl.col("total_ns") if "total_ns" in operator_of_kernel.columns else pl.lit(1, pl.Int64)
    distinct = operator_of_kernel["operator"].drop_nulls().unique().sort()
    families = pl.DataFrame(
        {"operator": distinct, "operator_family": [operator_family(operator) for operator in distinct]},
        schema={"operator": pl.String(), "operator_family": pl.String()},
    )
    decided = (
        operator_of_kernel.select(key, pl.col("operator").cast(pl.String), weight=weight)
        .join(families, on="operator", how="inner")
        .drop_nulls("operator_family")
        .group_by(key, "operator_family")
        .agg(pl.col("weight").sum())
        .sort(key, "weight", "operator_family", descending=[False, True, False])
        .unique(key, keep="first", maintain_order=True)
        .drop("weight")
    )
    serves = pl.col("family").is_in(_SERVING) & (pl.col("operator_family") != pl.col("family"))
    by_operator = pl.col("operator_family").is_not_null()
    return (
        kernels.join(decided, on=key, how="left", maintain_order="left")
        .with_columns(
            role=pl.when(serves.fill_null(False)).then(pl.lit("auxiliary")).otherwise("role"),
            family=pl.coalesce("operator_family", "family"),
            family_source=pl.when(by_operator).then(pl.lit("op")).otherwise("family_source"),
        )
        .drop("operator_family")
    )


def operator_family(operator: str) -> str | None:
    """Return a framework operator's kind of work (`aten::addmm`, `MatMul`, `gpu::convolution`); null if unknown."""
    fusion = inductor_fusion(operator)
    if fusion is not None:
        return fusion.family
    own = words(operator.rpartition("::")[2])
    if "::" not in operator and own.strip("_") in ELEMENTWISE_ONNX_OPERATORS:
        return "elementwise"
    return _OPERATOR_FAMILY.get(own.strip("_")) or _strongest(own)


def _described(name: str) -> tuple[str | bool | None, ...]:
    """Return the values of `SCHEMA` for one name."""
    clean = cleaned(name)
    head, arguments = head_and_arguments(clean)
    symbol = symbol_of(head)
    library = _library(head, arguments) or (symbol.library if symbol else None)
    reader = grammar.READERS.get(library or "")
    fields = reader(clean) if reader else {}
    family, is_auxiliary = _family(clean, head, arguments, library) if "family" not in fields else (None, False)
    family = str(fields.get("family") or family or "") or None
    if library is None and fused_operators(clean):
        library = "migraphx"
    role = "auxiliary" if is_auxiliary or fields.get("role") == "auxiliary" else "main"
    return (
        fields.get("short_name") or shortened(comparable(head), arguments),
        comparable(clean),
        family,
        "triton" if library == "triton_inductor" else library,
        fields.get("dtype") or _dtype(head, arguments, family, symbol),
        fields.get("tile") or (grammar.plain_tile(head) if family in _TILED else None),
        role,
        "none" if family is None else "name",
        fields.get("transpose_a"),
        fields.get("transpose_b"),
        fields.get("matrix_instruction"),
        fields.get("architecture") or grammar.architecture(head),
        fields.get("variant") or _variant(clean, library),
    )


def _library(head: str, arguments: str) -> str | None:
    """Return a kernel's library, from the start of its name or else from its argument types."""
    found = _PREFIXES.match(head)
    if found is not None and found.lastindex is not None:
        return LIBRARY_PREFIXES[found.lastindex - 1][0]
    return next((library for library, pattern in _ARGUMENTS if pattern.search(arguments)), None)


def _family(clean: str, head: str, arguments: str, library: str | None) -> tuple[str | None, bool]:
    """Return the kind of work, and whether the kernel only serves another one."""
    if library == "triton_inductor":
        fusion = inductor_fusion(clean)
        if fusion is not None:
            return fusion.family, fusion.is_auxiliary
    if library in {"rocmlir", "migraphx"}:
        family = migraphx_family(fused_operators(clean))
        if family is not None:
            return family, False
    family, is_auxiliary = _of_head(head)
    symbol = symbol_of(head)
    if symbol is not None:
        return symbol.kind, is_auxiliary
    return _of_words(family, is_auxiliary, head, arguments, library)


def _of_words(
    family: str | None, is_auxiliary: bool, head: str, arguments: str, library: str | None
) -> tuple[str | None, bool]:
    """Refine the kind of work found in the name, using the words of the arguments and the library."""
    if family in {"elementwise", "embedding/gather"} and arguments:
        family = _functor_family(head, arguments) or family
    elif family is None:
        # A launcher of such a library runs parts of its convolutions, which are named like products and sums.
        own = None if library in CONVOLUTION_LIBRARIES else _of_launched(head, arguments)
        family = own or _of_arguments(arguments)
    if library in CONVOLUTION_LIBRARIES and family in {None, "copy/memset", "fft", "reduction"}:
        return "conv", True
    if library == "cublas" and family in {"copy/memset", "reduction"}:
        return "gemm", True
    if family == "reduction" and library in {"aotriton", "flash_attention"}:
        return LIBRARY_FAMILY[library], True
    return family or LIBRARY_FAMILY.get(library or ""), is_auxiliary


@lru_cache(maxsize=8192)
def _of_head(head: str) -> tuple[str | None, bool]:
    """Return the strongest family in the function's own name, or else in its namespaces, and its role.

    The cache holds the distinct functions of a few captures; a session has a few hundred.
    """
    outer, _, own = head.rpartition("::")
    own_words = words(own[:HEAD_CHARACTERS].replace("fbgemm", ""))
    family = _strongest(own_words) or _highest(_WEAK_PHRASES, _WEAK_FAMILIES, own_words) or _of_operators(own)
    if family is None and outer:
        family = _strongest(words(outer.replace("fbgemm_gpu", "")))
    serves_itself = family in {"attention", "gemm"} and "_reduce_" in own_words
    return family, serves_itself or _AUXILIARY.search(own_words) is not None


def _strongest(text: str) -> str | None:
    """Return the family of highest precedence whose phrases occur in the text."""
    return _highest(_PHRASES, _FAMILIES, text)


def _highest(phrases: re.Pattern[str], families: tuple[str, ...], text: str) -> str | None:
    found = [match.lastindex for match in phrases.finditer(text) if match.lastindex is not None]
    return families[min(found) - 1] if found else None


def _of_operators(own: str) -> str | None:
    """Return the family of the first known operator among those that MIGraphX joined in a name."""
    return next((_OPERATOR_FAMILY[one] for one in fused_operators(own) if one in _OPERATOR_FAMILY), None)


def _of_launched(head: str, arguments: str) -> str | None:
    """Return the family of the class that a launcher runs."""
    found = launched(head, arguments)
    return None if found is None else _of_head(found)[0]


def _of_arguments(arguments: str) -> str | None:
    """Return the family whose phrase comes first in the arguments: a generic launcher's first one is its functor."""
    found = _PHRASES.search(words(arguments.replace("fbgemm_gpu", "")))
    return None if found is None or found.lastindex is None else _FAMILIES[found.lastindex - 1]


def _functor_family(head: str, arguments: str) -> str | None:
    """Return the family of the function that an elementwise kernel applies, unless that is elementwise itself."""
    if "elementwise" in head:
        found, families = _FUNCTORS.search(words(arguments)), _FUNCTOR_FAMILIES
    elif "multi_tensor" in head:
        found, families = _LIST_FUNCTORS.search(words(arguments)), _LIST_FUNCTOR_FAMILIES
    else:
        return None
    return None if found is None or found.lastindex is None else families[found.lastindex - 1]


def _dtype(head: str, arguments: str, family: str | None, symbol: Symbol | None) -> str | None:
    """Return the number format from the arguments, the symbol or the name; a gather's integers are its indices."""
    if head.startswith(_TELLS_WIDTH_ALONE):
        return None
    stated = symbol.dtype if symbol else None
    found = grammar.number_format(arguments) or stated or grammar.number_format(head)
    return None if family == "embedding/gather" and (found or "").startswith("int") else found


def _variant(clean: str, library: str | None) -> str | None:
    """Return the kind of an Inductor kernel."""
    parts = grammar.inductor(clean) if library == "triton_inductor" else None
    return None if parts is None else parts[0]
