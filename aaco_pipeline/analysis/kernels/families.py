"""Kernel families as data: words and library symbols, each with the kind of work that it implies.

`names` applies them to kernels.
"""

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib import resources
from typing import Any, Final, NamedTuple

import yaml

from aaco_pipeline.analysis.kernels.grammar import NUMBER_FORMATS

#: Kinds of work in descending precedence; if a function name matches several, the first one counts.
PHRASES: Final[dict[str, tuple[str, ...]]] = {
    "comm": (
        "nccl*", "rccl*", "msccl*", "all reduce*", "all gather*", "reduce scatter*", "all to all*", "all2 all*", "a2a*",
        "send recv*", "cross device reduce*", "quick reduce*", "nvshmem*", "rocshmem*", "user buffers*", "lamport*",
        "multimem*", "ipc*",
    ),
    "kv cache": (
        "*reshape and cache*", "*concat and cache*", "*cat and cache*", "and cache*", "copy blocks*", "slot mapping*",
        "reshape cache*", "flatten kv*", "full dequant kv*", "k cache*", "index cache*", "zero kv*", "append paged kv*",
        "store cache*", "store index*", "store flash mla*", "set kv*", "write kv*", "copy kv*", "kv copy*",
        "*kv buffer*", "kv indices*", "kv index*", "gather cache*", "gather kv*", "quantize kv*", "dequantize kv*",
        "cache update*", "kv cache update*", "update kv cache*", "fill kv*", "update cache*", "cache rotate*",
        "kv cache copy*", "kv cache write*", "kv cache scatter*", "kv cache gather*", "transfer kv*", "transfer cache*",
        "quant cache*", "dequant cache*", "store kv*", "store qkv*", "kv store*", "kv update*", "kv write*",
        "append kv*", "req to token*", "hi cache*", "hi sparse*",
    ),
    "linear attention": (
        "*gated delta*", "*delta rule*", "delta net*", "delta product*", "*linear attention*", "linear attn*",
        "lightning attn*", "lightning attention*", "gla", "kda", "gdn*", "gdr", "rwkv*", "wkv*", "ssm*", "ssd*",
        "mamba*", "selective scan*", "selective state*", "fused recurrent*", "recurrent", "chunk scan*", "chunk state*",
        "chunk cumsum*", "state passing*", "wy", "kkt", "hgrn*", "comba", "dplr", "iplr", "mesa*", "retention*",
        "delta attn*",
    ),
    "attention": (
        "*attention*", "*attn*", "*fmha*", "*mha*", "mla*", "sage*", "flash attn*", "flash fwd*", "flash bwd*",
        "flash mla*", "flash decod*", "flash prefill*", "sdpa*", "*scaled dot product*", "*mqa*", "gqa*", "nsa", "att",
        "att2", "indexer*", "prefill with*", "decode with*", "softmax gemm*", "merge state*", "merge states*",
        "dq dk dv", "dk dv", "dkv", "dot do o", "pa", "neighborhood*", "split kv", "splitkv*", "kv splits*", "flash",
        "page table*", "block table*", "*seqlen*", "seq lens*", "paged decode*", "paged prefill*", "sparse decode*",
        "sparse prefill*", "swa page*",
    ),
    "moe routing": (
        "*moe align*", "moe sort*", "moe sum*", "moe finalize*", "moe permute*", "moe unpermute*", "moe combine*",
        "moe gather*", "moe scatter*", "moe top*", "moe reduce*", "moe histogram*", "moe softmax*", "moe gate*",
        "topk gating*", "top k gating*", "topk ids*", "unpermute*", "grouped topk*", "group limited topk*",
        "topk router*", "noaux tc*", "softmax topk*", "topk softmax*", "*routing*", "route", "routes", "eplb*",
        "expert*", "experts", "ep scatter*", "ep gather*",
    ),
    "fft": ("fft*", "*fft", "bluestein*", "stockham*"),
    "sparse": (
        "cusparse*", "rocsparse*", "spmm*", "spgemm*", "sddmm*", "csrmm*", "csrmv*", "csrgemm*", "bsrmm*", "bsrmv*",
        "sparse24*", "sparse nm*",
    ),
    "sampling": (
        "sample", "samples", "*sampling*", "sample multinomial*", "*multinomial*", "*penalty*", "penalties*", "top p*",
        "min p", "bad words*", "logits bitmask*", "logits mask*", "resample*", "*sampled*", "token filter*",
        "grammar bitmask*", "rejection*", "speculative*", "beam search*", "beam hyp*", "beam scorer*", "greedy*",
        "draft inputs*", "draft block*", "draft extend inputs*", "accept*", "*drafts*", "bonus*", "watermark*",
        "gumbel*", "verify tree*", "build tree*", "tree mask*", "token bitmask*", "logit bitmask*", "vocab mask*",
        "next token*", "rep pens*", "freq pens*", "correct len*",
    ),
    "softmax": ("*soft max*", "cross entropy*", "xentropy*", "grpo*", "sparse max*", "entmax*"),
    "norm": (
        "*layer norm*", "*batch norm*", "*group norm*", "*instance norm*", "*rms norm*", "l2 norm*", "norm", "norm fwd",
        "rms", "ln fwd*", "ln bwd*", "*lrn*", "bn fw*", "bn bw*", "gamma beta*", "fused params*", "internal gradients*",
        "rowwise moments*", "cu compute grad*", "cu compute part grad*", "add norm*", "normalization*", "ln",
    ),
    "conv": (
        "conv", "conv1*", "conv2*", "conv3*", "conv5*", "conv7*", "*convolution*", "*fprop*", "*dgrad*", "*wgrad*",
        "*winograd*", "im2 col*", "im2d2 col*", "im3d2 col*", "col2 im*", "col2 im2d*", "implicit gemm*", "igemm*",
        "bwd weight*", "bwd data*", "wrw", "scudnn*", "*depthwise*", "conv fwd*", "conv bwd*", "*conv uni*",
        "vol2 col*", "vol2 im*", "tconv*", "sconv*", "short conv*",
    ),
    "gemm": (
        "*gemm*", "*gemv*", "*mat mul*", "bmm", "mm", "addmm", "cijk*", "dot", "split kreduce*", "split k reduce*",
        "*splitk*", "split k", "split kq*", "*lora", "lora*", "*gmv*", "skinny*", "fused moe*", "fmoe*", "moe mm*",
        "moe kernel*", "e2e moe*", "contraction*", "nvjet*", "*mul mat*", "mul mm*", "matrix mul*",
        "*matrix multiplication*", "matvec*", "mat vec*", "marlin*", "gmm", "tgmm", "gmmm", "moe q*",
    ),
    "quantization": (
        "*quant*", "down cast*", "up cast*", "fp4 to*", "to fp4*", "to fp8*", "cast fp8*", "to mxfp*", "*qparam*",
        "*to fp8rowwise*", "*bitrowwise*",
    ),
    "pool": (
        "pool", "*pool1d*", "*pool2d*", "*pool3d*", "*pooling*", "*max pool*", "*avg pool*", "*average pool*",
        "*adaptive average*", "*adaptive max*",
    ),
    "sort/scan": (
        "*sort*", "top k*", "*topk*", "*scan*", "cum sum*", "cum prod*", "search sorted*", "bucketize*", "unique*",
        "*histogram*", "bitonic*", "kth value*", "*find kth*", "*prefix sum*", "radix*", "onesweep*", "lookback*",
        "bincount*", "*argsort*",
    ),
    "embedding/gather": (
        "*embedding*", "*gather*", "*scatter*", "index select*", "index put*", "index add*", "index copy*",
        "index fill*", "get rows*", "set rows*", "index elementwise*", "index kernel*", "index func*", "indexing*",
        "take", "bounds check*", "masked select*", "non zero*", "partition*", "*compact*", "device select*",
        "select if*", "grad weight*", "partials per segment*", "partial segments*", "num of segments*", "lookup*",
    ),
    "copy/memset": (
        "copy*", "*copy", "cpy*", "mem cpy*", "mem set*", "fill*", "zero*", "cat", "concat*", "*transpose*", "permute*",
        "pad", "unpad", "swizzle*", "unswizzle*", "clear*", "*padding*", "arange*", "flip*", "roll", "repeat*", "tril",
        "trilu", "triu*", "reshape*", "tensor transform*", "reformat*", "*layout*", "slice*", "sub tensor op*",
        "set tensor*",
    ),
    "reduction": (
        "*reduce*", "*reduction*", "sum*", "mean*", "arg max*", "arg min*", "amax*", "amin*", "absmax*", "welford*",
        "iamax*", "iamin*", "nrm2*", "asum*", "log sum exp*", "count nonzero*",
    ),
    "elementwise": (
        "*elementwise*", "*pointwise*", "element wise*", "multi tensor*", "add*", "sub", "div*", "act", "*activation*",
        "*silu*", "*swish*", "*gelu*", "*relu*", "*swiglu*", "*geglu*", "*rope*", "rotary embedding*", "rotary*",
        "*dropout*", "cast*", "convert*", "scale*", "clamp*", "*clip*", "*adam*", "*sgd*", "lamb*", "soft cap*",
        "lerp*", "where*", "mask*", "exp", "sqrt", "rsqrt", "pow*", "*tanh*", "*sigmoid*", "erf*", "neg", "abs*", "log",
        "transform*", "for each*", "parallel for*", "op tensor*", "op1d*", "op2d*", "op3d*", "op4d*", "op5d*",
        "*neuron*", "copysign*", "sin", "cos", "*equal*", "less", "greater", "ceil", "floor", "round", "sign", "max",
        "min", "philox*", "*rng*", "logical*", "bitwise*", "reciprocal*", "threshold*", "upsample*", "upscale*",
        "resize*", "interpolat*",
    ),
}  # fmt: skip

