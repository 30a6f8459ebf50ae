"""Every activity on a lane, whatever is unknown of it."""

from aaco_pipeline.report.timeline.lanes import COLUMNS, activities, lanes_in_order
from tests.report.timeline.test_drawn import dispatch, tables_of


def test_what_is_not_known_of_a_place_is_not_said() -> None:
    rows = activities(
        tables_of(
            dispatches=[dispatch(0, 0, 1, device_id=None), dispatch(1, 1, 2, stream_id=5)],
            memory_copies=[{"copy_id": 0, "start_ns": 2, "end_ns": 3}],
            api_calls=[{"call_id": 0, "domain": "x", "name": "f", "process_id": 0, "start_ns": 0, "end_ns": 9}],
        ),
        on_cpu=False,
    )
    assert rows.schema == dict(COLUMNS)
    assert lanes_in_order(rows, 0).rows() == [
        ("Device 0, kernels, stream 5", "kernel", 0),
        ("Device unknown, kernels", "kernel", None),
        ("Device unknown, copies", "copy", None),
        ("Host thread unknown", "call", None),
    ]
    assert rows.filter(kind="copy").get_column("name").to_list() == ["copy, size unknown"]


def test_frames_of_an_interpreter_are_drawn_where_a_thread_has_nothing_else() -> None:
    frame = {
        "call_id": 0,
        "domain": "python",
        "name": "main",
        "process_id": 0,
        "thread_id": 1,
        "start_ns": 0,
        "end_ns": 9,
    }
    rows = activities(tables_of(api_calls=[frame, {**frame, "call_id": 1, "process_id": 1}]), on_cpu=False)
    assert rows.get_column("lane").to_list() == ["Host process 0, thread 1", "Host process 1, thread 1"]
    launch = {**frame, "call_id": 2, "domain": "hip_runtime", "name": "launch"}
    rows = activities(tables_of(api_calls=[frame, launch]), on_cpu=False)
    assert rows.get_column("name").to_list() == ["launch"]
