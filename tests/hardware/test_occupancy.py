"""Occupancy matches hand-computed limits, and the table of a session's kernels follows from it."""

import re
from typing import Any, Final

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.formats import kineto
from aaco_pipeline.hardware.architecture_files import architecture, architectures
from aaco_pipeline.hardware.occupancy import INPUTS, OUTPUTS, kernel_occupancy, occupancy, why_no_limits
from aaco_pipeline.lake.contracts import polars_types
from tests.places import SHARED

Row = tuple[int | None, ...]
SLOTS, GROUPS, VECTOR, LDS, SCALAR, SIZE = (
    *("wavefront slots", "workgroup slots", "vector registers", "LDS", "scalar registers"),
    "workgroup size",
)
#: Architecture; vector, accumulation, scalar registers, LDS, work-items, wavefront; work-groups, ratio, limiter; sum.
BY_HAND: Final = [
    # gfx90a: 512 rows in steps of 8, 8 waves a SIMD, 32 slots a CU, 64 KiB LDS in steps of 512, 800 scalar in 16.
    ("gfx90a", (64, 0, 16, 0, 256, 64), 8, 1.0, SLOTS, "512/64=8 waves, 32 slots/4 waves=8 groups"),
    ("gfx90a", (65, 0, 16, 0, 256, 64), 7, 28 / 32, VECTOR, "65→72, 512/72=7 waves, 28/4=7"),
    ("gfx90a", (96, 40, 16, 0, 256, 64), 3, 12 / 32, VECTOR, "96+40=136, 512/136=3 waves, 12/4=3"),
    ("gfx90a", (97, 32, 16, 0, 256, 64), 3, 12 / 32, VECTOR, "97→100, +32=132→136, 512/136=3"),
    ("gfx90a", (62, 2, 16, 0, 256, 64), 7, 28 / 32, VECTOR, "62→64, +2=66→72, 512/72=7: without the 4 it were 8"),
    ("gfx90a", (256, 256, 16, 0, 256, 64), 1, 4 / 32, VECTOR, "512/512=1 wave, 4/4=1"),
    ("gfx90a", (128, 0, 16, 0, 1024, 64), 1, 16 / 32, VECTOR, "512/128=4 waves, 16/16=1"),
    ("gfx90a", (72, 0, 16, 0, 1024, 64), 1, 16 / 32, VECTOR, "512/72=7 waves, 28/16=1: 12 waves find no group"),
    ("gfx90a", (24, 0, 16, 20000, 256, 64), 3, 12 / 32, LDS, "20000→20480, 65536/20480=3"),
    ("gfx90a", (24, 0, 16, 16384, 256, 64), 4, 16 / 32, LDS, "65536/16384=4"),
    ("gfx90a", (24, 0, 16, 16385, 256, 64), 3, 12 / 32, LDS, "16385→16896, 65536/16896=3"),
    ("gfx90a", (24, 0, 16, 65536, 64, 64), 1, 1 / 32, LDS, "65536/65536=1 group of 1 wave"),
    ("gfx90a", (24, 0, 112, 0, 256, 64), 7, 28 / 32, SCALAR, "800/112=7 waves, 28/4=7"),
    ("gfx90a", (24, 0, 97, 0, 256, 64), 7, 28 / 32, SCALAR, "97→112, 800/112=7"),
    ("gfx90a", (24, 0, 96, 0, 256, 64), 8, 1.0, SLOTS, "800/96=8 waves"),
    ("gfx90a", (24, 0, 16, 0, 64, 64), 32, 1.0, SLOTS, "groups of 1 wave take no barrier: 32"),
    ("gfx90a", (24, 0, 16, 0, 1, 64), 32, 1.0, SLOTS, "1 work-item is 1 wave: 32"),
    ("gfx90a", (24, 0, 16, 0, 128, 64), 16, 1.0, SLOTS, "32/2=16, as many as barriers"),
    ("gfx90a", (24, 0, 16, 0, 768, 64), 2, 24 / 32, SIZE, "32/12=2, 24 of 32 slots"),
    ("gfx90a", (24, 0, 16, 0, 192, 64), 10, 30 / 32, SIZE, "32/3=10, 30 of 32 slots"),
    ("gfx90a", (24, 0, 16, 0, 257, 64), 6, 30 / 32, SIZE, "257 are 5 waves, 32/5=6"),
    # gfx942: as gfx90a.
    ("gfx942", (4, 4, 16, 0, 256, 64), 8, 1.0, SLOTS, "4+4=8, 32/4=8"),
    ("gfx942", (128, 128, 16, 32768, 256, 64), 2, 8 / 32, VECTOR, "256: 2 waves, 8/4=2; LDS admits 2 as well"),
    # gfx950: 160 KiB of LDS in steps of 1280.
    ("gfx950", (24, 0, 16, 65536, 256, 64), 2, 8 / 32, LDS, "65536→66560 (52×1280), 163840/66560=2"),
    ("gfx950", (24, 0, 16, 40960, 512, 64), 4, 1.0, SLOTS, "163840/40960=4 groups, 32/8=4 slots"),
    ("gfx950", (24, 0, 16, 40961, 512, 64), 3, 24 / 32, LDS, "40961→42240, 163840/42240=3"),
    # gfx906, gfx908: 256 rows in steps of 4, 10 waves, 40 slots; accumulation registers beside, on gfx908.
    ("gfx906", (24, 0, 16, 0, 256, 64), 10, 1.0, SLOTS, "256/24=10 waves, 40/4=10"),
    ("gfx906", (25, 0, 16, 0, 256, 64), 9, 36 / 40, VECTOR, "25→28, 256/28=9 waves, 36/4=9"),
    ("gfx906", (24, 0, 81, 0, 256, 64), 8, 32 / 40, SCALAR, "81→96, 800/96=8"),
    ("gfx906", (24, 0, 16, 0, 128, 64), 16, 32 / 40, GROUPS, "40/2=20, but 16 barriers: 32 of 40 slots"),
    ("gfx908", (32, 64, 16, 0, 256, 64), 4, 16 / 40, VECTOR, "max(32,64)=64, 256/64=4"),
    ("gfx908", (64, 32, 16, 0, 256, 64), 4, 16 / 40, VECTOR, "max(64,32)=64, 256/64=4"),
    ("gfx908", (128, 0, 16, 0, 1024, 64), None, None, None, "256/128=2 waves, 8 < 16: cannot have run"),
    # gfx1100: a work-group processor of 4 SIMDs, 1536 rows in 24 (wave32), 16 waves, 64 slots, 128 KiB LDS in 1024.
    ("gfx1100", (96, 0, 128, 0, 256, 32), 8, 1.0, SLOTS, "1536/96=16 waves, 64/8=8"),
    ("gfx1100", (97, 0, 128, 0, 256, 32), 6, 48 / 64, VECTOR, "97→120, 1536/120=12 waves, 48/8=6"),
    ("gfx1100", (97, 0, 128, 0, 256, 64), 7, 28 / 64, VECTOR, "97→108, 768/108=7 waves, 28/4=7"),
    ("gfx1100", (256, 0, 128, 0, 128, 32), 5, 20 / 64, VECTOR, "256→264, 1536/264=5 waves, 20/4=5"),
    ("gfx1100", (32, 0, 128, 20000, 256, 32), 6, 48 / 64, LDS, "20000→20480, 131072/20480=6"),
    ("gfx1100", (32, 0, 128, 0, 64, 32), 32, 1.0, SLOTS, "64/2=32, as many as barriers"),
    ("gfx1100", (32, 0, 128, 0, 32, 32), 64, 1.0, SLOTS, "groups of 1 wave: 64"),
    ("gfx1151", (168, 0, 128, 0, 128, 32), 9, 36 / 64, VECTOR, "1536/168=9 waves, 36/4=9"),
    ("gfx1201", (193, 0, 128, 0, 128, 32), 7, 28 / 64, VECTOR, "193→216, 1536/216=7 waves"),
    # gfx1102: 1024 rows in steps of 16.
    ("gfx1102", (97, 0, 128, 0, 128, 32), 9, 36 / 64, VECTOR, "97→112, 1024/112=9 waves, 36/4=9"),
    # sm_90: 512 rows in 8 of each partition, 16 warps, 64 slots, 32 blocks, 228 KiB with 1 KiB kept of every block.
    ("sm_90", (32, 0, 0, 0, 128, 32), 16, 1.0, SLOTS, "512/32=16 warps, 64/4=16"),
    ("sm_90", (168, 0, 0, 0, 384, 32), 1, 12 / 64, VECTOR, "512/168=3 warps, 12/12=1"),
    ("sm_90", (32, 0, 0, 0, 32, 32), 32, 32 / 64, GROUPS, "32 blocks of 1 warp"),
    ("sm_90", (32, 0, 0, 49152, 256, 32), 4, 32 / 64, LDS, "49152+1024=50176, 233472/50176=4"),
    ("sm_90", (32, 0, 0, 46592, 256, 32), 4, 32 / 64, LDS, "46592+1024=47616, 233472/47616=4: without the 1024 5"),
    ("sm_80", (32, 0, 0, 49152, 256, 32), 3, 24 / 64, LDS, "49152+1024=50176, 167936/50176=3"),
]


