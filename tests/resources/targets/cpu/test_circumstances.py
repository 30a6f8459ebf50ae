"""A call's circumstances are arranged as it says: orders, places, old values and what local data share holds."""

from collections.abc import Iterator, Mapping

import numpy as np
import pytest

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.targets import (
    ASCENDING,
    DESCENDING,
    Buffer,
    Call,
    Circumstances,
    Content,
    Launch,
    Layout,
    Parameter,
    Scalar,
)
from aaco_pipeline.resources.targets.cpu import CpuTarget
from aaco_pipeline.resources.targets.cpu.worker import CpuWorker

TARGET = CpuTarget(flags=("-O1", "-std=c++17"))
SOURCE = rb"""
__device__ int number() {
  int group = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  return (group * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
}

// Each work-item's number where it comes: out[0] counts, the others follow.
__global__ void arrivals(int* out, int n) { out[1 + atomicAdd(&out[0], 1)] = number(); }

// The same twice, with a barrier between.
__global__ void twice(int* out, int n) {
  out[1 + atomicAdd(&out[0], 1)] = number();
  __syncthreads();
  out[1 + atomicAdd(&out[0], 1)] = number();
}

// What local data share held, and n instead.
__global__ void left(int* out, int n) {
  __shared__ int held[64];
  int at = threadIdx.x;
  out[at] = held[at];
  held[at] = n;
}

__global__ void where(int* out, int n) {
  if (number() < n) out[number()] = (int)((size_t)out & 255);
}

__global__ void past(int* out, int n) { out[n] = 1; }

// A sum over the wavefront; where n is not 0, the two sides of a branch exchange with each other.
__global__ void sides(int* out, int n) {
  int sum = threadIdx.x;
  for (int step = 32; step > 0; step /= 2) {
    if (n != 0 && threadIdx.x & step) {
      sum = __shfl_xor(sum, step) + sum;
    } else {
      sum = sum + __shfl_xor(sum, step);
    }
  }
  out[threadIdx.x] = sum;
}
"""
PARAMETERS = (Parameter("out", "int", True, False), Parameter("n", "int", False, False))


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, CpuWorker]]:
    folder = tmp_path_factory.mktemp("built")
    names = ("arrivals", "twice", "left", "where", "past", "sides")
    started = {name: TARGET.start(TARGET.build(SOURCE, name, PARAMETERS, Layout(1), folder / name)) for name in names}
    yield {name: one.__enter__() for name, one in started.items()}
    for one in started.values():
        one.__exit__(None, None, None)


def call(launch: Launch, elements: int, n: int = 0, *, counts: bool = False, **circumstances: object) -> Call:
    role = "inout" if counts else "out"
    contents: dict[str, Content] = {"out": np.zeros(elements, np.int32)} if counts else {}
    arguments = (Buffer("out", "int32", elements, role), Scalar("n", "int32", n))  # type: ignore[arg-type]
    return Call(launch, arguments, contents, Circumstances(**circumstances))  # type: ignore[arg-type]


@pytest.mark.parametrize("grid", [(1, 1, 1), (3, 2, 2), (37, 1, 1)])
@pytest.mark.parametrize("block", [(1, 1, 1), (8, 4, 1), (100, 1, 1)])
def test_work_items_and_workgroups_run_in_the_order_that_is_asked(
    workers: Mapping[str, CpuWorker], grid: tuple[int, int, int], block: tuple[int, int, int]
) -> None:
    groups, items = int(np.prod(grid)), int(np.prod(block))
    count = groups * items

    def came(order: int) -> list[int]:
        asked = call(Launch(grid, block), 1 + count, counts=True, order=order)
        values: list[int] = workers["arrivals"].run(asked).outputs["out"].tolist()
        assert values[0] == count
        return values[1:]

    everyone = list(range(count))
    assert came(ASCENDING) == everyone and came(DESCENDING) == everyone[::-1]
    drawn = [came(order) for order in (2, 77, 0xFFFFFFFF)]
    for one in drawn:
        assert sorted(one) == everyone, "every work-item runs once"
        by_group = np.array(one).reshape(groups, items) // items
        assert (by_group == by_group[:, :1]).all(), "a workgroup is through before the next begins"
    assert came(77) == drawn[1]
    if count > 30:
        assert len({*map(tuple, drawn)}) == 3 and everyone not in drawn


