"""Decode the details that kernel names encode: number format, tile, instruction, fused operators.

`families` and `names` derive the kind of work from a name.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

Fields = dict[str, str | bool]

#: Tensile's letters for number formats, longest first (Tensile, Common/DataType.py).
_TENSILE_FORMATS: Final = {
    "F8B8": "float8", "B8F8": "float8", "F8N": "float8e4m3fnuz", "B8N": "float8e5m2fnuz", "F8": "float8",
    "B8": "float8e5m2", "F6": "float6", "F4": "float4", "I8": "int8", "4xi8": "int8", "S": "float32", "D": "float64",
    "C": "complex64", "Z": "complex128", "H": "float16", "B": "bfloat16", "I": "int32", "X": "tfloat32",
}  # fmt: skip
_TENSILE_FORMAT: Final = re.compile("|".join(sorted(_TENSILE_FORMATS, key=len, reverse=True)))
_TENSILE: Final = re.compile(r"(?:Custom_)?Cijk_(?:A([ijkl]+)C?_B([ijkl]+)C?_)?(.*)")
_TENSILE_TILE: Final = re.compile(r"_MT(\d+)x(\d+)x(\d+)")
_TENSILE_INSTRUCTION: Final = re.compile(r"_MI(\d+x\d+(?:x\d+){0,2})(?=_|$)")
_ISA: Final = re.compile(r"_ISA(\d{2,}[0-9a-f]*)")
_TENSILE_SPLIT: Final = re.compile(r"(PostGSU\d*)|_(SK[1-9]\d*)(?=_)|_(GSU(?:[2-9]|\d\d+))(?=_)")
#: Tensile kernels that only scale or sum another kernel's result: after a split, or before an accumulation.
_TENSILE_AUXILIARY: Final = re.compile(r"PostGSU|^Cijk_[A-Z0-9]+(?:_[A-Z0-9]+)*_(?:GB|GA)(?:_|$)|_BetaOnly")

_IGEMM: Final = re.compile(r"igemm_(fwd|bwd|wrw)_(gtc[a-z]*\d?)_([a-z]+\d*[a-z]*)_([a-z]+\d+)_")
_IGEMM_TILE: Final = re.compile(r"_bt(\d+x\d+(?:x\d+)?)")
_IGEMM_INSTRUCTION: Final = re.compile(r"_wt(\d+x\d+x\d+)")
#: Generations of the igemm kernels (MIOpen, solver/conv_asm_implicit_gemm_gtc_*): xdlops, xdlops2, xdlops3.
_IGEMM_ARCHITECTURE: Final = {"gtcx": "gfx908", "gtcx2": "gfx90a", "gtcx3": "gfx94x", "gtcn2": "gfx103x"}

_CK_NUMBERS: Final = re.compile(r"(?<![\w.)])(?:\d+, ){7,}")
#: The older gridwise products start with the block size and give K as two factors.
_CK_BLOCK_FIRST: Final = re.compile(r"Gridwise\w*<\d+, ")
_CK_BLOCKS: Final = frozenset({64, 128, 192, 256, 512})
_CK_DIRECTION: Final = re.compile(r"_(fwd|bwd_weight|bwd_data)")
_CK_LAYOUT: Final = re.compile(r"gemm::(Row|Column)Major")
_CK_TILE_SHAPE: Final = re.compile(r"Tile(?:Fmha|Gemm)\w*Shape<ck_tile::sequence<(\d+), (\d+), (\d+)")

_CUDA_TILE: Final = (
    re.compile(r"tilesize(\d+x\d+x\d+)"),
    re.compile(r"_(\d+x\d+x\d+)_\d+x\d+x\d+_"),
    re.compile(r"_(\d+x\d+)_(?:ldg\d+_\w*?stages_)?(\d+)x\d+(?=_|$|>|\()"),
    re.compile(r"_(\d+x\d+)(?=_|$|>|\()"),
)
_CUDA_TRANSPOSES: Final = re.compile(r"_([nt])([nt])[nt]?(?=_|$|>|\(|:)", re.IGNORECASE)
_CUDA_INSTRUCTION: Final = re.compile(
    r"[_a-z](16816|1688|884|161616|16832|16864)(?=gemm|fprop|dgrad|wgrad|_)|_tensor(\d+x\d+x\d+)"
)
_CUDA_SIMPLE: Final = re.compile(r"_(?:simt_)?([hsdcz])(?:gemm|cudnn)(?=_)")
_CUDA_SIMPLE_FORMATS: Final = {"h": "float16", "s": "float32", "d": "float64", "c": "complex64", "z": "complex128"}
#: cuBLAS kernels since Hopper: one letter each for the input, accumulator and result format.
_NVJET: Final = re.compile(r"nvjet_(?:sm\d+_)?([th])[a-z]{2}_")
_NVJET_FORMATS: Final = {"t": "bfloat16", "h": "float16"}
_CUDA_ARCHITECTURE: Final = re.compile(
    r"(?:\bsm|_sm|cutlass_|cutlass3x_sm|wmma_)(\d{2,3})(?=_)|(volta|turing|ampere|hopper|maxwell)_"
)
_CUDA_GENERATIONS: Final = {
    "maxwell": "sm_50",
    "volta": "sm_70",
    "turing": "sm_75",
    "ampere": "sm_80",
    "hopper": "sm_90",
}

_INDUCTOR: Final = re.compile(r"triton_([a-z]+(?:_scan)?)_fused_?(.*)")
_COLLECTIVE: Final = re.compile(r"^(?:nccl|rccl|msccl\w*?)(?:Dev)?Kernel_(\w+?)(?:_\d+)?(?=\(|$)")
_MIOPEN_VARIANT: Final = re.compile(r"((?i:winograd|sp3asmconv|fury|rage|direct|naive|batchnorm|pooling|softmax))")

_ARCHITECTURE: Final = re.compile(r"(?<![a-z])gfx(\d+[a-f]?\d*x?)")
_PLAIN_TILE: Final = re.compile(r"(?<![0-9a-zA-Z])(\d{2,}x\d{2,}x\d{1,})(?:x\d+)?(?![0-9])")

_FORMAT_NAMES: Final = {
    "bfloat16": ("bf16", "bfloat16", "__bf16", "BFloat16", "__hip_bfloat16", "hip_bfloat16", "__nv_bfloat16",
                 "bhalf_t"),
    "float16": ("fp16", "f16", "half", "Half", "__half", "_Float16", "float16", "half_t", "fp16_t", "__half2"),
    "float32": ("fp32", "f32", "float", "float32", "float4", "float2"),
    "tfloat32": ("tf32", "tfloat32_t", "tf32f32"),
    "float64": ("fp64", "f64", "double", "float64"),
    "float8": ("fp8", "f8", "fp8_t"),
    "float8e4m3fn": ("Float8_e4m3fn", "__nv_fp8_e4m3", "e4m3", "float_e4m3_t", "fp8e4m3"),
    "float8e4m3fnuz": ("Float8_e4m3fnuz", "__hip_fp8_e4m3_fnuz"),
    "float8e5m2": ("Float8_e5m2", "__nv_fp8_e5m2", "e5m2", "bf8", "float_e5m2_t"),
    "float8e5m2fnuz": ("Float8_e5m2fnuz", "__hip_fp8_e5m2_fnuz"),
    "float4e2m1fn": ("mxfp4", "fp4", "nvfp4"),
    "complex64": ("complex<float>",),
    "complex128": ("complex<double>",),
}  # fmt: skip
_INTEGER_NAMES: Final = {
    "int8": ("i8", "int8", "s8", "int8_t", "signed char"),
    "uint8": ("u8", "uint8", "uint8_t", "unsigned char"),
    "int16": ("short", "int16_t"),
    "int32": ("int", "i32", "int32", "int32_t"),
    "int64": ("long", "long long", "i64", "int64", "int64_t"),
}
_TRUTH_NAMES: Final = {"bool": ("bool",)}
_BY_NAME: Final = {
    name: key
    for table in (_FORMAT_NAMES, _INTEGER_NAMES, _TRUTH_NAMES)
    for key, names in table.items()
    for name in names
}
#: Number formats in which kernels compute.
NUMBER_FORMATS: Final = frozenset({*_BY_NAME.values(), *_TENSILE_FORMATS.values()})


def _format_pattern(table: Mapping[str, tuple[str, ...]], before: str) -> re.Pattern[str]:
    """Compile a pattern for any of the names, longest first, as whole words or parts between underscores."""
    names = sorted((re.escape(name) for names in table.values() for name in names), key=len, reverse=True)
    return re.compile(rf"(?<!{before})(?<![0-9A-Za-z])({'|'.join(names)})(?![0-9a-zA-Z])")


_FLOATING: Final = _format_pattern(_FORMAT_NAMES, "unsigned ")
_INTEGER: Final = _format_pattern(_INTEGER_NAMES, "unsigned ")
_TRUTH: Final = _format_pattern(_TRUTH_NAMES, "unsigned ")
_LAMBDA: Final = re.compile(r"\{lambda\(([a-z][^)]*)\)")
#: XMMA repeats the input format without a separator, Triton with an x: bf16bf16, bf16xbf16.
_PAIRED: Final = re.compile(r"_(tf32|bf16|f16|fp16|f32|f64|fp8|e4m3|e5m2|i8|s8)(?:f32|x?\1|x[a-z0-9]+)(?=_)")


def number_format(text: str) -> str | None:
    """Return the first number format in a name or in template arguments; float before integer, integer before bool.

    The parameters of a function applied to every element are the best evidence. Integers count only as template
    arguments: as function parameters they are sizes and strides.
    """
    applied = _LAMBDA.search(text)
    if applied is not None and applied.group(1) != "int":  # index functions state the format elsewhere
        text = applied.group(1)
    found = _PAIRED.search(text) or _FLOATING.search(text)
    if found is None:
        text = text.partition(">(")[0]
        found = None if text.startswith("(") else _INTEGER.search(text) or _TRUTH.search(text)
    return None if found is None else _BY_NAME.get(found.group(1))


def tensile(name: str) -> Fields:
    """Tensile, hipBLASLt: `Cijk_<A indices>_<B indices>_<formats>..._MT<M>x<N>x<K>_MI<m>x<n>..._ISA<arch>`.

    The placement of underscores within the formats varies between builds. The first letter is the format of A and B. An
    index list that begins with the summed index l (A) or the free index j (B) denotes a transposed matrix.
    """
    found = _TENSILE.match(name)
    if found is None:
        return {}
    a_indices, b_indices, rest = found.groups()
    fields: Fields = {"family": "gemm"}
    formats = _TENSILE_FORMAT.match(rest)
    if formats:
        fields["dtype"] = _TENSILE_FORMATS[formats.group()]
    if a_indices and b_indices:
        fields |= {"transpose_a": a_indices[0] == "l", "transpose_b": b_indices[0] == "j"}
    if _TENSILE_AUXILIARY.search(name):
        fields["role"] = "auxiliary"
    return fields | _with_tile(
        name, _TENSILE_TILE, matrix_instruction=_TENSILE_INSTRUCTION, architecture=_ISA, variant=_TENSILE_SPLIT
    )


def igemm(name: str) -> Fields:
    """Parse MIOpen's `igemm_<direction>_<generation>_<layout>_<format>_..._bt<M>x<N>x<K>_wt<m>x<n>x<k>...`."""
    found = _IGEMM.match(name)
    if found is None:
        return {}
    direction, generation, layout, dtype = found.groups()
    fields: Fields = {"family": "conv", "variant": f"{direction}_{layout}"}
    stated = {"dtype": _BY_NAME.get(dtype), "architecture": _IGEMM_ARCHITECTURE.get(generation)}
    fields |= {key: value for key, value in stated.items() if value}
    return fields | _with_tile(name, _IGEMM_TILE, matrix_instruction=_IGEMM_INSTRUCTION)


