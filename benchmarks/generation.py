"""Compare the figures of generated tokens with those of an independent loop over the same model and prompts.

The loop below shares no code with the measured process: plain `session.run`, its own clock, its own arithmetic. Both
run in fresh processes, alternating; the figure is the median of the rounds' ratios. Run as
`python benchmarks/generation.py`; it exits with 1 when tokens per second or the time to the first token differ by
more than 5 %.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import numpy as np

from aaco_pipeline.analysis.generation import generation_metrics
from aaco_pipeline.formats import inference_capture
from aaco_pipeline.resources.inference import capture_inference
from aaco_pipeline.resources.launch import Launch
from aaco_pipeline.resources.models import default_cache_dir, resolve_model

ROOT: Final = Path(__file__).parents[1]
ACCEPTED_DIFFERENCE_RATIO: Final = 0.05


def independent(path: str, *, batch: int, prompt: int, tokens: int, requests: int, warmup: int) -> dict[str, float]:
    """Median time to the first token in ns, and tokens per second over all measured requests, of a loop of its own."""
    import time

    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs() if i.name != "input_ids"]
    outputs = ["logits", *(name.replace("past", "present") for name in names)]
    random = np.random.default_rng(0)
    first, whole = [], []
    for request in range(warmup + requests):
        step = random.integers(0, 4096, (batch, prompt))
        state = {name: np.zeros((batch, 4, 0, 64), np.float32) for name in names}
        begin = time.perf_counter()
        for position in range(tokens):
            logits, *present = session.run(outputs, {"input_ids": step, **state})
            step = logits[:, -1:].argmax(-1)
            state = dict(zip(names, present, strict=True))
            if position == 0:
                first_token = time.perf_counter() - begin
        if request >= warmup:
            first.append(first_token * 1e9)
            whole.append(time.perf_counter() - begin)
    return {"first_token_ns": statistics.median(first), "tokens_per_s": requests * batch * tokens / sum(whole)}


def ours(batch: int, prompt: int, tokens: int, requests: int, warmup: int) -> dict[str, float]:
    """The same two figures as a session has them, from its unprofiled pass."""
    launch = Launch(
        model="gpt_tiny",
        batch_size=batch,
        iterations=requests,
        warmup=warmup,
        prompt_tokens=prompt,
        output_tokens=tokens,
    )
    with tempfile.TemporaryDirectory() as name:
        capture_inference(launch, Path(name), ROOT / "configs", lambda line: None)
        iterations = inference_capture.read(Path(name)).iterations()
    metrics = generation_metrics(iterations, batch, prompt).rows_by_key(["metric", "pass"], named=True, unique=True)
    return {
        "first_token_ns": metrics["time_to_first_token_p50", "latency"]["value"],
        "tokens_per_s": metrics["output_tokens_per_s", "latency"]["value"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--independent", nargs=6, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.independent:
        path, *sizes = arguments.independent
        named = zip(("batch", "prompt", "tokens", "requests", "warmup"), map(int, sizes), strict=True)
        print(json.dumps(independent(path, **dict(named))))
        return 0
    path = str(resolve_model("gpt_tiny", {}, default_cache_dir()).path)
    worst = 0.0
    print(f"{'batch':>5} {'prompt':>6} {'tokens':>6}  {'figure':<15} {'session':>14} {'loop':>14} {'ratio':>7}")
    for batch, prompt, tokens in ((1, 16, 32), (1, 128, 32), (4, 32, 32)):
        found: dict[str, list[dict[str, float]]] = {"session": [], "loop": []}
        for _ in range(arguments.rounds):
            sizes = map(str, (batch, prompt, tokens, arguments.requests, arguments.warmup))
            command = [sys.executable, __file__, "--independent", path, *sizes]
            found["session"].append(ours(batch, prompt, tokens, arguments.requests, arguments.warmup))
            found["loop"].append(json.loads(subprocess.run(command, capture_output=True, check=True).stdout))
        for figure in ("first_token_ns", "tokens_per_s"):
            session, loop = ([row[figure] for row in found[who]] for who in ("session", "loop"))
            ratio = statistics.median(a / b for a, b in zip(session, loop, strict=True))
            worst = max(worst, abs(ratio - 1))
            medians = f"{statistics.median(session):14,.0f} {statistics.median(loop):14,.0f}"
            print(f"{batch:5} {prompt:6} {tokens:6}  {figure:<15} {medians} {ratio:7.4f}")
    print(f"largest difference {worst:.2%}, accepted {ACCEPTED_DIFFERENCE_RATIO:.0%}")
    return 0 if worst <= ACCEPTED_DIFFERENCE_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