@pytest.mark.parametrize("block", [(1, 1, 1), (64, 1, 1), (100, 1, 1), (1024, 1, 1)])
def test_between_barriers_the_order_is_another_and_no_one_goes_ahead(
    workers: Mapping[str, CpuWorker], block: tuple[int, int, int]
) -> None:
    for order in (ASCENDING, DESCENDING, 5, 1 << 31):
        asked = call(Launch((1, 1, 1), block), 1 + 2 * block[0], counts=True, order=order)
        values = workers["twice"].run(asked).outputs["out"][1:].tolist()
        before, after = values[: block[0]], values[block[0] :]
        assert sorted(before) == sorted(after) == list(range(block[0]))
        if order == DESCENDING:
            assert before == after == list(range(block[0]))[::-1]
        if order > DESCENDING and block[0] > 8:
            assert before != after


def test_local_data_share_is_poison_or_what_the_call_before_left(workers: Mapping[str, CpuWorker]) -> None:
    launch, run = Launch((1, 1, 1), (64, 1, 1)), workers["left"].run
    run(call(launch, 64, 7))
    assert set(run(call(launch, 64, 8, keeps_lds=True)).outputs["out"].tolist()) == {7}
    assert set(run(call(launch, 64, 9, keeps_lds=True)).outputs["out"].tolist()) == {8}
    assert not {9, 8, 7, 0} & set(run(call(launch, 64, 1)).outputs["out"].tolist())


def test_outputs_hold_what_the_call_says_and_the_execution_tells(workers: Mapping[str, CpuWorker]) -> None:
    launch, old = Launch((1, 1, 1), (64, 1, 1)), np.arange(64, dtype=np.int32)
    execution = workers["where"].run(call(launch, 64, 60, before={"out": old}))
    assert execution.outputs["out"][60:].tolist() == [60, 61, 62, 63]
    assert (execution.before["out"] == old).all() and "out" not in execution.poison
    execution = workers["where"].run(call(launch, 64, 60))
    assert execution.outputs["out"][60:].tobytes() == 4 * execution.poison["out"] and not execution.before


@pytest.mark.parametrize("elements", [1, 60, 64, 1000, 1024, 5000])
def test_buffers_begin_where_device_memory_does_or_end_where_a_page_does(
    workers: Mapping[str, CpuWorker], elements: int
) -> None:
    launch = Launch((elements // 64 + 1, 1, 1), (64, 1, 1))
    for is_aligned in (True, False, True):
        at = set(workers["where"].run(call(launch, elements, elements, is_aligned=is_aligned)).outputs["out"].tolist())
        assert at == {0} if is_aligned else at == {-(-4 * elements // 64) * -64 % 256}


@pytest.mark.parametrize("is_aligned", [True, False])
def test_beside_a_buffer_nothing_may_be_written_wherever_it_lies(
    workers: Mapping[str, CpuWorker], is_aligned: bool
) -> None:
    launch, run = Launch((1, 1, 1), (64, 1, 1)), workers["past"].run
    run(call(launch, 33, 32, is_aligned=not is_aligned))
    assert run(call(launch, 33, 32, is_aligned=is_aligned)).outputs["out"][32] == 1
    for n in (33, -1):
        with pytest.raises(Refused, match=r"memory: it (wrote|touched)"):
            run(call(launch, 33, n, is_aligned=is_aligned))


def test_lanes_of_two_branches_do_not_meet(workers: Mapping[str, CpuWorker]) -> None:
    launch, run = Launch((1, 1, 1), (64, 1, 1)), workers["sides"].run
    assert set(run(call(launch, 64, order=9)).outputs["out"].tolist()) == {64 * 63 // 2}
    with pytest.raises(Refused, match="cross_lane: lanes of a wavefront meet in different exchanges"):
        run(call(launch, 64, 1))