def frame(*rows: Row) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=dict.fromkeys(INPUTS, pl.Int64), orient="row")


def reckoned(name: str, *rows: Row) -> pl.DataFrame:
    known = architecture(name)
    assert known is not None
    return occupancy(frame(*rows), known)


@pytest.mark.parametrize(
    ("name", "resources", "groups", "ratio", "limiter"),
    [case[:5] for case in BY_HAND],
    ids=[f"{case[0]} {case[1]}: {case[5]}" for case in BY_HAND],
)
def test_by_hand(name: str, resources: Row, groups: int | None, ratio: float | None, limiter: str | None) -> None:
    found = reckoned(name, (*resources, None, None)).row(0, named=True)
    assert found["workgroups_per_cu"] == groups
    assert found["theoretical_ratio"] == ratio
    assert found["limiter"] == limiter


@pytest.mark.parametrize(
    ("name", "resources", "ratio", "step"),
    [
        # 136 registers admit 3 waves; 4 waves have 512/4=128 each.
        ("gfx90a", (96, 40, 16, 0, 256, 64), 16 / 32, "vector registers: 136 to 128"),
        # Two groups of 16 waves are 8 a SIMD: 512/8=64.
        ("gfx90a", (72, 0, 16, 0, 1024, 64), 1.0, "vector registers: 72 to 64"),
        # 10 waves of 24 a SIMD; 9 waves of 28.
        ("gfx906", (33, 0, 16, 0, 256, 64), 32 / 40, "vector registers: 33 to 32"),
        # 12 waves; 7 groups of 8 are 14 waves a SIMD, 1536/14=109 down to 96, which admits even 16.
        ("gfx1100", (97, 0, 128, 0, 256, 32), 1.0, "vector registers: 97 to 96"),
        # 3 groups; 4 have 65536/4=16384 each.
        ("gfx90a", (24, 0, 16, 20000, 256, 64), 16 / 32, "LDS: 20000 to 16384 bytes"),
        # 2 groups; 3 have 163840/3=54613 each, down to 42×1280=53760.
        ("gfx950", (24, 0, 16, 65536, 256, 64), 12 / 32, "LDS: 65536 to 53760 bytes"),
        # 4 blocks; 5 have 233472/5=46694 each, down to 364×128=46592, of which the system keeps 1024.
        ("sm_90", (32, 0, 0, 49152, 256, 32), 40 / 64, "LDS: 49152 to 45568 bytes"),
        # 7 waves; 8 have 800/8=100 each, down to 96.
        ("gfx90a", (24, 0, 112, 0, 256, 64), 1.0, "scalar registers: 112 to 96"),
        # 12 waves: 2 groups are 24 of 32; 11 waves: 2 are 22; 10 waves: 3 are 30.
        ("gfx90a", (24, 0, 16, 0, 768, 64), 30 / 32, "workgroup size: 768 to 640 work-items"),
        # 16 groups of 2 waves are 32 of 40; of 3 waves 13 are 39.
        ("gfx906", (24, 0, 16, 0, 128, 64), 39 / 40, "workgroup size: 128 to 192 work-items"),
        # Registers admit 2 groups, and so does LDS: less of one alone admits no more.
        ("gfx942", (128, 128, 16, 32768, 256, 64), None, None),
        ("gfx90a", (64, 0, 16, 0, 256, 64), None, None),
        # 7 waves; 8 have 512/8=64.
        ("gfx90a", (65, 0, 16, 0, 256, 64), 1.0, "vector registers: 65 to 64"),
    ],
)
def test_the_next_step_by_hand(name: str, resources: Row, ratio: float | None, step: str | None) -> None:
    found = reckoned(name, (*resources, None, None)).row(0, named=True)
    assert (found["next_ratio"], found["next_step"]) == (ratio, step)


