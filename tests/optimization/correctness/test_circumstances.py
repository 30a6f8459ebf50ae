"""A candidate is called in every circumstance that a right answer does not depend on, and one that depends is found."""

from collections.abc import Callable

import numpy as np
import pytest

from aaco_pipeline.optimization.calls import ASCENDING, DESCENDING, Call, Circumstances, Content, Execution
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.correctness.checking import check
from aaco_pipeline.optimization.correctness.circumstances import draw_pair, told
from aaco_pipeline.optimization.harness import Launch, buffer, make_call, output
from tests.optimization.harness.row_dot import HARNESS, Numpy, in_order

CALL = make_call(
    Launch((1, 1, 1), (1, 1, 1)),
    buffer("x", np.ones(3, np.float32)),
    output("out", 3),
    output("found", 3, "uint8"),
    buffer("kept", np.ones(3, np.float32), role="inout"),
)


class Obliging(Numpy):
    """A worker whose outputs hold what the call says, and whose kernel is wrong under some circumstances."""

    def __init__(self, is_wrong: Callable[[Circumstances], bool], *, writes: bool = True) -> None:
        super().__init__(in_order)
        self.is_wrong, self.writes = is_wrong, writes
        self.seen: list[Circumstances] = []

    def run(self, call: Call) -> Execution:
        given = call.circumstances
        self.seen.append(given)
        out = super().run(call).outputs["out"].copy()
        if self.is_wrong(given):
            old = given.before.get("out")
            out[0] = old[0] if old is not None and not self.writes else np.float32(3.0e30)
        return Execution({"out": out}, None, before=given.before)


def checked(worker: Obliging, seed: int) -> None:
    size = HARNESS.timing_size
    baseline = Obliging(lambda given: False)
    check(HARNESS, baseline, worker, seed=seed, bit_exact=False, timed_size=size)
    assert set(map(told, baseline.seen)) == {""}, "the baseline is called as in use"


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    "worker",
    [
        Obliging(lambda given: given.order == DESCENDING),
        Obliging(lambda given: given.order > DESCENDING),
        Obliging(lambda given: given.order == ASCENDING),
        Obliging(lambda given: given.is_aligned),
        Obliging(lambda given: not given.is_aligned),
        Obliging(lambda given: given.keeps_lds),
        Obliging(lambda given: bool(given.before), writes=False),
        Obliging(lambda given: given.is_aligned and given.keeps_lds and given.order > DESCENDING),
    ],
    ids=["descending", "random", "ascending", "aligned", "displaced", "left", "old", "several"],
)
def test_what_is_right_in_some_circumstances_alone_is_refused(worker: Obliging, seed: int) -> None:
    with pytest.raises(Refused) as caught:
        checked(worker, seed)
    assert caught.value.guard in ("outputs", "determinism")


def test_a_right_kernel_is_called_in_all_of_them_and_passes() -> None:
    worker = Obliging(lambda given: False)
    checked(worker, 5)
    seen = {(min(one.order, 2), one.is_aligned, one.keeps_lds, bool(one.before)) for one in worker.seen}
    assert len(seen) == 3 * 2 * 2 * 2
    assert len({one.order for one in worker.seen}) > 50


def test_of_two_calls_each_has_what_the_other_has_not() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        one, other = draw_pair(CALL, None, rng)
        assert one.order != other.order and (one.is_aligned, one.keeps_lds) == (
            not other.is_aligned,
            not other.keeps_lds,
        )
        assert bool(one.before) != bool(other.before)
        (old,) = (given for given in (one.before, other.before) if given)
        kinds = {name: (values.dtype.name, values.size) for name, values in old.items()}
        assert kinds == {"out": ("float32", 3), "found": ("uint8", 3)}


def test_old_values_are_an_earlier_calls_and_finite() -> None:
    earlier: dict[str, Content] = {
        "out": np.array([np.nan, -np.inf, 5.0], np.float32),
        "found": np.array([7, 8, 9], np.uint8),
    }
    pair = draw_pair(CALL, earlier, np.random.default_rng(1))
    (old,) = (given.before for given in pair if given.before)
    assert np.isfinite(old["out"]).all() and old["out"][2] == 5 and old["found"].tolist() == [7, 8, 9]


def test_a_refusal_says_under_what_it_was_called() -> None:
    given = Circumstances(DESCENDING, is_aligned=True, keeps_lds=True, before={"out": np.ones(1, np.float32)})
    assert told(given) == (
        "work-items in descending order, buffers at multiples of 256 bytes, local data share as it was left, "
        "outputs with old values"
    )
    with pytest.raises(Refused, match=r"buffers at multiples of 256 bytes, .*outputs with old values"):
        checked(Obliging(lambda one: one.is_aligned and bool(one.before)), 1)
