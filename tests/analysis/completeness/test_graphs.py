"""Replays of graphs: what is missing of them, and what only looks as if it were."""

import polars as pl

from tests.analysis.completeness.recordings import as_wholes, found, keeping, replayed

#: A dispatch by its number in the recording.
ROW = pl.col("dispatch_id")


def test_few_graphs_recorded_as_one_piece_leave_the_answer() -> None:
    one = found(as_wholes("k0"))["graphs_recorded_whole"]
    assert (one["voids"], one["records"]) == ([], 20), one


def test_a_model_that_is_cut_into_graphs_begins_and_ends_with_other_pieces() -> None:
    """Of 4, 23 times 8 and 6 kernels none is missing; with a piece in the middle short as well, some are."""
    pieces = keeping(replayed(25, named=False), (ROW >= 4) & (ROW < 25 * 8 - 2))
    assert "graph_kernels_missing" not in found(pieces)
    assert "graph_kernels_missing" in found(keeping(pieces, ~ROW.is_in([81, 82, 83])))


def test_a_graph_that_was_launched_after_the_last_record_is_no_loss_within_it() -> None:
    """The file ends there: what the last graph ran cannot have run while the device was recorded."""
    assert "graph_kernels_missing" not in found(keeping(replayed(6), ROW < 5 * 8))
    assert "graph_kernels_missing" in found(keeping(replayed(6), (ROW < 4 * 8) | (ROW >= 5 * 8)))
