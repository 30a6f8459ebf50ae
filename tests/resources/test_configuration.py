"""The form of `configs/models.yaml` and `configs/backends.yaml`, and the one line that refuses everything else.

Turning a registered name into a model is tested in `test_models`.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.errors import UsageError
from aaco_pipeline.resources.configuration import (
    BUILT_IN_BACKENDS,
    DTYPES,
    LARGEST_FILE_BYTES,
    BackendEntry,
    ModelEntry,
    load_backends,
    load_models,
)
from tests.places import CONFIGS

LOADERS: list[Callable[[Path], object]] = [load_models, load_backends]


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "settings.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def refusal(load: Callable[[Path], object], path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        load(path)
    message = str(caught.value)
    assert message.isprintable(), "one line, without control characters"
    assert message.startswith(f"{path}:")
    assert len(message) < len(str(path)) + 800
    return message.removeprefix(f"{path}:")


def test_a_model_entry_holds_every_key_and_its_relative_path_starts_at_the_files_folder(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "models:\n"
        "  resnet: {path: nets/resnet.onnx, input_shapes: {input.1: [1, 3, 224, 224], flag: []},"
        " dtype: float16, warmup: 0, iterations: 1}\n"
        "  other: {path: /opt/other.onnx}\n",
    )
    assert load_models(path) == {
        "resnet": ModelEntry(
            path=tmp_path / "nets/resnet.onnx",
            input_shapes={"input.1": [1, 3, 224, 224], "flag": []},
            dtype="float16",
            warmup=0,
            iterations=1,
        ),
        "other": ModelEntry(path=Path("/opt/other.onnx")),
    }


def test_a_path_below_the_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert load_models(written(tmp_path, "models: {a: {path: ~/a.onnx}}"))["a"].path == tmp_path / "home" / "a.onnx"


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_listed_dtype_is_accepted(tmp_path: Path, dtype: str) -> None:
    assert load_models(written(tmp_path, f"models: {{a: {{path: a.onnx, dtype: {dtype}}}}}"))["a"].dtype == dtype


@pytest.mark.parametrize("text", ["", "# all commented out\n", "models:\n", "models: {}\n", "null\n"])
def test_a_file_without_models_registers_none(tmp_path: Path, text: str) -> None:
    assert load_models(written(tmp_path, text)) == {}


def test_missing_files_leave_what_is_built_in(tmp_path: Path) -> None:
    assert load_models(tmp_path / "none.yaml") == {}
    assert load_backends(tmp_path / "none.yaml") == dict(BUILT_IN_BACKENDS)
    assert list(BUILT_IN_BACKENDS) == ["cpu", "migraphx", "rocm", "cuda"]


def test_a_backend_of_the_file_replaces_the_built_in_of_its_name_and_a_new_one_is_added(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "backends:\n"
        "  cpu: {provider: CPUExecutionProvider, intra_op_threads: 2, inter_op_threads: 1}\n"
        "  second_gpu: {provider: MIGraphXExecutionProvider, device_id: 1, fp16_enable: true}\n",
    )
    assert load_backends(path) == {
        **BUILT_IN_BACKENDS,
        "cpu": BackendEntry(provider="CPUExecutionProvider", intra_op_threads=2, inter_op_threads=1),
        "second_gpu": BackendEntry(provider="MIGraphXExecutionProvider", device_id=1, fp16_enable=True),
    }


def test_the_shipped_files_load() -> None:
    assert load_models(CONFIGS / "models.yaml") == {}
    backends = load_backends(CONFIGS / "backends.yaml")
    assert {name: backend.provider for name, backend in backends.items()} == {
        name: backend.provider for name, backend in BUILT_IN_BACKENDS.items()
    }


def test_the_commented_example_of_the_shipped_models_file_loads(tmp_path: Path) -> None:
    lines = (CONFIGS / "models.yaml").read_text().splitlines()
    start = lines.index("# models:")
    example = [line.removeprefix("# ") for line in lines[start:] if line.startswith("#")]
    entry = load_models(written(tmp_path, "\n".join(example)))["detector"]
    assert entry.input_shapes == {"images": [1, 3, 640, 640], "scale.factor": [1, 2]}
    assert (entry.dtype, entry.warmup, entry.iterations) == ("float32", 10, 100)


MODEL_REFUSALS = [
    ("[1]", "", "a list of 1", "a mapping with the key `models`"),
    ("modles: {}", "modles", "unknown key", "did you mean models?"),
    ("backends: {}", "backends", "unknown key", "one of models"),
    ("models: [a]", "models", "a list of 1", "a mapping from names"),
    ("models: {'a b': {path: a}}", "models.'a b'", "the text 'a b'", "letters, digits"),
    ("models: {a: }", "models.a", "nothing", "a mapping with the key `path`"),
    ("models: {a: b.onnx}", "models.a", "the text 'b.onnx'", "a mapping with the key `path`"),
    ("models: {a: {}}", "models.a.path", "nothing", "the path of an ONNX file"),
    ("models: {a: {path: 3}}", "models.a.path", "3", "the path of an ONNX file"),
    ("models: {a: {path: ' '}}", "models.a.path", "the text ' '", "the path of an ONNX file"),
    ('models: {a: {path: "a\\0b"}}', "models.a.path", r"'a\x00b'", "the path of an ONNX file"),
    ("models: {a: {path: ~no-such-user-here/b}}", "models.a.path", "~no-such-user", "a home folder that exists"),
    ("models: {a: {path: b, warmups: 1}}", "models.a.warmups", "unknown key", "did you mean warmup?"),
    ("models: {a: {path: b, zzz: 1}}", "models.a.zzz", "unknown key", "path, input_shapes, dtype, warmup, iterations"),
    ("models: {a: {path: b, input_shapes: [1]}}", "models.a.input_shapes", "a list of 1", "a mapping from input names"),
    ("models: {a: {path: b, input_shapes: {x: 1}}}", "models.a.input_shapes.x", "1", "a list of dimensions"),
    ("models: {a: {path: b, input_shapes: {x: [1, N]}}}", "models.a.input_shapes.x[1]", "'N'", "a whole number from 1"),
    ("models: {a: {path: b, input_shapes: {x: [0]}}}", "models.a.input_shapes.x[0]", "0", "a whole number from 1"),
    ("models: {a: {path: b, input_shapes: {x: [-1]}}}", "models.a.input_shapes.x[0]", "-1", "a whole number from 1"),
    ("models: {a: {path: b, input_shapes: {x: [1.0]}}}", "models.a.input_shapes.x[0]", "1.0", "a whole number"),
    ("models: {a: {path: b, input_shapes: {x: [true]}}}", "models.a.input_shapes.x[0]", "true", "a whole number"),
    ("models: {a: {path: b, input_shapes: {x: [null]}}}", "models.a.input_shapes.x[0]", "nothing", "a whole number"),
    ("models: {a: {path: b, input_shapes: {x.y: [9999999999]}}}", "models.a.input_shapes.'x.y'[0]", "99", "2147483647"),
    ("models: {a: {path: b, dtype: floot32}}", "models.a.dtype", "'floot32'", "did you mean float32?"),
    ("models: {a: {path: b, dtype: 32}}", "models.a.dtype", "32", "float32, float16"),
    ("models: {a: {path: b, warmup: -1}}", "models.a.warmup", "-1", "a whole number from 0"),
    ("models: {a: {path: b, warmup: true}}", "models.a.warmup", "true", "a whole number from 0"),
    ("models: {a: {path: b, iterations: 0}}", "models.a.iterations", "0", "a whole number from 1"),
    ("models: {a: {path: b, iterations: '5'}}", "models.a.iterations", "the text '5'", "a whole number from 1"),
    ("models: {a: {path: b, iterations: 2024-01-01}}", "models.a.iterations", "a date", "a whole number from 1"),
]


BACKEND_REFUSALS = [
    ("models: {}", "models", "unknown key", "one of backends"),
    ("backends: {cpu: }", "backends.cpu", "nothing", "a mapping with the key `provider`"),
    ("backends: {cpu: {}}", "backends.cpu.provider", "nothing", "the name of an execution provider"),
    ("backends: {cpu: {provider: CPU}}", "backends.cpu.provider", "'CPU'", "the name of an execution provider"),
    ("backends: {a: {provider: [CPUExecutionProvider]}}", "backends.a.provider", "a list of 1", "the name of an"),
    ('backends: {a: {provider: "CPUExecutionProvider\\n"}}', "backends.a.provider", r"\n", "the name of an"),
    ("backends: {a: {provder: b}}", "backends.a.provder", "unknown key", "did you mean provider?"),
    *(
        (
            f"backends: {{a: {{provider: {name}ExecutionProvider, {key}: {value}}}}}",
            f"backends.a.{key}",
            found,
            expected,
        )
        for name, key, value, found, expected in (
            ("CPU", "device_id", "0", "0", "no such key"),
            ("CPU", "fp16_enable", "true", "true", "MIGraphX"),
            ("CUDA", "fp16_enable", "true", "true", "MIGraphX"),
            ("ROCM", "intra_op_threads", "1", "1", "CPUEx"),
            ("ROCM", "inter_op_threads", "1", "1", "CPUEx"),
            ("CUDA", "device_id", "-1", "-1", "from 0"),
            ("CUDA", "device_id", "false", "false", "from 0"),
            ("MIGraphX", "fp16_enable", "1", "1", "true or false"),
            ("CPU", "intra_op_threads", "0", "0", "from 1"),
            ("CPU", "inter_op_threads", "x", "'x'", "from 1"),
        )
    ),
]


@pytest.mark.parametrize(
    ("load", "case"),
    [*((load_models, one) for one in MODEL_REFUSALS), *((load_backends, one) for one in BACKEND_REFUSALS)],
)
def test_a_refusal_names_key_found_and_expected(
    tmp_path: Path, load: Callable[[Path], object], case: tuple[str, str, str, str]
) -> None:
    text, key, found, expected = case
    message = refusal(load, written(tmp_path, text))
    assert message.startswith(f" {key}: found " if key else " found ")
    before, _, after = message.partition("; expected ")
    assert found in before
    assert expected in after


YAML_REFUSALS: list[tuple[str | bytes, int, str]] = [
    ("models:\n  a: [1\n", 3, "expected ',' or ']'"),
    ("models:\n  a: {path: b}\n  a: {path: c}\n", 3, "the key 'a' a second time, after line 2"),
    ("models: {a: {path: b, path: c}}", 1, "the key 'path' a second time"),
    ("models: {}\n---\nmodels: {}\n", 2, "but found another document"),
    ("models:\n  a: &x {path: b}\n  c: *x\n", 3, "an alias"),
    ("models:\n  a:\n    <<: {path: b}\n", 3, "the merge key"),
    ("models: {1: {path: a}}", 1, "the key 1, put quotes around it"),
    ("models: {on: {path: a}}", 1, "the key true, put quotes around it"),
    ("models: {a: {path: b, input_shapes: {2: [1]}}}", 1, "the key 2, put quotes around it"),
    ('models: {"\\ud800": {path: a}}', 1, "'\\ud800', which does not fit its type"),
    ("models: {[a]: b}", 1, "unhashable key"),
    ("models: !!map [a]", 1, "expected a mapping"),
    ("models: !!python/object/apply:os.getcwd []", 1, "could not determine a constructor"),
    ("\nmodels: 2024-99-99", 2, "'2024-99-99', which does not fit its type"),
    ("models: !!int ''", 1, "'', which does not fit its type"),
    ("models: " + "9" * 5000, 1, "which does not fit its type"),
    ("models:\n  " + "[" * 5000, 2, "levels of nesting"),
    (b"models: {}\n\xff", 2, "not UTF-8"),
    ("models: {}\n\x07", 2, "a control character"),
]


@pytest.mark.parametrize("load", LOADERS)
@pytest.mark.parametrize(("text", "line", "problem"), YAML_REFUSALS)
def test_text_that_is_no_plain_yaml_is_refused_with_its_line(
    tmp_path: Path, load: Callable[[Path], object], text: str | bytes, line: int, problem: str
) -> None:
    message = refusal(load, written(tmp_path, text))
    assert message.startswith(f"{line}: ")
    assert problem in message


def test_a_huge_number_is_described_and_a_long_text_shortened(tmp_path: Path) -> None:
    path = written(tmp_path, f"models: {{a: {{path: b, warmup: 0x{'f' * 4000}}}}}")
    assert "found a whole number of 16000 bits" in refusal(load_models, path)
    assert "xxx...'" in refusal(load_models, written(tmp_path, f"models: {'x' * 100_000}"))


@pytest.mark.parametrize("load", LOADERS)
def test_a_file_above_the_size_limit_is_refused_unparsed(tmp_path: Path, load: Callable[[Path], object]) -> None:
    assert "found more than 1048576 bytes" in refusal(load, written(tmp_path, b"[" * (LARGEST_FILE_BYTES + 1)))


@pytest.mark.parametrize("load", LOADERS)
def test_a_folder_is_refused_and_a_file_below_a_file_is_not_just_missing(
    tmp_path: Path, load: Callable[[Path], object]
) -> None:
    assert "found a folder" in refusal(load, tmp_path)
    assert "cannot be read" in refusal(load, written(tmp_path, "") / "models.yaml")


KNOWN_WORDS = st.sampled_from(
    [
        *("models", "backends", "a", "b", "path", "input_shapes", "dtype", "warmup", "iterations", "provider"),
        *("device_id", "fp16_enable", "intra_op_threads", "float32"),
        *("CPUExecutionProvider", "MIGraphXExecutionProvider"),
    ]
)
SCALARS = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), KNOWN_WORDS),
    *(st.text(st.characters(), max_size=20), st.dates(), st.binary(max_size=5)),
)
STRUCTURES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(KNOWN_WORDS, SCALARS), inner, max_size=4),
        st.sets(SCALARS, max_size=2),
    ),
    max_leaves=12,
)
ENTRIES = st.dictionaries(KNOWN_WORDS, STRUCTURES, max_size=5)
DOCUMENTS = st.one_of(
    STRUCTURES,
    st.dictionaries(st.sampled_from(["models", "backends"]), st.dictionaries(st.text(max_size=5), ENTRIES), max_size=1),
    st.builds(lambda entry: {"models": {"a": {"path": "b", **entry}}}, ENTRIES),
    st.builds(lambda entry: {"backends": {"a": {"provider": "CPUExecutionProvider", **entry}}}, ENTRIES),
)


def loads_or_is_refused(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder), content)
        for load in LOADERS:
            try:
                load(path)
            except UsageError as error:
                assert str(error).startswith(f"{path}:")
                assert str(error).isprintable()


@given(DOCUMENTS)
def test_any_structure_loads_or_is_refused_by_the_files_name(document: Any) -> None:
    loads_or_is_refused(yaml.dump(document, Dumper=yaml.SafeDumper).encode())


@given(st.one_of(st.binary(max_size=200), st.text("ab:[]{},-&*!|>'\"%@?#\n\t 0123.~<", max_size=200).map(str.encode)))
def test_any_bytes_load_or_are_refused_by_the_files_name(content: bytes) -> None:
    loads_or_is_refused(content)


@given(
    st.sampled_from(
        ["int", "float", "bool", "null", "str", "timestamp", "binary", "set", "omap", "pairs", "map", "seq", "value"]
    ),
    st.sampled_from(
        ["''", "x", "[a]", "{a: b}", "[{a: b}]", "{=: b}", "-", "0x", "1:2", "2024-99-99", "_", "=", "\u00e9"]
    ),
)
def test_any_tag_on_any_value_loads_or_is_refused_by_the_files_name(tag: str, value: str) -> None:
    loads_or_is_refused(f"models: !!{tag} {value}\n".encode())
    loads_or_is_refused(f"models: {{? !!{tag} {value} : {{path: b}}}}\n".encode())
