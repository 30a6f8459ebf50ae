"""Secrets that are known by how they look: tokens with a maker's beginning, key blocks, passwords within addresses.

Secrets that are known by what stands before them are `keys`'s.
"""

import re
from functools import cache
from typing import Final

#: Each shape by text that it must hold, and what the whole looks like from there; the group `s` is the secret alone.
#: Texts in lower case are looked for in any case when their pattern says so.
SHAPES: Final[tuple[tuple[bytes, bytes], ...]] = (
    # code hosts, registries and models
    *((b"gh" + kind + b"_", rb"gh\w_[A-Za-z0-9]{20,255}") for kind in (b"p", b"o", b"s", b"u", b"r")),
    (b"github_pat_", rb"github_pat_\w{20,255}"),
    *(
        (kind, kind + rb"[\w-]{20,64}")
        for kind in (b"glpat-", b"gldt-", b"glrt-", b"glptt-", b"glft-", b"glcbt-", b"glimt-", b"glsoat-", b"glagent-")
    ),
    (b"hf_", rb"hf_[A-Za-z0-9]{20,255}"),
    (b"api_org_", rb"api_org_[A-Za-z0-9]{20,64}"),
    (b"sk-", rb"sk-(?=[\w-]{0,128}\d)[\w-]{20,255}"),
    (b"gsk_", rb"gsk_[A-Za-z0-9]{20,255}"),
    (b"xai-", rb"xai-[A-Za-z0-9]{20,255}"),
    (b"nvapi-", rb"nvapi-[\w-]{20,255}"),
    (b"r8_", rb"r8_[A-Za-z0-9]{30,64}"),
    (b"pplx-", rb"pplx-[A-Za-z0-9]{30,64}"),
    (b"npm_", rb"npm_[A-Za-z0-9]{30,64}"),
    (b"pypi-A", rb"pypi-A[\w-]{15,1024}"),
    (b"rubygems_", rb"rubygems_[0-9a-f]{40,64}"),
    (b"dckr_", rb"dckr_(?:pat|oat)_[\w-]{20,64}"),
    (b"wandb_v1_", rb"wandb_v1_\w{20,255}"),
    # clouds
    (b"AKIA", rb"AKIA[0-9A-Z]{16}(?![0-9A-Za-z])"),
    (b"ASIA", rb"ASIA[0-9A-Z]{16}(?![0-9A-Za-z])"),
    (b"AIza", rb"AIza[\w-]{30,64}"),
    (b"ya29.", rb"ya29\.[\w-]{20,1024}"),
    (b"GOCSPX-", rb"GOCSPX-[\w-]{20,64}"),
    (b"1//0", rb"1//0[\w-]{30,255}"),
    (b"dapi", rb"dapi[0-9a-f]{32}(?:-\d)?(?![0-9A-Za-z])"),
    (b"dop_v1_", rb"dop_v1_[0-9a-f]{40,64}"),
    *((kind, re.escape(kind) + rb"[\w-]{20,255}") for kind in (b"hvs.", b"hvb.", b"hvr.")),
    (b"glsa_", rb"glsa_\w{30,64}"),
    (b"tskey-", rb"tskey-\w{3,16}-[\w-]{16,128}"),
    # messages, mail and money
    (b"xox", rb"xox[abeoprs]-[A-Za-z0-9-]{10,255}"),
    (b"xapp-", rb"xapp-\d-[A-Za-z0-9-]{20,255}"),
    (b"hooks.slack.com/", rb"hooks\.slack\.com/(?:services|workflows)/(?P<s>[\w/-]{10,255})"),
    (b"/api/webhooks/", rb"/api/webhooks/(?P<s>\d{8,32}/[\w-]{20,255})"),
    (b":AA", rb":AA[\w-]{33}(?![\w-])"),
    (b"SG.", rb"SG\.[\w-]{16,64}\.[\w-]{16,128}"),
    (b"key-", rb"key-[0-9a-f]{32}(?![0-9A-Za-z])"),
    *(
        (kind + mode, kind + mode + rb"_[A-Za-z0-9]{10,255}")
        for kind in (b"sk", b"rk")
        for mode in (b"_live", b"_test")
    ),
    (b"whsec_", rb"whsec_[A-Za-z0-9+/=]{20,255}"),
    *((kind, kind + rb"[0-9a-fA-F]{32}") for kind in (b"shpat_", b"shpss_", b"shpca_", b"shppa_")),
    (b"ATATT3", rb"ATATT3[\w=-]{20,512}"),
    (b"lin_api_", rb"lin_api_[A-Za-z0-9]{20,64}"),
    (b"figd_", rb"figd_[\w-]{20,64}"),
    (b"PMAK-", rb"PMAK-[0-9a-f-]{30,128}"),
    # signed objects and key blocks, the latter also as base64
    (b"eyJ", rb"eyJ[\w-]{10,4096}\.[\w-]{4,8192}(?:\.[\w-]{0,4096}){0,3}"),
    (
        b"-----BEGIN ",
        rb"-----BEGIN [A-Z0-9 ]{0,32}PRIVATE KEY(?: BLOCK)?-----"
        rb"(?:[^-]{0,24000}?-----END [A-Z0-9 ]{0,32}PRIVATE KEY(?: BLOCK)?-----|(?:[\w+/=\s:,]|\\[nr]){0,24000})",
    ),
    (b"LS0tLS1CRUdJTiB", rb"LS0tLS1CRUdJTiB[QSFPE][A-Za-z0-9+/=]{40,24000}"),
    (b"AGE-SECRET-KEY-", rb"AGE-SECRET-KEY-[0-9A-Z]{20,128}"),
    # a log-in as curl, SQL and netrc write it
    (b"bearer ", rb"(?i:bearer)\s{1,4}(?P<s>(?:(?=[\w.~+/-]{0,255}\d)[\w.~+/-]{8,4096}|[\w.~+/-]{24,4096})=*)"),
    (b"basic ", rb"(?i:basic)\s{1,4}(?P<s>[A-Za-z0-9+/]{8,1024}={0,2})"),
    (b"identified by ", rb"(?i:identified by)\s{1,4}'(?P<s>[^'\n]{1,256})"),
    (b"login ", rb"(?i:login)\s{1,4}(?P<s>(?=[A-Za-z]{0,255}\d)[A-Za-z0-9]{24,255})(?![\w.-])"),
    (b"login ", rb"(?i:login)\s{1,8}\S{1,128}\s{1,8}(?i:password)\s{1,8}(?P<s>[^\s\"'\\]{1,256})"),
)
#: Shapes whose beginnings are in every trace: who logs in, in an address (user:password@host, or a long token alone).
FREQUENT: Final[tuple[tuple[bytes, bytes], ...]] = (
    (b"SK", rb"SK[0-9a-f]{32}(?![0-9A-Za-z])"),
    *(
        (
            slashes,
            re.escape(slashes) + rb"(?P<s>[^\s/\\@\"'<>:,]{0,128}:[^\s/\\\"'<>,]{1,256}|(?=[\w~.%+-]{0,64}\d)"
            rb"[\w~.%+-]{16,256})@(?!sha256:)",
        )
        for slashes in (b"://", b":\\/\\/")
    ),
)
#: Shapes found wherever they stand: no letter before them makes them part of a longer word.
_ANYWHERE: Final = frozenset(
    {b"github_pat_", b"hooks.slack.com/", b"/api/webhooks/", b":AA", b"-----BEGIN ", b"://", b":\\/\\/"}
)
#: Shapes in lower case that are looked for in any case.
ANY_CASE: Final = frozenset({b"bearer ", b"basic ", b"identified by ", b"login "})
_WORD: Final = re.compile(rb"[A-Za-z0-9]")
#: A word begins after these, although they end with a letter or digit: escapes of JSON and of addresses.
_ESCAPE: Final = re.compile(rb".*(?:\\[nrtbf]|%[0-9A-Fa-f]{2}|\\u00[0-9a-f]{2})", re.DOTALL)


@cache
def pattern(shape: bytes) -> re.Pattern[bytes]:
    """The pattern of a shape, compiled when the shape's beginning is first met."""
    return re.compile(shape)


def begins(content: bytes, at: int, anchor: bytes) -> bool:
    """Whether a secret may begin at this place, or a longer word goes on there."""
    if at == 0 or anchor in _ANYWHERE or not _WORD.match(content, at - 1):
        return True
    return _ESCAPE.fullmatch(content, max(0, at - 6), at) is not None
