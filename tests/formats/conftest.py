"""Real profiles for the reader's tests, made once: the built-in models, run a few times in this process."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from aaco_pipeline.resources.measure.models import resolve_model


@dataclass(frozen=True)
class RealProfile:
    """A profile as ONNX Runtime wrote it, and how often the model ran."""

    path: Path
    runs: int


@pytest.fixture(scope="session")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], RealProfile]:
    """Profiles of built-in models by name and number of threads."""
    made: dict[tuple[str, int], RealProfile] = {}
    folder = tmp_path_factory.mktemp("profiles")

    def make(name: str, threads: int) -> RealProfile:
        if (name, threads) not in made:
            made[name, threads] = _run(name, threads, folder)
        return made[name, threads]

    return make


def _run(name: str, threads: int, folder: Path, runs: int = 4) -> RealProfile:
    model = resolve_model(name, {})
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / f"{name}_{threads}")
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(model.path), options, providers=["CPUExecutionProvider"])
    random = np.random.default_rng(7)
    inputs = {key: random.standard_normal(shape).astype(np.float32) for key, shape in model.input_shapes.items()}
    for _ in range(runs):
        session.run(None, inputs)
    return RealProfile(Path(session.end_profiling()), runs)