@pytest.mark.parametrize(
    ("name", "grid", "units", "rounds", "tail"),
    [
        # gfx90a, 8 groups a CU, 104 CUs: 832 at once.
        ("gfx90a", 832 * 256, 104, 1.0, 0.0),
        ("gfx90a", 416 * 256, 104, 0.5, 0.5),
        ("gfx90a", 1040 * 256, 104, 1.25, 0.375),
        # 1000 work-items are 4 groups, the last one not full.
        ("gfx90a", 1000, 1, 0.5, 0.5),
        ("gfx90a", None, 104, None, None),
        ("gfx90a", 832 * 256, None, None, None),
        ("gfx90a", 832 * 256, 0, None, None),
        # gfx1100 in wave32, 8 groups a work-group processor, 96 CUs are 48 of them: 384 at once.
        ("gfx1100", 384 * 256, 96, 1.0, 0.0),
        ("gfx1100", 960 * 256, 96, 2.5, 0.5 / 3),
    ],
)
def test_the_grid_by_hand(
    name: str, grid: int | None, units: int | None, rounds: float | None, tail: float | None
) -> None:
    size = 64 if name == "gfx90a" else 32
    found = reckoned(name, (64, 0, 16, 0, 256, size, grid, units)).row(0, named=True)
    assert (found["grid_waves_ratio"], found["tail_ratio"]) == (rounds, pytest.approx(tail))


