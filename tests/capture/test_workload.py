"""Names of workloads: as the user says, else as the capture states, else after its files."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.capture.workload import named, program_of
from aaco_pipeline.formats.parsing.redaction import safe_command
from aaco_pipeline.lake.validation import empty_table, to_contract

PROGRAMS = [
    ("python train.py", "train.py"),
    ("./bench -n 3", "bench"),
    ("OMP_NUM_THREADS=1 ./bench", "bench"),
    ("env -u X A=1 python3 -u /w/train.py --config x", "train.py"),
    ("/opt/conda/bin/python3.10 -X dev -W ignore t.py", "t.py"),
    ("python -m vllm.entrypoints.openai.api_server --model x", "vllm.entrypoints.openai.api_server"),
    ("python -um pkg.mod", "pkg.mod"),
    ("python -m torch.distributed.run --nproc_per_node 2 a.py", "a.py"),
    ("python -m cProfile -o p.out s.py", "s.py"),
    ("python3 /opt/bin/torchrun --nproc_per_node=8 train.py", "train.py"),
    ("torchrun --nproc-per-node 8 -m pkg.mod --x", "pkg.mod"),
    ("torchrun --nnodes 1 train.py --lr 1", "train.py"),
    ("accelerate launch --num_processes 8 train.py", "train.py"),
    ("deepspeed --num_gpus 8 ds.py --deepspeed", "ds.py"),
    ("mpirun -np 8 -x LD_LIBRARY_PATH --mca pml ucx --bind-to none ./app arg", "app"),
    ("srun -n 8 --gpus-per-task 1 numactl --cpunodebind=0 --membind 0 ./hpl", "hpl"),
    ("timeout -k 5 60 taskset -c 0-3 ./x", "x"),
    ("rocprofv3 --kernel-trace -d out -- ./a.out 3", "a.out"),
    ("uv run python bench.py", "bench.py"),
    ("conda run -n env python t.py", "t.py"),
    ("bash run.sh 3", "run.sh"),
    ("bash -c 'cd /w && python run.py --a b; true'", "run.py"),
    ("bash -c cd /w && python run.py --a b", "run.py"),
    ("./llama-bench -m model.gguf", "llama-bench"),
    ("sudo -E ./q 'unclosed", "q"),
    ("python -c 'import torch'", None),
    ("python", None),
    ("bash", None),
    ("A=1", None),
    ("", None),
]


@pytest.mark.parametrize(("command", "program"), PROGRAMS)
def test_the_program_that_a_person_would_speak_of(command: str, program: str | None) -> None:
    assert program_of(command) == program


@given(st.text(max_size=200) | st.lists(st.sampled_from([word for one, _ in PROGRAMS for word in one.split()])))
def test_any_command_line_has_a_program_or_none(command: str | list[str]) -> None:
    text = command if isinstance(command, str) else " ".join(command)
    program = program_of(text)
    assert program is None or (program and "/" not in program)


def test_starters_that_start_each_other_without_end_are_none() -> None:
    assert program_of("env " * 5_000 + "./x") is None


def tables(*commands: str | None, kernels: tuple[int, ...] = (), stated: str | None = None) -> dict[str, pl.DataFrame]:
    """Processes with these commands, so many dispatches of each, and the name that a profiler was given."""
    processes = pl.DataFrame(
        {"process_id": range(len(commands)), "command": commands}, schema_overrides={"command": pl.String}
    )
    ran = [number for number, count in enumerate(kernels) for _ in range(count)]
    environment = {"category": ["other"], "key": ["workload_name"], "value": [stated], "in_fingerprint": [False]}
    return {
        "processes": to_contract("processes", processes) if commands else empty_table("processes"),
        "dispatches": pl.DataFrame({"process_id": ran}, schema={"process_id": pl.Int32}),
        "environment": pl.DataFrame(environment, schema_overrides={"value": pl.String}),
    }


def test_the_user_then_the_profiler_then_the_command_then_the_files_name_it() -> None:
    both = tables("./bench", stated="vcopy")
    assert named(both, "mine", "folder")[0] == "mine"
    assert named(both, None, "folder")[0] == "vcopy"
    assert named(tables("./bench"), None, "folder")[0] == "bench"
    name, told = named(tables(None), None, "trace.pt.trace.json.gz")
    assert name == "trace" and told.status == "partial" and "neither" in str(told.reason)
    assert named(tables(), None, None) == (None, named(tables(), None, None)[1])
    assert named(tables(), None, None)[1].status == "absent"


def test_of_several_processes_the_one_that_ran_most_kernels_names_it() -> None:
    assert named(tables("./launcher", "./worker", kernels=(1, 5)), None, None)[0] == "worker"
    assert named(tables("python -c x", "./worker", kernels=(5, 1)), None, None)[0] == "worker"


@pytest.mark.parametrize(
    "command",
    [
        "mysql -phunter2secret",
        "./run --token hf_abcdefghijklmnopqrstuvwxyz012345",
        "hf_abcdefghijklmnopqrstuvwxyz012345",
    ],
)
def test_no_secret_is_a_name(command: str) -> None:
    name, _ = named(tables(safe_command(command)), None, "folder")
    assert name in ("mysql", "run", "folder")


@pytest.mark.parametrize("odd", ["\x1b]0;title\x07", "-", "..", " "])
def test_what_cannot_be_shown_is_no_name(odd: str) -> None:
    assert named(tables(stated=odd), None, "folder")[0] == "folder"