def composable_kernel(name: str) -> Fields:
    """Parse `ck::...::kernel_<operation>_xdl...<ck::Gridwise...<layouts, formats, ..., block, M, N, K, ...>>`.

    The first run of numbers may begin with a prefetch stage; its order is fixed from the block size on. CK spells
    bfloat16 as unsigned short if the compiler has no such type.
    """
    fields = _stated(name[: name.find("<")], variant=_CK_DIRECTION)
    numbers = _CK_NUMBERS.search(name)
    if numbers:
        values = [int(value) for value in numbers.group().rstrip(", ").split(", ")]
        start = next((place for place, value in enumerate(values[:2]) if value in _CK_BLOCKS), None)
        if _CK_BLOCK_FIRST.search(name):
            m, n, k_outer, m_instruction, n_instruction, k_inner = values[:6]
            fields |= {"tile": f"{m}x{n}x{k_outer * k_inner}", "matrix_instruction": f"{m_instruction}x{n_instruction}"}
        elif start is not None and len(values) >= start + 8:
            fields["tile"] = "x".join(map(str, values[start + 1 : start + 4]))
            fields["matrix_instruction"] = "x".join(map(str, values[start + 6 : start + 8]))
    fields |= _stated(name, tile=_CK_TILE_SHAPE)
    arguments = name[name.find("<") :]
    floating, short = _FLOATING.search(arguments), arguments.find("unsigned short")
    if short >= 0 and (floating is None or short < floating.start()):
        fields["dtype"] = "bfloat16"
    elif floating:
        fields["dtype"] = _BY_NAME[floating.group(1)]
    layouts = _CK_LAYOUT.findall(arguments)
    if len(layouts) >= 2:
        fields |= {"transpose_a": layouts[0] == "Column", "transpose_b": layouts[1] == "Column"}
    return fields


