"""CPU sessions with a cause by design, and how often the stage `classification` names it.

Compute, memory, latency, launch, host and contended sessions run through the real stages. As root, `--priority -15`
shields all but the contended ones from other load. Exits with 1 when fewer than 95 % are right.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import polars as pl
from onnx import NodeProto, TensorProto, helper, numpy_helper

from aaco_pipeline.assets.stage import Session, materialize
from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.lake.calibrations import write_calibration
from aaco_pipeline.lake.layout import new_session_id
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.calibrate.calibration import calibrate
from aaco_pipeline.resources.measure.runner import InferenceRunner
from benchmarks.common import ROOT

NEEDED: Final = 0.95
#: What each design must be found to be: the class, and for operators at work what limits them.
CAUSES: Final = {
    "compute": "device: compute_vector",
    "memory": "device: memory_dram",
    "latency": "device: latency",
    "launch": "launch",
    "host": "host",
    "contended": "contention",
}
_THREADS: Final = 1
_ITERATIONS: Final = 6
_WARMUP: Final = 2
_CALIBRATION_SECONDS: Final = 16.0
#: Loaded by the measured process before anything else: every run of the model sleeps first.
_SLEEPING: Final = """
import os, time
import onnxruntime
_plain, _bound = onnxruntime.InferenceSession.run, onnxruntime.InferenceSession.run_with_iobinding
_pause = float(os.environ["CLASSIFY_SLEEP_S"])
def _sleeping(run):
    def slept(*arguments, **names):
        time.sleep(_pause)
        return run(*arguments, **names)
    return slept