#: Weaker phrases, used only if none of the above occurs in the function's own name.
WEAK_PHRASES: Final[dict[str, tuple[str, ...]]] = {
    "kv cache": ("*kv cache*",),
    "comm": ("barrier*", "publish*", "one shot*", "two shot*", "1shot*", "2shot*"),
    "linear attention": ("^chunk*", "intra chunk*", "inter chunk*", "*segsum*"),
    "attention": (
        "^fwd kernel*", "^bwd kernel*", "^fwd", "^bwd", "qk", "qkv*", "indptr*", "qsa", "dsa", "swa", "sink", "sinks",
        "sparse indices*", "prefill*", "metadata*",
    ),
    "gemm": ("up proj*", "down proj*", "rel proj*", "linear"),
    "moe routing": ("*moe*", "router*"),
    "sampling": ("logits*", "draft*", "input ids*", "input embeds*"),
    "quantization": ("*rowwise*",),
    "embedding/gather": ("linearize*", "delinearize*", "embed", "engram*"),
    "copy/memset": (
        "pack*", "unpack*", "prepack*", "repack*", "*shuffle*", "reorder*", "rearrange*", "interleave*", "swap*",
        "expand*", "to dense*", "dense to*", "to padded*", "jagged to*", "contiguous*", "nchw*", "nhwc*", "reverse*",
        "unfold*", "untile*", "iota*", "crop*", "diag kernel*", "diag 1d*", "diagonal kernel*", "*pad1d*", "*pad2d*",
        "*pad3d*", "eye*", "ones", "linspace*", "logspace*", "vstack*", "hstack*",
    ),
    "reduction": ("nll loss forward*", "nll loss2d forward*", "prod", "std", "dbias*"),
    "sort/scan": ("*hist",),
    "elementwise": (
        "nll loss2d backward*", "bias*", "unary*", "binary*", "bcast*", "broadcast*", "*glu", "*elu", "softplus*",
        "*axpy*", "geam*", "scal", "mhc*", "rot", "rotm*", "rotg*", "optimizer*", "residual*", "timestep*", "operator*",
        "grid sampler*", "lstm*", "gru", "hc combine*", "hc apply*", "hc post*", "hc pre*", "square", "sqr",
        "output gate*", "rand", "randn", "uniform", "exponential*", "isin", "nll loss backward*", "modulat*",
        "float to*", "bfloat16 to*", "random*", "situ",
    ),
}  # fmt: skip