def test_the_columns_are_the_contracts() -> None:
    declared = polars_types("occupancy")
    assert {name: declared[name] for name in OUTPUTS} == dict(OUTPUTS)
    assert set(declared) - set(OUTPUTS) == {"kernel_id", "dispatch_id", "achieved_ratio"}


@pytest.mark.parametrize("missing", range(5))
def test_a_resource_that_is_not_stated_leaves_the_row_null(missing: int) -> None:
    row = [64, 0, 16, 0, 256, 64, 1 << 20, 104]
    blank = [None if at == missing else value for at, value in enumerate(row)]
    found = reckoned("gfx90a", tuple(row), tuple(blank), tuple(row))
    assert found.row(1) == (None,) * len(OUTPUTS)
    assert found.row(0) == found.row(2) != found.row(1)


def test_what_the_architecture_leaves_no_choice_of_need_not_be_stated() -> None:
    assert reckoned("gfx90a", (64, 0, 16, 0, 256, None, None, None)).item(0, "theoretical_ratio") == 1.0
    assert reckoned("gfx906", (24, None, 16, 0, 256, 64, None, None)).item(0, "theoretical_ratio") == 1.0
    assert reckoned("gfx1100", (64, None, None, 0, 256, 32, None, None)).item(0, "theoretical_ratio") == 1.0
    assert reckoned("gfx1100", (64, None, None, 0, 256, None, None, None)).item(0, "theoretical_ratio") is None


@pytest.mark.parametrize(
    "resources",
    [
        (64, 0, 16, 65537, 256, 64),
        (64, 0, 16, 0, 1025, 64),
        (64, 0, 16, 0, 0, 64),
        (64, 0, 16, 0, 256, 32),
        (600, 0, 16, 0, 64, 64),
        (-1, 0, 16, 0, 64, 64),
    ],
)
def test_what_cannot_have_run_is_null(resources: Row) -> None:
    assert reckoned("gfx90a", (*resources, 1 << 20, 104)).row(0) == (None,) * len(OUTPUTS)


def test_a_cpu_has_no_occupancy_and_no_rows_give_no_rows() -> None:
    assert reckoned("x86_64", (64, 0, 16, 0, 256, 64, 1, 1)).row(0) == (None,) * len(OUTPUTS)
    assert reckoned("gfx942").height == 0
    assert reckoned("gfx942").schema == OUTPUTS


GPUS: Final = [one for one in architectures() if one.occupancy is not None]


@st.composite
def kernels(draw: st.DrawFn) -> tuple[str, list[Row]]:
    """An architecture and some kernels for it: vector, accumulation, scalar registers, LDS, work-items, wavefront."""
    known = draw(st.sampled_from(GPUS))
    accumulation = st.integers(0, 256) if known.name in ("gfx908", "gfx90a", "gfx942", "gfx950") else st.just(0)
    row = st.tuples(
        st.integers(1, 256),
        accumulation,
        st.integers(1, 112),
        st.one_of(st.just(0), st.integers(0, 65536)),
        st.one_of(st.integers(1, 1024), st.sampled_from([64, 128, 256, 512, 1024])),
        st.sampled_from(known.wavefront_sizes),
    )
    return known.name, draw(st.lists(row, min_size=1, max_size=16))