onnxruntime.InferenceSession.run = _sleeping(_plain)
onnxruntime.InferenceSession.run_with_iobinding = _sleeping(_bound)
"""
_BUSY: Final = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"


@dataclass(frozen=True)
class Workload:
    """A model to run, what it is, and what is done to the process meanwhile."""

    design: str
    told: str
    write: Callable[[Path], None]
    sleep_s: float | None = None
    busy_processes: int = 0


def workload(design: str, draw: random.Random) -> Workload:
    """A workload with that cause, of a size that `draw` gives."""
    if design == "compute":
        return Workload(design, *_products(draw))
    if design == "memory":
        return Workload(design, *_additions(draw))
    if design == "latency":
        return Workload(design, *_gathers(draw))
    if design == "launch":
        return Workload(design, *_many_small(draw))
    told, write = draw.choice([_products, _many_small, _small_additions])(draw)
    if design == "host":
        # Several times what any of these models takes.
        pause = draw.uniform(0.12, 0.25)
        return Workload(design, f"{told}, sleeping {pause:.3f} s", write, sleep_s=pause)
    told, write = _products(draw)
    busy = draw.choice([3, 4])
    return Workload(design, f"{told}, {busy} busy processes on each CPU", write, busy_processes=busy)


def _products(draw: random.Random) -> tuple[str, Callable[[Path], None]]:
    side, count = draw.randrange(512, 1153, 64), draw.randint(3, 6)
    weight = (np.random.default_rng(0).random((side, side), dtype=np.float32) - 0.5) / side**0.5

    def write(path: Path) -> None:
        nodes = _chain(count, "MatMul", "weight")
        _model(path, nodes, {"x": [side, side]}, count, {"weight": weight})

    return f"{count} products of {side}", write


def _additions(draw: random.Random) -> tuple[str, Callable[[Path], None]]:
    rows, count = draw.randint(24_000, 40_000), draw.randint(2, 4)
    return f"{count} additions of {rows * 4 // 1000} MB", lambda path: _add(path, [rows, 1000], count)


def _small_additions(draw: random.Random) -> tuple[str, Callable[[Path], None]]:
    rows, count = draw.randint(2_000, 4_000), draw.randint(2, 4)
    return f"{count} additions of {rows * 4 // 1000} MB", lambda path: _add(path, [rows, 1000], count)


def _add(path: Path, shape: list[int], count: int) -> None:
    _model(path, _chain(count, "Add", "y"), {"x": shape, "y": shape}, count, {})


def _gathers(draw: random.Random) -> tuple[str, Callable[[Path], None]]:
    elements, count = draw.randint(5_000_000, 9_000_000), draw.randint(1, 3)

    def write(path: Path) -> None:
        # Every element says where the next one is; the shift by the input keeps the runtime from doing it beforehand.
        order = np.random.default_rng(0).permutation(elements).astype(np.int64).reshape(elements, 1)
        nodes = [helper.make_node("Sub", ["order", "shift"], ["h0"], name="shift_all")]
        for i in range(count):
            nodes.append(
                helper.make_node("GatherElements", ["order", f"h{i}"], [f"h{i + 1}"], name=f"follow{i}", axis=0)
            )
        _model(
            path, nodes, {"shift": [1, 1]}, count + 1, {"order": order}, element=TensorProto.INT64, output=[elements, 1]
        )

    return f"{count} gathers of {elements * 8 // 1_000_000} MB", write


def _many_small(draw: random.Random) -> tuple[str, Callable[[Path], None]]:
    nodes, width = draw.randint(200, 900), draw.choice([1, 4, 16, 64])

    def write(path: Path) -> None:
        chain = [
            helper.make_node(("Add", "Mul")[i % 2], [f"h{i - 1}" if i else "x", "x"], [f"h{i}"], name=f"small{i}")
            for i in range(nodes)
        ]
        _model(path, chain, {"x": [width]}, nodes, {})

    return f"{nodes} operators on {width} numbers", write


def _chain(count: int, op_type: str, other: str) -> list[NodeProto]:
    names = ["x", *(f"h{i}" for i in range(count))]
    return [helper.make_node(op_type, [names[i], other], [names[i + 1]], name=f"step{i}") for i in range(count)]


def _model(
    path: Path,
    nodes: list[NodeProto],
    inputs: dict[str, list[int]],
    count: int,
    weights: dict[str, "np.ndarray[Any, Any]"],
    *,
    element: int = TensorProto.FLOAT,
    output: list[int] | None = None,
) -> None:
    shape = output or next(iter(inputs.values()))
    graph = helper.make_graph(
        nodes,
        "designed",
        [helper.make_tensor_value_info(name, element, own) for name, own in inputs.items()],
        [helper.make_tensor_value_info(f"h{count - 1}", element, shape)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), path)


@contextmanager
def prioritized(priority: int) -> Iterator[None]:
    """This process and those that it starts come before others of the machine, for as long as it lasts."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    _set_priority(priority or before)
    try:
        yield
    finally:
        _set_priority(before)


def _set_priority(value: int) -> None:
    """For this process and, where the kernel shares time out among sessions of processes first, for its session."""
    os.setpriority(os.PRIO_PROCESS, 0, value)
    group = Path("/proc/self/autogroup")
    if group.exists():
        group.write_text(str(value))


@contextmanager
def surroundings(work: Workload, folder: Path) -> Iterator[None]:
    """Surroundings that the workload's design puts around the measured process, really there for as long as it runs."""
    busy = [
        subprocess.Popen([sys.executable, "-c", _BUSY, str(cpu)])
        for cpu in sorted(os.sched_getaffinity(0))
        for _ in range(work.busy_processes)
    ]
    before = os.environ.get("PYTHONPATH")
    if work.sleep_s is not None:
        (folder / "sitecustomize.py").write_text(_SLEEPING)
        os.environ |= {"PYTHONPATH": str(folder), "CLASSIFY_SLEEP_S": str(work.sleep_s)}
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()
        os.environ.pop("CLASSIFY_SLEEP_S", None)
        if before is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = before


_AFTERWARDS: Final = (
    *("session_environment", "inference_run", "kernel_trace", "telemetry", "timeline", "critical_path"),
    *("model_graph", "roofline", "classification"),
)


