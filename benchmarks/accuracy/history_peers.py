"""What apache-otava and ruptures find in series of numbers: run by an interpreter that has them.

JSON on standard input, `{"series": [[...], ...], "penalties": [...]}`; on standard output for each peer that is
installed the places it found in each series, and the CPU seconds it took. Called by `benchmarks.accuracy.history`, from whose
environment neither needs to be importable.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

Found = list[int]


def peers(penalties: list[float]) -> Iterator[tuple[str, Callable[[list[float]], Found]]]:
    """Each peer that is installed, by its name and setting."""
    if find_spec("otava"):
        yield from ((f"apache-otava p<{level}", partial(_otava, level)) for level in (0.001, 0.01))
    if find_spec("ruptures"):
        ruptures = import_module("ruptures")
        for penalty in penalties:
            exact = partial(ruptures.KernelCPD, "linear", min_size=2)
            yield f"ruptures KernelCPD {penalty:g}", partial(_ruptures, exact, penalty)
            greedy = partial(ruptures.Binseg, "l2", min_size=2, jump=1)
            yield f"ruptures Binseg {penalty:g}", partial(_ruptures, greedy, penalty)


def _otava(level: float, series: list[float]) -> Found:
    found, _ = import_module("otava.analysis").compute_change_points(series, max_pvalue=level)
    return [int(point.index) for point in found]


def _ruptures(maker: Callable[[], Any], penalty: float, series: list[float]) -> Found:
    # Noise from differences of neighbours, so that a change does not raise it.
    values = np.array(series)
    deviation = float(np.median(np.abs(np.diff(values)))) / 0.6745 / math.sqrt(2)
    scaled = (values / max(deviation, 1e-12)).reshape(-1, 1)
    return [int(place) for place in maker().fit(scaled).predict(pen=penalty)[:-1]]


def main() -> None:
    asked = json.load(sys.stdin)
    answers = {}
    for name, find in peers(asked["penalties"]):
        began = time.process_time()
        found = [find(series) for series in asked["series"]]
        answers[name] = {"found": found, "cpu_s": time.process_time() - began}
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