def cuda_library(name: str) -> Fields:
    """cuBLAS, cuDNN and CUTLASS: `<generation>_<letter>gemm_<M>x<N>_<layouts>`, `cutlass_80_tensorop_...`."""
    tiles = (_stated(name, tile=pattern) for pattern in _CUDA_TILE)
    fields = next(filter(None, tiles), {}) | _stated(name, matrix_instruction=_CUDA_INSTRUCTION)
    transposes = _CUDA_TRANSPOSES.search(name)
    if transposes:
        fields |= {"transpose_a": transposes.group(1) in "tT", "transpose_b": transposes.group(2) in "tT"}
    architecture = _CUDA_ARCHITECTURE.search(name)
    if architecture:
        number, generation = architecture.groups()
        fields["architecture"] = f"sm_{number}" if number else _CUDA_GENERATIONS[generation]
    simple = _CUDA_SIMPLE.search(name)
    if simple:
        fields["dtype"] = _CUDA_SIMPLE_FORMATS[simple.group(1)]
    elif "tensorop_s1688" in name or "_tf32f32_" in name:
        fields["dtype"] = "tfloat32"
    inputs = _NVJET.match(name)
    if inputs:
        fields["dtype"] = _NVJET_FORMATS[inputs.group(1)]
    return fields


def collective(name: str) -> Fields:
    """Parse `ncclDevKernel_<collective>_<operation>_<format>_<algorithm>_<protocol>`; generic ones have no fields."""
    return {"family": "comm", **_stated(name, variant=_COLLECTIVE)}