def classified(lake: TraceLake, model: Path, work: Workload, priority: int) -> dict[str, Any]:
    """Measure the workload in a session of its own and classify it: its row of `answers`, with `cause` and `shares`."""
    runner = InferenceRunner(configs=str(ROOT / "configs"))
    session = new_session_id()
    request = MeasurementRequest(model=str(model), iterations=_ITERATIONS, warmup=_WARMUP, threads=_THREADS)
    lake.request(session, request.to_json())
    opened = Session(lake, session, ROOT / "configs", runner.measure)
    with surroundings(work, model.parent), prioritized(0 if work.busy_processes else priority):
        materialize(opened, ["capture"])
    materialize(opened, _AFTERWARDS)
    row = lake.read("answers", session).row(0, named=True)
    cause = f"{row['class']}: {row['resource']}" if row["class"] == "device" else row["class"]
    return {**row, "session": session, "cause": cause, "shares": lake.read("time_shares", session)}


def told(row: dict[str, Any]) -> str:
    """The shares that the class was found from, the largest first; what explains a part of one in brackets."""
    shares = row["shares"].sort("share_ratio", descending=True).head(4)
    named = shares.select(pl.col("share", "reason").cast(pl.String), "share_ratio").rows()
    return ", ".join(
        (share if reason is None else f"{share} ({reason})") + f" {ratio:.3g}" for share, reason, ratio in named
    )


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--each", type=int, default=10, help="sessions for each cause")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--only", choices=CAUSES, help="this cause alone")
    arguments.add_argument("--priority", type=int, default=0, help="nice value of all but the contended sessions")
    arguments.add_argument("--keep", type=Path, help="keep the lake there")
    given = arguments.parse_args()
    draw = random.Random(given.seed)
    designs = [given.only] if given.only else list(CAUSES)
    order = [design for design in designs for _ in range(given.each)]
    draw.shuffle(order)
    counts: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory() as scratch:
        lake = TraceLake(given.keep or Path(scratch) / "lake")
        with prioritized(given.priority):
            (calibration,) = calibrate([_THREADS], _CALIBRATION_SECONDS, print)
        write_calibration(lake.path, calibration)
        for one in calibration.ceilings:
            print(f"{one.resource} {one.dtype or ''}: {one.value:.3g} {one.unit}")
        print("reservations:", "; ".join(calibration.reservations) or "none", flush=True)
        for number, design in enumerate(order):
            folder = Path(scratch) / f"w{number}"
            folder.mkdir()
            work = workload(design, draw)
            work.write(folder / "model.onnx")
            row = classified(lake, folder / "model.onnx", work, given.priority)
            (folder / "model.onnx").unlink()
            counts[design, row["cause"]] += 1
            right = "" if row["cause"] == CAUSES[design] else "  WRONG"
            shown = f"{row['cause']} (then {row['second_class']}; {told(row)})"
            print(f"{number + 1:3} {row['session']} {design}: {work.told}: {shown}{right}", flush=True)
    return _summary(counts)


def _summary(counts: Counter[tuple[str, str]]) -> int:
    names = sorted({cause for _, cause in counts})
    rows = [
        {"design": design, **{name: counts[design, name] for name in names}}
        for design in CAUSES
        if any(counts[design, name] for name in names)
    ]
    with pl.Config(tbl_hide_dataframe_shape=True, tbl_hide_column_data_types=True, tbl_cols=-1, tbl_width_chars=160):
        print(pl.DataFrame(rows))
    right = sum(count for (design, cause), count in counts.items() if CAUSES[design] == cause)
    total = counts.total()
    print(f"{right} of {total} right: {right / total:.1%}, needed {NEEDED:.0%}")
    return 0 if right / total >= NEEDED else 1


if __name__ == "__main__":
    sys.exit(main())