#: Families by the functor that a kernel applies to each element.
FUNCTOR_PHRASES: Final[dict[str, tuple[str, ...]]] = {
    "norm": PHRASES["norm"],
    "softmax": PHRASES["softmax"],
    "pool": PHRASES["pool"],
    "embedding/gather": ("index*", "*gather*", "*scatter*", "*embedding*", "take*", "put*"),
    "copy/memset": (
        "direct copy*", "copy kernel*", "copy device*", "fill functor*", "arange*", "range cuda*",
        "linspace*", "logspace*", "eye*", "tril*", "triu*", "flip*", "roll*", "cat*", "pad*",
    ),
}  # fmt: skip
#: The same for kernels over lists of tensors, for which copying is part of an update.
LIST_FUNCTOR_PHRASES: Final[dict[str, tuple[str, ...]]] = {
    "reduction": ("lp norm*", "l2 norm*", "lp max*", "max norm*")
}

#: Words for kernels that only prepare or finish another kernel's work.
AUXILIARY_PHRASES: Final[tuple[str, ...]] = (
    "post gsu*", "*splitk reduce*", "split kreduce*", "split k reduce*", "reduce 1block*", "combine*", "preprocess*",
    "postprocess*", "finalize*", "init*", "radix sort histogram*", "onesweep histogram*", "scan histogram*",
    "*offsets*", "*segments*", "per segment*", "*workspace*",
    "update stats*", "fused params*", "fill dropout*", "compute position*", "kv indices*", "im2 col*", "im2d2 col*",
    "im3d2 col*", "col2 im*", "col2 im2d*", "routing*", "align block*", "*metadata*",
)  # fmt: skip