def miopen(name: str) -> Fields:
    """Return the algorithm of MIOpen's other kernels; its implicit GEMMs have their own grammar."""
    return igemm(name) or {key: str(value).lower() for key, value in _stated(name, variant=_MIOPEN_VARIANT).items()}


def inductor(name: str) -> tuple[str, str] | None:
    """Return kind (`poi`, `red`, `per`, `tem`, ...) and operators of `triton_<kind>_fused_<operators>_<counter>`."""
    found = _INDUCTOR.match(name)
    return None if found is None else (found.group(1), re.sub(r"(?:^|_)\d+$", "", found.group(2)))


def architecture(name: str) -> str | None:
    """Return the AMD architecture stated anywhere in a name."""
    found = _ARCHITECTURE.search(name)
    return None if found is None else f"gfx{found.group(1)}"


def plain_tile(name: str) -> str | None:
    """Return three numbers joined by x, the way hand-written kernels state their tile."""
    found = _PLAIN_TILE.search(name)
    return None if found is None else found.group(1)


def _stated(name: str, **patterns: re.Pattern[str]) -> Fields:
    """Return the fields whose pattern occurs in the name: its groups, joined by an x."""
    found = {key: pattern.search(name) for key, pattern in patterns.items()}
    return {key: "x".join(filter(None, match.groups())) for key, match in found.items() if match}