@given(kernels(), st.integers(0, 3), st.integers(1, 64))
def test_more_of_a_resource_never_raises_occupancy(some: tuple[str, list[Row]], which: int, more: int) -> None:
    name, rows = some
    fuller = [tuple((value or 0) + more * (at == which) for at, value in enumerate(row)) for row in rows]
    less = reckoned(name, *((*row, None, None) for row in rows)).get_column("theoretical_ratio").fill_null(0)
    full = reckoned(name, *((*row, None, None) for row in fuller)).get_column("theoretical_ratio").fill_null(0)
    assert ((full >= 0) & (full <= less) & (less <= 1)).all()


@given(kernels())
def test_the_next_step_reaches_what_it_promises_and_less_does_not(some: tuple[str, list[Row]]) -> None:
    name, rows = some
    advised = reckoned(name, *((*row, None, None) for row in rows)).with_row_index().drop_nulls("next_step")
    followed: list[Row] = []
    for at, text in advised.select("index", "next_step").rows():
        step = re.fullmatch(r"([a-zA-Z ]+): (\d+) to (\d+)( bytes| work-items)?", text)
        assert step is not None
        followed += [(*with_resource(rows[at], step[1], int(step[3]) + short), None, None) for short in (0, 1)]
    ratios = reckoned(name, *followed).get_column("theoretical_ratio")
    assert ((advised["theoretical_ratio"] < advised["next_ratio"]) & (advised["next_ratio"] <= 1)).all()
    assert ratios.gather_every(2).to_list() == advised["next_ratio"].to_list()
    resized = advised["next_step"].str.starts_with("workgroup size")
    short = ratios.gather_every(2, 1).filter(~resized)
    assert short.to_list() == advised["theoretical_ratio"].filter(~resized).to_list(), "one more is too much already"


def with_resource(resources: Row, what: str, value: int) -> Row:
    """The same kernel with as much of one resource; of both kinds of vector registers the second become none."""
    arch, accumulation, scalar, lds, items, size = resources
    if what == "vector registers":
        arch, accumulation = value, 0
    return (
        arch,
        accumulation,
        value if what == "scalar registers" else scalar,
        value if what == "LDS" else lds,
        value if what == "workgroup size" else items,
        size,
    )


def test_rows_keep_their_order_whatever_repeats_among_them() -> None:
    rows: list[Row] = [(64 + (at * 7) % 3 * 40, 0, 16, 0, 256, 64, 1 << 16, 104) for at in range(50)]
    together = reckoned("gfx90a", *rows)
    assert together.rows() == [reckoned("gfx90a", row).row(0) for row in rows]


@pytest.mark.parametrize("trace", ["elementwise_256mib", "item_each_kernel", "transformer_b1", "two_streams_overlap"])
def test_a_real_nvidia_trace_states_the_same(trace: str) -> None:
    """The profiler's own figure is of what the grid fills; it says 0 of all that use more than 48 KiB."""
    path = SHARED / "gpu_sessions/traces" / f"{trace}.json.gz"
    if not path.is_file():
        pytest.skip(f"no trace at {path}; set AACO_SHARED to the folder with gpu_sessions/")
    reading = kineto.read(path)
    known = architecture("sm_90")
    assert known is not None
    sizes = [pl.col(f"workgroup_{axis}").cast(pl.Int64) for axis in "xyz"]
    launches = (
        reading.tables["dispatches"]
        .join(reading.details["launch_facts"], on="dispatch_id", maintain_order="left")
        .select(
            "blocks_per_sm",
            "estimated_occupancy_percent",
            arch_vgprs="registers_per_thread",
            accum_vgprs=0,
            sgprs=0,
            lds_bytes="lds_allocated_bytes",
            workgroup_work_items=sizes[0] * sizes[1] * sizes[2],
            wavefront_size=32,
            grid_work_items=None,
            compute_units=None,
        )
    )
    resident = pl.min_horizontal(pl.col("workgroups_per_cu").cast(pl.Float64), "blocks_per_sm")
    waves = (pl.col("workgroup_work_items") / 32).ceil()
    compared = launches.hstack(occupancy(launches, known)).with_columns(filled=resident * waves / 64 * 100)
    assert compared.get_column("theoretical_ratio").null_count() == 0
    within = pl.col("lds_bytes") <= 48 << 10
    apart = (pl.col("filled") - pl.col("estimated_occupancy_percent")).abs()
    assert compared.filter(within, apart > 0.5).height == 0
    assert compared.filter(~within, pl.col("estimated_occupancy_percent") != 0).height == 0
    assert compared.filter(within).height > 0