#: Function name prefixes used by a single library. The first match counts, so specific prefixes come first.
LIBRARY_PREFIXES: Final[tuple[tuple[str, str], ...]] = (
    ("hipblaslt", r"(?:Custom_)?Cijk_.*(?:UserArgs|SAV|ScaleAlphaVec|_Bias)"),
    ("tensile", r"(?:Custom_)?Cijk_"),
    ("rocblas", r"rocblas_"),
    ("miopen", r"(?i:miopen|mlo(?=[A-Z]))|igemm_(?:fwd|bwd|wrw|v\d|group)|gridwise_|naive_conv_|SubTensorOp"
               r"|Op(?:Tensor|\d)d?"
               r"|batched_transpose_\d|transpose_[NCDHW]{4,5}\w*2[NCDHW]{4,5}|Im\dd2Col|Col2Im\dd|Conv_?Winograd"),
    ("triton_inductor", r"triton_[a-z]+\w*"),
    ("rocmlir", r"(?:gpu::code_object::)?mlir_"),
    ("migraphx", r"gpu::|hip::hip_|.*::code_object::"),
    ("rocclr", r"__amd_rocclr_"),
    ("rccl", r"(?:nccl|rccl|mscclpp?)(?:Dev)?Kernel|rccl|msccl"),
    ("runtime", r"(?:Memcpy|Memset)\b"),
    ("ck_tile", r"ck_tile::"),
    ("composable_kernel", r"ck::"),
    ("aiter", r"aiter::"),
    ("aotriton", r"(?:attn_fwd|bwd_kernel_|bwd_preprocess|debug_fill_dropout|debug_simulate_encoded)"),
    ("cudnn", r"cudnn|cask_cudnn|\w*_cudnn\w*::|sm\d+_xmma_\w*cudnn|\w+_scudnn_"),
    ("flash_attention", r"(?:pytorch_)?flash(?:_\w+)?::"),
    ("rocprim", r"rocprim::|hipcub::"),
    ("cub", r"(?:at_cuda_detail::)?cub::|thrust::\w+::cub"),
    ("thrust", r"thrust::"),
    ("cublas", r"cublas|\w+_[hsdcz]gemm_|(?:ampere|volta|turing|maxwell|hopper|pascal)_|sm\d+_xmma_|nvjet_"
               r"|gemv2?[NT]_kernel|gemmk1_|gemmSN_|internal::gemvx|internal::\w+::kernel"),
    ("cutlass", r"cutlass\w*"),
    ("magma", r"magma"),
    ("fbgemm", r"fbgemm_gpu::|split_embedding_"),
    ("vllm", r"vllm::"),
    ("sgl_kernel", r"sgl_hip::|sgl_kernel::"),
    ("pytorch", r"at::"),
)  # fmt: skip
#: Libraries recognized by parameter types if the function name is not specific.
LIBRARY_ARGUMENTS: Final[tuple[tuple[str, str], ...]] = (
    ("cublas", r"\bcublas\w*"),
    ("cudnn", r"\bcudnn\w*"),
    ("vllm", r"\bvllm::"),
    ("aiter", r"\baiter::"),
    ("ck_tile", r"\bck_tile::"),
    ("ggml", r"\bggml_"),
    ("pytorch", r"\bat::|\bc10::"),
)
#: A library's main purpose, used if a name contains no other evidence.
LIBRARY_FAMILY: Final[dict[str, str]] = {
    "hipblaslt": "gemm", "tensile": "gemm", "rocblas": "gemm", "cudnn": "conv", "rccl": "comm", "aotriton": "attention",
    "flash_attention": "attention",
}  # fmt: skip
#: Libraries whose copies, layout changes, transforms and unnamed kernels only serve their own convolutions.
CONVOLUTION_LIBRARIES: Final = frozenset({"miopen", "cudnn"})

