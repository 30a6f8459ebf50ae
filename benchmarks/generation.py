"""Compare the figures of generated tokens with those of an independent loop over the same model and prompts.

The loop shares no code with what is measured: plain `session.run`, its own runtime session, clock and arithmetic. A
shared machine changes its speed by half from one second to the next, so both run in one process, a request of the one
after a request of the other; what the sampler beside a real session costs is `benchmarks/sampler_cost.py`. Run as
`python benchmarks/generation.py`; it exits with 1 when tokens per second or the time to the first token differ by
more than 5 %.
"""

import argparse
import contextlib
import io
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime as ort
import polars as pl

from aaco_pipeline.analysis.sessions.metrics import generation_metrics
from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.resources.measure import inference, inference_worker

ROOT: Final = Path(__file__).parents[1]
ACCEPTED_DIFFERENCE_RATIO: Final = 0.05
CASES: Final = ((1, 16, 32), (1, 128, 32), (4, 32, 32))


class Loop:
    """An independent generation of tokens: what a person would write to check the figures."""

    def __init__(self, path: str) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self._names = [i.name for i in self._session.get_inputs() if i.name != "input_ids"]
        self._outputs = ["logits", *(name.replace("past", "present") for name in self._names)]

    def request(self, prompt: "np.ndarray[Any, Any]", tokens: int) -> tuple[float, float]:
        """Seconds to the first token, and to the last one."""
        step = prompt
        state = {name: np.zeros((len(prompt), 4, 0, 64), np.float32) for name in self._names}
        begin = time.perf_counter()
        for position in range(tokens):
            logits, *present = self._session.run(self._outputs, {"input_ids": step, **state})
            step = logits[:, -1:].argmax(-1)
            state = dict(zip(self._names, present, strict=True))
            if position == 0:
                first = time.perf_counter() - begin
        return first, time.perf_counter() - begin


def compared(batch: int, prompt: int, tokens: int, requests: int) -> dict[str, tuple[float, float]]:
    """Each figure as the session's code has it, and as the loop has it, over alternating requests."""
    request = MeasurementRequest(model="gpt_tiny", batch_size=batch, prompt_tokens=prompt, output_tokens=tokens)
    model, backend = inference.plan(request, ROOT / "configs")
    job = inference._job(request, model, backend)
    session, _ = inference_worker._load(job, Path(), traced=False)
    loop = Loop(job["model_path"])
    unmarked = inference_worker._Markers(wanted=False, total=0)
    random = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    firsts, wholes = [], []
    for number in range(requests + 5):
        readings = inference_worker._Readings(0, tokens)
        with contextlib.redirect_stdout(io.StringIO()):
            inference_worker._generate_all(session, job, 1, readings, unmarked)
        first, whole = loop.request(random.integers(0, 4096, (batch, prompt)), tokens)
        if number < 5:
            continue
        firsts.append(first * 1e9)
        wholes.append(whole)
        for index, (start, end) in enumerate(zip(readings.start, readings.end, strict=True)):
            times = {"start_ns": int(start), "end_ns": int(end), "latency_ns": int(end - start)}
            rows.append({"pass": "latency", "phase": "measure", "iteration": len(rows), "token_index": index, **times})
    metrics = generation_metrics(pl.DataFrame(rows), batch, prompt).rows_by_key("metric", named=True, unique=True)
    return {
        "first_token_ns": (metrics["time_to_first_token_p50"]["value"], statistics.median(firsts)),
        "tokens_per_s": (metrics["output_tokens_per_s"]["value"], requests * batch * tokens / sum(wholes)),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=300)
    arguments = parser.parse_args()
    worst = 0.0
    print(f"{'batch':>5} {'prompt':>6} {'tokens':>6}  {'figure':<15} {'session':>14} {'loop':>14} {'ratio':>7}")
    for batch, prompt, tokens in CASES:
        for figure, (ours, theirs) in compared(batch, prompt, tokens, arguments.requests).items():
            worst = max(worst, abs(ours / theirs - 1))
            print(f"{batch:5} {prompt:6} {tokens:6}  {figure:<15} {ours:14,.0f} {theirs:14,.0f} {ours / theirs:7.4f}")
    print(f"largest difference {worst:.2%}, accepted {ACCEPTED_DIFFERENCE_RATIO:.0%}")
    return 0 if worst <= ACCEPTED_DIFFERENCE_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
