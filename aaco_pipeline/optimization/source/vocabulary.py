"""Names of the language that matter to a loop: synchronization, cross-lane operations, pure functions, types."""

import re
from itertools import product
from typing import Final, Literal


def words(listed: str) -> frozenset[str]:
    """Split a text at white space into a set of words."""
    return frozenset(listed.split())


KEYWORDS: Final = words("""
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t
    class compl concept const consteval constexpr constinit const_cast continue co_await co_return co_yield
    decltype default delete do double dynamic_cast else enum explicit export extern false float for friend
    goto if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private
    protected public register reinterpret_cast requires return short signed sizeof static static_assert
    static_cast struct switch template this thread_local throw true try typedef typeid typename union
    unsigned using virtual void volatile wchar_t while xor xor_eq
""")
#: Specifier keywords: blanked before parsing, since nothing in a body depends on them.
SPECIFIERS: Final = words("""
    __global__ __device__ __host__ __forceinline__ __noinline__ __inline__ __inline __restrict__ __restrict
    restrict __launch_bounds__ __attribute__ __attribute __align__ __extension__ __cluster_dims__
    __maxnreg__ __declspec
""")
#: Specifiers that carry an argument in parentheses.
WITH_ARGUMENT: Final = words("""
    __launch_bounds__ __attribute__ __attribute __align__ __cluster_dims__ __maxnreg__ __declspec alignas
""")

ASSEMBLY: Final = ("asm", "__asm__", "__asm")
#: HIP's macros that declare an array of dynamic local data share.
DYNAMIC_LDS: Final = ("HIP_DYNAMIC_SHARED", "HIP_DYNAMIC_SHARED_ATTRIBUTE")

INTEGER_BITS: Final = {
    **dict.fromkeys(("char", "signed char", "unsigned char"), 8),
    **dict.fromkeys(("short", "unsigned short"), 16),
    **dict.fromkeys(("int", "signed", "signed int", "unsigned", "unsigned int", "uint"), 32),
    **dict.fromkeys(("long", "unsigned long", "long long", "unsigned long long"), 64),
    **{f"{scope}{name}": 64 for scope, name in product(("", "std::"), ("size_t", "ptrdiff_t"))},
    **{f"{scope}{sign}int{bits}_t": bits for scope, sign, bits in product(("", "std::"), ("", "u"), (8, 16, 32, 64))},
}
UNSIGNED: Final = frozenset(
    name for name in INTEGER_BITS if "unsigned" in name or "uint" in name or name.endswith("size_t")
)

_ELEMENTS: Final = words("char uchar short ushort int uint long ulong longlong ulonglong float double")
VECTOR_TYPES: Final = frozenset(f"{element}{width}" for element in _ELEMENTS for width in (1, 2, 3, 4))
#: Types that a conversion may call by name.
TYPES: Final = (
    words("bool char short int long float double signed unsigned void auto wchar_t dim3 uint uint3")
    | words("half __half half2 __half2 __hip_bfloat16 hip_bfloat16 _Float16 __bf16 uintptr_t intptr_t")
    | frozenset(INTEGER_BITS)
    | VECTOR_TYPES
)
BUILTIN_NAMES: Final = words("""
    threadIdx blockIdx blockDim gridDim warpSize hipThreadIdx_x hipThreadIdx_y hipThreadIdx_z hipBlockIdx_x
    hipBlockIdx_y hipBlockIdx_z hipBlockDim_x hipBlockDim_y hipBlockDim_z hipGridDim_x hipGridDim_y
    hipGridDim_z INFINITY NAN HUGE_VALF HUGE_VAL FLT_MAX FLT_MIN FLT_EPSILON DBL_MAX DBL_MIN DBL_EPSILON
    INT_MAX INT_MIN UINT_MAX LONG_MAX LONG_MIN LLONG_MAX LLONG_MIN ULLONG_MAX CHAR_BIT SHRT_MAX SHRT_MIN
    UCHAR_MAX INT8_MAX INT16_MAX INT32_MAX INT64_MAX INT32_MIN INT64_MIN UINT8_MAX UINT16_MAX UINT32_MAX
    UINT64_MAX SIZE_MAX M_PI M_PI_2 M_E M_SQRT2 M_LN2 M_LOG2E std nullptr NULL this
""")