#: Operators not covered by the words above, in normalized form: lower case with underscores.
OPERATORS: Final[dict[str, str]] = {
    "embedding/gather": "gather gather_elements gather_nd scatter scatter_elements scatter_nd take index index_put "
    "compress non_zero nonzero masked_select",
    "copy/memset": "copy to_copy clone contiguous zero zeros ones full cat stack local_scalar_dense set pin_memory to "
    "new_zeros zeros_like ones_like empty record_stream item repeat roll flip constant_pad_nd narrow_copy "
    "split_with_sizes_copy slice_scatter tril triu arange concat transpose expand pad identity reshape split slice "
    "squeeze unsqueeze flatten constant constant_of_shape reorder_input reorder_output "
    "space_to_depth depth_to_space range shape tile",
    "reduction": "sum mean amax amin max min argmax argmin all any prod norm linalg_vector_norm var std var_mean "
    "foreach_norm logsumexp count_nonzero nansum arg_max arg_min",
    "sort/scan": "sort topk top_k argsort cumsum cum_sum cumprod unique unique2 searchsorted kthvalue median msort "
    "bincount",
    "sampling": "multinomial",
    "quantization": "quantize_linear dequantize_linear dynamic_quantize_linear",
    "gemm": "mm addmm bmm baddbmm matmul mat_mul linear addmv mv dot scaled_mm addbmm einsum int_mm gemm "
    "addmm_activation mat_mul_integer linear_backward linear_relu",
    "comm": "record_param_comms",
    "elementwise": "foreach_copy and or xor not "
    "masked_fill dropout bernoulli normal uniform random exponential isnan isfinite isinf eq ne lt "
    "le gt ge maximum minimum nan_to_num sgn sign where cast relu add sub mul mul_out div pow sqrt exp log erf tanh "
    "sigmoid",
}  # fmt: skip
#: ONNX operators that combine any number of tensors element by element; PyTorch's of the same name are reductions.
ELEMENTWISE_ONNX_OPERATORS: Final = frozenset({"max", "mean", "min", "sum"})


def phrase_pattern(phrases: tuple[str, ...]) -> re.Pattern[str]:
    """Compile one pattern for any of the phrases in a text from `names.words`."""
    return re.compile(rf"(?<=_)(?:{_alternatives(phrases)})(?=_)")


def grouped_pattern(phrases: dict[str, tuple[str, ...]]) -> re.Pattern[str]:
    """Compile one pattern that finds the earliest phrase of any family; `lastindex` is the family's number from 1."""
    return re.compile("(?<=_)(?:" + "|".join(f"({_alternatives(own)})" for own in phrases.values()) + ")(?=_)")


def _alternatives(phrases: tuple[str, ...]) -> str:
    """Join the phrases as regex alternatives; a star within a multi-word phrase does not match across words."""
    signs = str.maketrans({"*": "[a-z0-9]*", " ": "_?", "^": "(?<=^_)_?"})
    return "|".join(phrase.translate(signs) for phrase in phrases)


_FILE: Final = "symbols.yaml"
_OF_A_SOURCE: Final = {"library", "repository", "commit", "symbols", "formats"}
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_REPOSITORY: Final = re.compile(r"[\w.-]+/[\w.-]+")
_SYMBOL: Final = re.compile(r"[A-Za-z0-9*?:][\w*?:]*")
#: A symbol with fewer characters identifies no kernel.
_LEAST_CHARACTERS: Final = 3
#: Symbols are indexed by their first characters; one that begins with a star is tried on every name.
_INDEXED_CHARACTERS: Final = 2
_STARTS: Final = re.compile(r"(?:^|(?<=::))_*(?!_)")


class Symbol(NamedTuple):
    """One table row: the kind of work of kernels whose names match `pattern`, and its source."""

    pattern: str
    kind: str
    library: str | None
    dtype: str | None
    repository: str
    commit: str


class _Row(NamedTuple):
    rank: int
    text: str
    symbol: Symbol