def _with_tile(name: str, tile: re.Pattern[str], **patterns: re.Pattern[str]) -> Fields:
    """Return the fields including the tile, which ends the readable part of a generated name (AMD instruction sets)."""
    found, fields = tile.search(name), _stated(name, tile=tile, **patterns)
    if "architecture" in fields:
        fields["architecture"] = f"gfx{fields['architecture']}"
    return fields if found is None else {**fields, "short_name": name[: found.end()]}


READERS: Final[dict[str, Callable[[str], Fields]]] = {
    "hipblaslt": tensile,
    "tensile": tensile,
    "miopen": miopen,
    "composable_kernel": composable_kernel,
    "ck_tile": composable_kernel,
    "cublas": cuda_library,
    "cudnn": cuda_library,
    "cutlass": cuda_library,
    "rccl": collective,
}


#: MIGraphX's operators as they appear in kernel names (its documentation, Operators; and its generated kernels).
_MIGRAPHX_OPERATORS: Final = frozenset({
    "abs", "acos", "acosh", "add", "argmax", "argmin", "asin", "asinh", "atan", "atanh", "attention", "bitwise_and",
    "broadcast", "ceil", "clip", "concat", "contiguous", "convert", "convolution", "copy", "cos", "cosh",
    "dequantizelinear", "div", "dot", "elu", "equal", "erf", "exp", "fill", "flatten", "floor", "fmod", "gather",
    "gathernd", "gelu", "gemm", "greater", "group_query_attention", "groupnorm", "identity", "isinf", "isnan",
    "layernorm", "layout", "leaky_relu", "less", "log", "log2", "logical_and", "logical_or", "logical_xor",
    "logsoftmax", "lrn", "max", "min", "mod", "mul", "multibroadcast", "nearbyint", "neg", "nonzero", "noop", "not",
    "pack_int4", "pad", "pointwise", "pooling", "pow", "prefix_scan_sum", "prelu", "quant_convolution", "quant_dot",
    "quantizelinear", "recip", "reduce", "reduce_all", "reduce_any", "reduce_max", "reduce_mean", "reduce_min",
    "reduce_prod", "reduce_sum", "relu", "reshape", "resize", "rmsnorm", "roialign", "round", "rsqrt",
    "scatter_add", "scatter_max", "scatter_min", "scatter_mul", "scatter_none", "sigmoid", "sign", "sin", "sinh",
    "slice", "softmax", "sqdiff", "sqrt", "squeeze", "step", "sub", "tan", "tanh", "topk", "transpose",
    "unpack_fp4", "unpack_int4", "unsqueeze", "where"
})  # fmt: skip
_MIGRAPHX_PREFIX: Final = re.compile(r"(?:gpu::)?(?:code_object::)?(?:mlir_)?")
_MIGRAPHX_ENDING: Final = re.compile(r"(?:_kernel)?(?:_\d+)?$")
_LONGEST_OPERATOR: Final = 3