_MATH: Final = words("""
    acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh cospi erf erfc erfcinv erfcx erfinv exp
    exp10 exp2 expm1 fabs fdim floor fma fmax fmin fmod frexp hypot ilogb j0 j1 ldexp lgamma llrint llround log
    log10 log1p log2 logb lrint lround modf nan nearbyint nextafter norm norm3d norm4d normcdf pow powi rcbrt
    remainder rhypot rint rnorm3d round rsqrt scalbn scalbln sin sincos sincospi sinh sinpi sqrt tan tanh tgamma
    trunc y0 y1
""")
_FAST: Final = words("cosf exp10f expf fdividef log10f log2f logf powf sincosf sinf tanf saturatef frcp_rn frsqrt_rn")
_MODES: Final = words("rn rz ru rd")
_ROUNDING: Final = words("fadd fsub fmul fdiv fmaf frcp fsqrt dadd dsub dmul ddiv fma drcp dsqrt")
_ROUNDED: Final = [f"{operation}_{mode}" for operation, mode in product(_ROUNDING, _MODES)]
_NUMBERS: Final = words("float double int uint ll ull half")
_CONVERTED: Final = [
    f"{source}2{target}_{mode}"
    for source, target, mode in product(_NUMBERS, _NUMBERS | {"short", "ushort"}, _MODES)
    if source != target
]
_INTEGER: Final = words("""
    popc popcll clz clzll ffs ffsll brev brevll mulhi umulhi mul64hi umul64hi mul24 umul24 sad usad hadd rhadd
    uhadd urhadd byte_perm funnelshift_l funnelshift_r funnelshift_lc funnelshift_rc float_as_int float_as_uint
    int_as_float uint_as_float double_as_longlong longlong_as_double hiloint2double double2hiint double2loint
    ldg ldca ldcg ldcs ldcv
""")
_HALF: Final = words("""
    hadd hsub hmul hdiv hfma hneg habs hmax hmin heq hne hlt hle hgt hge hadd2 hsub2 hmul2 hfma2 half2float
    float2half float2half2_rn half22float2 low2float high2float floats2half2_rn halves2half2 low2half high2half
    half2half2 float22half2_rn float2bfloat16 bfloat162float
""")
_BUILTIN_MATH: Final = words("""
    fma sqrt fabs floor ceil trunc round rint exp exp2 log log2 log10 pow sin cos fmin fmax copysign nearbyint
""")
_BUILTIN: Final = words("""
    isnan isinf isfinite signbit expect expect_with_probability assume assume_aligned clz clzll ctz ctzll ffs
    ffsll popcount popcountll bswap32 bswap64 bitreverse32 bitreverse64 inf inff nan nanf huge_val huge_valf
    nontemporal_load unreachable elementwise_min elementwise_max elementwise_abs elementwise_fma
    is_constant_evaluated amdgcn_rcpf amdgcn_rcp amdgcn_rsqf amdgcn_rsq amdgcn_sqrtf amdgcn_exp2f amdgcn_logf
    amdgcn_sinf amdgcn_cosf amdgcn_fractf amdgcn_ldexpf amdgcn_fmed3f amdgcn_ubfe amdgcn_sbfe amdgcn_alignbit
    amdgcn_alignbyte amdgcn_perm amdgcn_sad_u8 amdgcn_lerp amdgcn_sdot2 amdgcn_udot2 amdgcn_sdot4 amdgcn_udot4
    amdgcn_sdot8 amdgcn_udot8 amdgcn_fdot2 amdgcn_cvt_pkrtz amdgcn_workitem_id_x amdgcn_workitem_id_y
    amdgcn_workitem_id_z amdgcn_workgroup_id_x amdgcn_workgroup_id_y amdgcn_workgroup_id_z amdgcn_mbcnt_lo
    amdgcn_mbcnt_hi
""")
#: Functions that compute from their arguments alone (or read memory plainly): copies of a call may be reordered.
PURE_CALLS: Final = (
    _MATH
    | frozenset(f"{name}f" for name in _MATH)
    | frozenset(f"__{name}" for name in (*_FAST, *_ROUNDED, *_CONVERTED, *_INTEGER, *_HALF))
    | frozenset(f"__builtin_{name}{suffix}" for name in _BUILTIN_MATH for suffix in ("", "f"))
    | frozenset(f"__builtin_{name}" for name in _BUILTIN)
    | frozenset(f"make_{name}" for name in VECTOR_TYPES)
    | words("min max abs labs llabs umin umax fminf fmaxf isnan isinf isfinite signbit clamp swap move")
    | words("static_cast reinterpret_cast const_cast sizeof alignof alignas decltype noexcept")
)

_BARRIER: Final = re.compile(
    r"__syncthreads\w*|__syncwarp|__threadfence\w*|__barrier\w*|__builtin_amdgcn_(?:s_barrier\w*|s_wait\w*|fence"
    r"|wave_barrier|sched_barrier|sched_group_barrier|s_sleep|s_setprio|ds_gws\w*)|__ockl_\w*sync\w*"
    r"|cooperative_groups|this_grid|this_thread_block|tiled_partition|coalesced_threads|hip_syncthreads|__nv_cp\w*"
    r"|atomic_work_item_fence|__work_group_barrier|barrier|__sync_synchronize"
)
_CROSS_LANE: Final = re.compile(
    r"__shfl\w*|__ballot\w*|__any\w*|__all\w*|__activemask\w*|__match_\w+|__reduce_\w+_sync|__lane_id|__lanemask_\w+"
    r"|__builtin_amdgcn_\w*(?:dpp\w*|permute\w*|permlane\w*|readlane\w*|readfirstlane\w*|writelane\w*|swizzle\w*"
    r"|ballot\w*|mfma\w*|wmma\w*|smfmac\w*|icmp\w*|fcmp\w*|uicmp\w*|inverse_ballot\w*|read_exec\w*|set_inactive\w*"
    r"|strict_w[qw]m\w*|wqm\w*)|__ockl_(?:readuplane|wfred|wfscan|activelane)\w*|__hip_ds_\w+|__hip_move_dpp\w*"
)
_ATOMIC: Final = re.compile(
    r"(?:unsafe|safe)?[aA]tomic[A-Z_]\w*|atomic|atomic_\w+|__hip_atomic_\w+|__atomic_\w+|__sync_(?!thr|war)\w+"
    r"|__scoped_atomic_\w+|__opencl_atomic_\w+|__builtin_amdgcn_\w*(?:atomic|ds_f(?:add|min|max))\w*|memory_order\w*"
    r"|fetch_(?:add|sub|and|or|xor|min|max)|compare_exchange\w*"
)


def hazard_of(name: str) -> Literal["barrier", "cross_lane", "atomic"] | None:
    """Classify a name as a `barrier`, a `cross_lane` or an `atomic` operation; None for every other name."""
    if _BARRIER.fullmatch(name):
        return "barrier"
    if _CROSS_LANE.fullmatch(name):
        return "cross_lane"
    return "atomic" if _ATOMIC.fullmatch(name) else None


def is_type(name: str) -> bool:
    """Return whether a call of this name converts to a type of the language or of HIP."""
    return name in TYPES