@lru_cache(maxsize=8192)
def symbol_of(head: str) -> Symbol | None:
    """Return the most specific row that matches a function's qualified name without arguments.

    The cache holds the distinct functions of a few captures; a session has a few hundred.
    """
    index, best = _index(), None
    for start in _STARTS.finditer(head):
        begin = head[start.end() : start.end() + _INDEXED_CHARACTERS]
        for rows in (index.get(begin, ()), index.get("", ())):
            # Rows are sorted by rank, so the first match is the best one in its list.
            found = next((row for row in rows if _compiled(row.text).fullmatch(head, start.end())), None)
            if found is not None and (best is None or found.rank < best.rank):
                best = found
    return None if best is None else best.symbol


@cache
def symbols() -> tuple[Symbol, ...]:
    """Return all rows, most specific first."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = resources.files(__package__).joinpath(_FILE).read_text(encoding="utf-8")
    return parsed(yaml.load(text, Loader=loader))


def parsed(sources: list[Mapping[str, Any]]) -> tuple[Symbol, ...]:
    """Parse a table's content into rows, most specific first. Raises ValueError if it is malformed.

    Each source has `library` (null if the symbols do not identify it), `repository`, the `commit` that was read,
    `symbols` by kind of work and optionally `formats`: symbols that imply a number format.
    """
    rows: dict[str, Symbol] = {}
    for source in sources:
        _check_source(source)
        formats = {symbol: dtype for dtype, own in source.get("formats", {}).items() for symbol in own}
        for kind, own in source["symbols"].items():
            for pattern in own:
                _check_symbol(pattern, kind, rows)
                dtype = formats.pop(pattern, None)
                rows[pattern] = Symbol(pattern, kind, source["library"], dtype, source["repository"], source["commit"])
        if formats:
            raise ValueError(f"{_FILE}: {next(iter(formats))} has a number format and no kind of work")
    return tuple(sorted(rows.values(), key=lambda row: (-_characters(row.pattern), row.pattern)))


def _check_source(source: Mapping[str, Any]) -> None:
    """Raise ValueError unless a source states its origin and uses only known kinds and number formats."""
    named = f"{_FILE}: the source {source.get('repository')}"
    if not _OF_A_SOURCE - {"formats"} <= set(source) <= _OF_A_SOURCE:
        raise ValueError(f"{named} needs {', '.join(sorted(_OF_A_SOURCE - {'formats'}))} and has {', '.join(source)}")
    if not _REPOSITORY.fullmatch(str(source["repository"])) or not _COMMIT.fullmatch(str(source["commit"])):
        raise ValueError(f"{named} does not say the repository and the commit of 40 digits that was read")
    unknown = set(source["symbols"]) - set(PHRASES) | set(source.get("formats", {})) - NUMBER_FORMATS
    if unknown:
        raise ValueError(f"{named} has {', '.join(sorted(unknown))}, which is no kind of work and no number format")


def _check_symbol(pattern: str, kind: str, rows: Mapping[str, Symbol]) -> None:
    """Raise ValueError unless a symbol is specific enough and unique."""
    if not _SYMBOL.fullmatch(pattern) or _characters(pattern) < _LEAST_CHARACTERS:
        raise ValueError(f"{_FILE}: {pattern!r} ({kind}) is no symbol of at least {_LEAST_CHARACTERS} characters")
    if pattern in rows:
        raise ValueError(f"{_FILE}: {pattern} stands twice, as {rows[pattern].kind} and as {kind}")


def _characters(pattern: str) -> int:
    """Return the number of characters that a symbol specifies."""
    return len(pattern) - pattern.count("*") - pattern.count("?")


@cache
def _compiled(text: str) -> re.Pattern[str]:
    """Return a symbol's compiled pattern; compiled lazily, because a session needs only a few."""
    return re.compile(text, re.DOTALL)


@cache
def _index() -> Mapping[str, tuple[_Row, ...]]:
    """Index the rows by the first characters of their symbols."""
    index: dict[str, list[_Row]] = {}
    for rank, symbol in enumerate(symbols()):
        text = "".join({"*": ".*", "?": "."}.get(sign, re.escape(sign)) for sign in symbol.pattern)
        begin = symbol.pattern[:_INDEXED_CHARACTERS]
        begin = "" if "*" in begin or "?" in begin else begin
        index.setdefault(begin, []).append(_Row(rank, text, symbol))
    return {begin: tuple(rows) for begin, rows in index.items()}