def rows_of(table: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    schema = polars_types(table)
    return pl.DataFrame(rows, schema=schema)


DEVICE = {"device_id": 0, "vendor": "AMD", "arch": "gfx90a", "product": "AMD Instinct MI210", "compute_units": 104}
KERNEL = {"kernel_id": 0, "arch_vgprs": 64, "accum_vgprs": 0, "sgprs": 32, "static_lds_bytes": 0}
NOTHING_COUNTED = pl.DataFrame(schema={"dispatch_id": pl.Int32, "achieved_occupancy_ratio": pl.Float64})


def dispatch(number: int, took: int | None = 10, **launch: Any) -> dict[str, Any]:
    shape = {"workgroup_work_items": 256, "grid_work_items": 256 * 1000, "lds_allocated_bytes": 0}
    return {"dispatch_id": number, "kernel_id": 0, "device_id": 0, "self_ns": took, **shape, **launch}


def found(dispatches: list[dict[str, Any]], achieved: dict[int, float] | None = None, **device: Any) -> pl.DataFrame:
    counted = pl.DataFrame(
        {"dispatch_id": list(achieved or ()), "achieved_occupancy_ratio": list((achieved or {}).values())},
        schema=NOTHING_COUNTED.schema,
    )
    tables = (rows_of("dispatches", dispatches), rows_of("kernels", [KERNEL]), rows_of("devices", [DEVICE | device]))
    return kernel_occupancy(*tables, counted)


def test_equal_launches_are_one_row_of_the_kernel() -> None:
    rows = found([dispatch(0), dispatch(1)])
    # 64 registers: 512 / 64 = 8 wavefronts a SIMD, the most; 1000 groups on 104 units of 8 groups each.
    assert rows.select("dispatch_id", "theoretical_ratio").rows() == [(None, 1.0)]
    assert rows.item(0, "grid_waves_ratio") == 1000 / (104 * 8)


def test_launches_that_differ_have_rows_and_the_kernel_that_of_most_time() -> None:
    # 32 KiB of LDS: two groups of four wavefronts on a unit that holds 32.
    rows = found([dispatch(0, 10), dispatch(1, 30, lds_allocated_bytes=32768)])
    told = dict(rows.select("dispatch_id", "theoretical_ratio").iter_rows())
    assert told == {None: 0.25, 0: 1.0, 1: 0.25}


def test_a_counted_dispatch_has_a_row_and_the_kernel_the_mean_by_time() -> None:
    rows = found([dispatch(0, 10), dispatch(1, 30), dispatch(2, 1000)], {0: 0.2, 1: 0.6})
    assert dict(rows.select("dispatch_id", "achieved_ratio").iter_rows()) == {None: 0.5, 0: 0.2, 1: 0.6}


def test_without_times_every_counted_dispatch_weighs_the_same() -> None:
    rows = found([dispatch(0, None), dispatch(1, None)], {0: 0.2, 1: 0.6})
    assert rows.filter(pl.col("dispatch_id").is_null()).item(0, "achieved_ratio") == 0.4


def test_compute_units_that_the_product_cannot_have_do_not_count() -> None:
    product: dict[str, Any] = {"arch": "gfx950", "product": "AMD Instinct MI350X"}
    stated = found([dispatch(0)], None, compute_units=128, xcc_count=8, **product).item(0, "grid_waves_ratio")
    real = found([dispatch(0)], None, compute_units=256, xcc_count=8, **product).item(0, "grid_waves_ratio")
    assert stated == real == 1000 / (256 * 8)


def test_an_unknown_architecture_states_nothing_but_what_was_counted() -> None:
    assert found([dispatch(0)], arch="gfx000").is_empty()
    rows = found([dispatch(0)], {0: 0.3}, arch="gfx000")
    assert rows.get_column("achieved_ratio").to_list() == [0.3, 0.3]


@pytest.mark.parametrize("arch", ["gfx1250", "gfx1300", "gfx9999"])
def test_of_an_unknown_architecture_no_occupancy_is_reckoned(arch: str) -> None:
    assert found([dispatch(0)], arch=arch).is_empty()
    devices = rows_of("devices", [DEVICE | {"arch": arch}])
    assert (why_no_limits(devices) is not None) == (arch == "gfx1250")


def test_known_limits_need_no_reason() -> None:
    assert why_no_limits(rows_of("devices", [DEVICE])) is None