#: Operators that only move elements or describe their layout.
_MOVING: Final = re.compile(
    r"(?<=_)(?:split_with_sizes|constant_pad_nd|slice_scatter|select_scatter|as_strided|new_zeros|lift_fresh|to_copy"
    r"|unsafe_view|transpose|unsqueeze|contiguous|squeeze|permute|expand|select|detach|repeat|reshape|getitem|unbind"
    r"|clone|slice|split|stack|empty|zeros|view|copy|full|fill|flip|roll|ones|cat|t)(?=_)"
)
#: Operators for which Inductor calls a library; in a fusion's name, such an operator ran before or after the kernel.
_ELSEWHERE: Final = {
    "attention": re.compile(
        r"(?<=_)scaled_dot_product(?:_[a-z]+)*?_attention(?:_for_cpu|_backward)?(?=_)|flex_attention"
    ),
    "conv": re.compile(r"(?<=_)convolution(?:_backward)?(?=_)"),
    "gemm": re.compile(r"(?<=_)(?:addmm|baddbmm|bmm|mm|scaled_mm)(?=_)"),
}
_NORM: Final = re.compile(r"(?<=_)(?:native_|fused_)*(?:layer|batch|group|instance|rms)_norm\w*?(?=_)")
#: A root mean square norm is decomposed before fusion, as is the normalizing half of the others.
_NORM_PARTS: Final = (re.compile(r"_(?:mean|var_mean|var)_"), re.compile(r"_rsqrt_"))
_POOL: Final = re.compile(r"(?<=_)(?:max|avg)_pool\dd")
_SOFTMAX: Final = re.compile(r"softmax")
_INDEXED: Final = re.compile(r"(?<=_)(?:embedding|index_select|index_put|index|gather|scatter|scatter_add)\w*?(?=_)")
_REDUCING_KINDS: Final = frozenset({"red", "per", "mix"})


class Fusion(NamedTuple):
    """Return the kind of work of a fused kernel, and whether it only serves an operator computed elsewhere."""

    family: str | None
    is_auxiliary: bool


def fused_operators(name: str) -> list[str]:
    """Return the operators fused into one MIGraphX kernel, in the order of its name; empty for other names."""
    prefix = _MIGRAPHX_PREFIX.match(name)
    start = prefix.end() if prefix else 0
    ending = _MIGRAPHX_ENDING.search(name, start)
    end = ending.start() if ending else len(name)
    if not start and not name.endswith("_kernel", 0, len(name)) and not name[end:].startswith("_kernel"):
        return []
    parts = name[start:end].split("_")
    operators: list[str] = []
    while parts:
        length = next(
            (size for size in range(_LONGEST_OPERATOR, 0, -1) if "_".join(parts[:size]) in _MIGRAPHX_OPERATORS), 0
        )
        if not length:
            return []
        operators.append("_".join(parts[:length]))
        del parts[:length]
    return operators


def migraphx_family(operators: list[str]) -> str | None:
    """Return the kind of work of operators that are compiled together with a product or a convolution."""
    if any(operator.endswith("attention") for operator in operators):
        return "attention"
    products = sum(operator in {"dot", "quant_dot", "gemm"} for operator in operators)
    if products > 1 and "softmax" in operators:
        return "attention"
    if any(operator.endswith("convolution") for operator in operators):
        return "conv"
    return "gemm" if products else None


def inductor_fusion(name: str) -> Fusion | None:
    """Return the kind of work of a kernel generated by Inductor; None for other kernels."""
    parts = inductor(name)
    if parts is None:
        return None
    kind, operators = parts
    text, reduces = f"_{operators}_", kind in _REDUCING_KINDS
    family: str | None
    if kind == "tem":
        family = _elsewhere(text)
    elif _NORM.search(text) or (reduces and all(part.search(text) for part in _NORM_PARTS)):
        family = "norm"
    elif _SOFTMAX.search(text):
        family = "softmax"
    elif _POOL.search(text):
        family = "pool"
    elif reduces:
        family = "reduction"
    elif _INDEXED.search(text):
        family = "embedding/gather"
    else:
        return _pointwise(text)
    return Fusion(family, is_auxiliary=False)


def _elsewhere(text: str) -> str | None:
    """Return the first library operator that occurs in the text."""
    return next((family for family, pattern in _ELSEWHERE.items() if pattern.search(text)), None)


def _pointwise(text: str) -> Fusion:
    """Classify an elementwise kernel; one that only moves elements is a copy, or serves the operator that owns them."""
    if not text.strip("_"):
        return Fusion(None, is_auxiliary=False)
    computed = text
    for pattern in _ELSEWHERE.values():
        computed = pattern.sub("", computed)
    if _MOVING.sub("", computed).strip("_"):
        return Fusion("elementwise", is_auxiliary=False)
    family = _elsewhere(text)
    return Fusion(family or "copy/memset", is_auxiliary=family is not None)
