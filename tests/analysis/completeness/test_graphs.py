"""Replays of graphs: what is missing of them, and what only looks as if it were.

Replays that all lost the same kernels, compared with the graph in another trace.
"""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from aaco_pipeline.analysis.roofline.operators.graph_replays import captured_launches
from aaco_pipeline.formats import kineto
from tests.analysis.completeness.recordings import as_wholes, found, keeping, replayed
from tests.analysis.roofline.operators.graph_traces import Trace, layers

#: A dispatch by its number in the recording.
ROW = pl.col("dispatch_id")


def test_few_graphs_recorded_as_one_piece_leave_the_answer() -> None:
    one = found(as_wholes("k0"))["graphs_recorded_whole"]
    assert (one["voids"], one["records"]) == ([], 20), one


def test_a_model_that_is_cut_into_graphs_begins_and_ends_with_other_pieces() -> None:
    """Replays of 4, 23 times 8 and 6 kernels are complete; with a short piece in the middle they are not."""
    pieces = keeping(replayed(25, named=False), (ROW >= 4) & (ROW < 25 * 8 - 2))
    assert "graph_kernels_missing" not in found(pieces)
    assert "graph_kernels_missing" in found(keeping(pieces, ~ROW.is_in([81, 82, 83])))


def test_a_graph_that_was_launched_after_the_last_record_is_no_loss_within_it() -> None:
    """The file ends there: what the last graph ran cannot have run while the device was recorded."""
    assert "graph_kernels_missing" not in found(keeping(replayed(6), ROW < 5 * 8))
    assert "graph_kernels_missing" in found(keeping(replayed(6), (ROW < 4 * 8) | (ROW >= 5 * 8)))


GRAPH = layers(4)
#: Without the kernel of its second product.
SHORT = [*GRAPH[:3], *GRAPH[4:]]


def finding(capture: Trace, replay: Trace, folder: Path) -> dict[str, Any] | None:
    read = kineto.read(capture.write(folder / "captured.json"))
    rows = captured_launches(read.tables, read.details.get("named_launches"), "captured.json")
    tables = dict(kineto.read(replay.write(folder / "replayed.json")).tables)
    return found({**tables, "captured_launches": rows}).get("graph_kernels_missing")


@pytest.mark.parametrize("named", [True, False])
def test_a_loss_that_all_replays_share_is_found_by_the_capture(named: bool, tmp_path: Path) -> None:
    lost = finding(Trace().capture(GRAPH, named=named), Trace().replay(SHORT, 5), tmp_path)
    assert lost is not None
    assert (lost["severity"], lost["grade"], lost["records"]) == ("fault", "observed", 5)
    assert (
        "5 of 5 (100.0%) graph launches recorded fewer kernels than the graph that was captured has" in lost["evidence"]
    )


def test_without_the_capture_it_cannot_be_seen(tmp_path: Path) -> None:
    assert finding(Trace(), Trace().replay(SHORT, 5), tmp_path) is None


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("streams", [1, 2])
def test_whole_replays_are_whole_on_any_number_of_streams(named: bool, streams: int, tmp_path: Path) -> None:
    capture = Trace().capture(GRAPH, named=named)
    assert finding(capture, Trace().replay(GRAPH, 3, streams=streams), tmp_path) is None


def test_a_whole_graph_among_others_is_none_that_lost_kernels_of_a_larger_one(tmp_path: Path) -> None:
    capture = Trace().capture(GRAPH, named=True).capture(layers(2), named=True)
    assert finding(capture, Trace().replay(layers(2), 3).replay(GRAPH), tmp_path) is None


def test_beside_replays_of_graphs_that_were_not_captured_it_is_inferred(tmp_path: Path) -> None:
    other = [one for one in layers(1, grid=9) if one.kernel] * 30
    lost = finding(Trace().capture(GRAPH, named=True), Trace().replay(SHORT, 5).replay(other), tmp_path)
    assert lost is not None
    assert (lost["severity"], lost["grade"], lost["records"]) == ("bound", "inferred", 5)


def test_captures_of_several_sizes_without_names_say_nothing(tmp_path: Path) -> None:
    capture = Trace().capture(GRAPH).capture(layers(2))
    assert finding(capture, Trace().replay(SHORT, 5), tmp_path) is None
