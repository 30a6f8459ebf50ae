"""Contents of buffers are what their name says, in every type and of every length."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.optimization.harness import DISTRIBUTIONS, Distribution, draw, indices, integers, rounding_bound
from aaco_pipeline.optimization.harness.contents import mixture

TYPES = ("float16", "float32", "float64")
SEEDS = st.integers(0, 1 << 32)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_distribution_is_what_its_name_says(distribution: Distribution, dtype: str) -> None:
    limits = np.finfo(dtype)
    values = draw(distribution, np.random.default_rng(5), 4000, dtype)
    assert values.dtype == dtype and values.size == 4000
    size = np.abs(values.astype(np.float64))
    with np.errstate(over="ignore", invalid="ignore"):
        facts = {
            "normal": 0.6 < np.median(size) < 0.75 and size.max() > 3,
            "uniform": size.max() <= 1 and (values >= 0).all() and np.median(size) > 0.4,
            "tiny": 0 < np.median(size) < 2.0 ** (limits.minexp / 3 + 1),
            "denormal": 0 < size.max() <= 1000 * float(limits.smallest_subnormal),
            "huge": 2.0 ** (limits.maxexp // 3 - 2) < np.median(size) and np.isfinite(size.max() ** 2),
            "constant": np.unique(values).size == 1,
            "zeros": not size.any() and not np.signbit(values).any(),
            "sparse": 0 < np.count_nonzero(values) < 400,
            "negative_zero": not size.any() and 1000 < np.signbit(values).sum() < 3000,
            "nan": 0 < np.isnan(values).sum() < 400,
            "inf": 0 < np.isinf(values).sum() < 400 and not np.isnan(values).any(),
            "ties": {*values} <= {-2, -1, 0, 1, 2} and len({*values}) > 1,
            "runs": 1 < np.count_nonzero(values[1:] != values[:-1]) < 3000,
            "spread": 0.2 < np.ptp(np.clip(values, -1e4, 1e4).astype(np.float64)) / np.log(float(limits.max)) < 1,
            "scales": (limits.maxexp < 99)
            or np.quantile(size, 0.9) > 2.0 ** (limits.maxexp // 9) * np.quantile(size, 0.1),
            "masked": 0 < (values < limits.min / 4).sum() < 4000 and np.isfinite(values).all(),
            "infinite_mask": (values == -np.inf).sum() > 0 and not np.isnan(values).any() and (values < np.inf).all(),
            "overflow": np.isnan(values).any() and (size == np.inf).sum() > np.isnan(values).sum(),
            "mixed": True,
        }
    assert facts[distribution]


def test_where_each_input_has_its_own_kind_zeros_meet_infinities_and_scales_differ() -> None:
    """And no kind comes that the harness leaves out."""
    rng, met, ratios = np.random.default_rng(3), 0, []
    for _ in range(200):
        kind = mixture(("normal", "zeros", "inf", "sparse", "mixed"), rng)
        assert kind == "mixed" and f"{kind}" == "mixed"
        one, other = draw(kind, rng, 100), draw(kind, rng, 100)
        assert not np.isnan(one).any() and not np.isnan(other).any()
        met += any((not a.any() and np.isinf(b).any()) for a, b in ((one, other), (other, one)))
        finite = [np.abs(values[np.isfinite(values)]).max(initial=0) for values in (one, other)]
        ratios += [finite[0] / finite[1]] if all(finite) else []
    assert met > 10 and max(ratios) > 1e4 and min(ratios) < 1e-4


@pytest.mark.parametrize("distribution", ["nan", "inf", "sparse"])
def test_one_element_is_planted_at_least(distribution: Distribution) -> None:
    (value,) = draw(distribution, np.random.default_rng(1), 1)
    assert {"nan": np.isnan(value), "inf": np.isinf(value), "sparse": value != 0}[distribution]


@given(st.sampled_from(DISTRIBUTIONS), st.integers(0, 50), st.integers(-300, 300), st.integers(1, 1 << 40), SEEDS)
def test_integers_lie_within_their_ends(
    distribution: Distribution, elements: int, low: int, span: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    values = integers(distribution, rng, elements, low=low, high=low + span, dtype="int64")
    assert values.size == elements and ((values >= low) & (values < low + span)).all()
    assert (indices(distribution, rng, elements, 7) < 7).all()


def test_there_is_no_integer_in_an_empty_range() -> None:
    with pytest.raises(ValueError, match="no integer lies from 3"):
        integers("normal", np.random.default_rng(1), 1, low=3, high=3)


@given(st.integers(1, 400), SEEDS, st.sampled_from(["normal", "uniform", "denormal"]))
def test_no_order_of_summation_leaves_the_bound(n: int, seed: int, distribution: Distribution) -> None:
    rng = np.random.default_rng(seed)
    a, b = draw(distribution, rng, n), draw(distribution, rng, n)
    exact = float(np.dot(a.astype(np.float64), b.astype(np.float64)))
    bound = float(rounding_bound(np.abs(a.astype(np.float64) * b).sum(), n))
    products = a * b
    for terms in (products, products[::-1], np.sort(products)):
        assert abs(float(np.cumsum(terms, dtype=np.float32)[-1]) - exact) <= bound
