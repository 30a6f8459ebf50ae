"""What a faster kernel would save of an iteration: at most its share, and less where other work is beside it."""

import polars as pl
import pytest
from hypothesis import given

from aaco_pipeline.analysis.timeline.critical_path import what_if
from aaco_pipeline.analysis.timeline.dependency_graph import LAUNCH, STREAM, Network
from aaco_pipeline.analysis.timeline.savings import effect_in
from tests.analysis.timeline.test_critical_path import Edge, made, networks

UNMARKED = pl.DataFrame(schema={"pass": pl.String, "phase": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64})


def iterations_of(*rows: tuple[str, str, int, int]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=UNMARKED.schema, orient="row")


def of_kernels(graph: Network, *kernels: int) -> Network:
    """The network with these kernels in place of one a node."""
    object.__setattr__(graph, "nodes", graph.nodes.with_columns(kernel_id=pl.Series(kernels)))
    return graph


def in_a_row(*weights: int) -> Network:
    """Nodes one after the other on one stream."""
    return made(list(weights), [(at, at + 1, STREAM, False, 0) for at in range(len(weights) - 1)], [0] * len(weights))


def test_alone_on_a_stream_a_kernel_saves_its_share_of_each_iteration() -> None:
    graph = of_kernels(in_a_row(60, 40, 60, 40, 60, 40), 0, 1, 0, 1, 0, 1)
    marked = iterations_of(*(("trace", "measure", at, at + 100) for at in (0, 100, 200)))
    found = effect_in(graph, marked, 0, (1.0, 1.5, 2.0))
    assert found is not None and found.scope == "iteration"
    assert found.share_ratio == pytest.approx(0.6)
    assert found.shorter_ratios == pytest.approx((0.0, 0.2, 0.3))


def test_only_measured_iterations_of_the_traced_pass_count() -> None:
    graph = of_kernels(in_a_row(90, 10, 60, 40), 0, 1, 0, 1)
    marked = iterations_of(("trace", "warmup", 0, 100), ("trace", "measure", 100, 200), ("latency", "measure", 0, 100))
    found = effect_in(graph, marked, 0, (2.0,))
    assert found is not None and found.share_ratio == pytest.approx(0.6)
    assert found.shorter_ratios == pytest.approx((0.3,))


def test_work_beside_a_kernel_bounds_what_it_saves() -> None:
    graph = made([10, 100, 80], [(0, 1, LAUNCH, False, 0), (0, 2, LAUNCH, False, 0)], [0, 0, 0])
    found = effect_in(graph, UNMARKED, 1, (1.25, 10.0))
    assert found is not None and found.scope == "recording"
    assert found.share_ratio == pytest.approx(100 / 110)
    assert found.shorter_ratios == pytest.approx((20 / 110, 20 / 110))
    beside = effect_in(graph, UNMARKED, 2, (10.0,))
    assert beside is not None and (beside.share_ratio, beside.shorter_ratios) == (0.0, (0.0,))


@given(networks())
def test_the_whole_recording_is_shorter_by_what_if_and_never_by_more_than_the_share(
    drawn: tuple[list[int], list[Edge], list[int]],
) -> None:
    graph = made(*drawn)
    window = int((graph.start_ns + graph.weight_ns).max() - graph.start_ns.min())
    kernel = drawn[0].index(max(drawn[0]))
    found = effect_in(graph, UNMARKED, kernel, (2.0,))
    if found is None:
        assert window == 0
        return
    assert found.shorter_ratios[0] * window == pytest.approx(what_if(graph, {kernel: 2.0}))
    assert found.shorter_ratios[0] * window <= found.share_ratio * window / 2 + 0.5 + 1e-9


def test_a_slower_kernel_is_not_asked_about_and_without_time_there_is_no_effect() -> None:
    with pytest.raises(ValueError, match="1 or more"):
        effect_in(in_a_row(10), UNMARKED, 0, (0.5,))
    assert effect_in(in_a_row(0), UNMARKED, 0, (2.0,)) is None
