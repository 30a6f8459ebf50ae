"""Name a capture's workload: by its user, else by the capture, else by its files.

A capture states the name that its user gave to the tool (rocprof-compute's `--name`), or its process's command line:
the script or program, ignoring launchers. A Kineto trace states neither: its `traceName` is the file it was written to,
often a temporary one.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

import polars as pl

from aaco_pipeline.formats.parsing.redaction import REDACTED, safe_name
from aaco_pipeline.lake.evidence import Evidence

#: Maximum depth of nested launchers: `env`, then `mpirun`, then `bash -c`, then `python -m`.
_DEEPEST: Final = 12
_LONGEST_COMMAND: Final = 1 << 16
_LONGEST_NAME: Final = 120
_ENDINGS: Final = re.compile(r"(\.(gz|json|jsonl|csv|db|rpd|pt|trace|onnx))+$")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=")
_PYTHON: Final = re.compile(r"(?:python|pypy)[\d.]*(?:\.exe)?")
_BETWEEN_COMMANDS: Final = re.compile(r"&&|\|\||[;|&\n]")
_WORDS_OF_THE_SHELL: Final = (
    *("cd", "export", "source", ".", "set", "unset", "ulimit", "true", "false", "exit", "echo", "module", "sleep"),
    *("wait", "trap", "umask", "mkdir", "pushd", "popd", "hostname", "date", "tee", "cat", "grep", "fi", "done"),
)
_SHELLS: Final = ("sh", "bash", "dash", "zsh", "ksh")
#: Launchers, with their options that take the next word (or the next two, if marked).
_STARTERS: Final[Mapping[str, str]] = {
    "env": "-u --unset -C --chdir -S",
    "nohup": "",
    "time": "-f -o --format --output",
    "timeout": "-k -s --kill-after --signal",
    "nice": "-n --adjustment",
    "ionice": "-c -n",
    "chrt": "-T -P -D",
    "setsid": "",
    "stdbuf": "-i -o -e",
    "numactl": "-N -m -C -i -p -P -l --cpunodebind --membind --physcpubind --interleave --preferred",
    "taskset": "",
    "sudo": "-u -g -C -D",
    "gdb": "-x -ex --command",
    "perf": "-e -F -o -g -p --event --freq --output",
    "strace": "-e -o -p",
    **dict.fromkeys(
        ("mpirun", "mpiexec", "orterun", "prterun", "mpiexec.hydra", "mpirun.openmpi"),
        "-np -n -c -N -H -x -env -genv -hostfile -machinefile -ppn -rf -wdir -bind-to -map-by --np --n --host "
        "--hostfile --machinefile --map-by --bind-to --rank-by --wdir --prefix --timeout --output-filename --path "
        "-genvlist --tune --app --report-bindings-to --mca:2 -mca:2 --gmca:2 --prtemca:2 --pmixmca:2",
    ),
    "srun": "-n -N -c -t -p -A -w -x -J -o -e -i -G -m -D -C -q -r --ntasks --nodes --cpus-per-task --time "
    "--partition --account --nodelist --job-name --gpus --gres --mpi --cpu-bind --gpu-bind --mem --output --error "
    "--ntasks-per-node --gpus-per-node --gpus-per-task --container-image --container-mounts --chdir --export",
    "flux": "-n -N -c -g -t -o -q --nodes --ntasks --cores-per-task --gpus-per-task",
    "jsrun": "-n -r -a -c -g -b -d -l",
    **dict.fromkeys(
        ("rocprofv3", "rocprof", "rocprofv2", "rocprof-compute", "omniperf", "rocprof-sys-run", "rocprof-sys-sample"),
        "-d -o -i -n -p -b -k --output-directory --output-file --output-format -f --pmc --name --path --kernel",
    ),
    "runTracer.sh": "-o",
    "nsys": "-o -t -d -y --trace --output",
    "ncu": "-o -k -c --set --export",
    **dict.fromkeys(
        ("torchrun", "torch.distributed.run", "torch.distributed.launch"),
        "--nproc_per_node --nproc-per-node --nnodes --node_rank --node-rank --master_addr --master-addr --master_port "
        "--master-port --rdzv_backend --rdzv-backend --rdzv_endpoint --rdzv-endpoint --rdzv_id --rdzv-id --rdzv_conf "
        "--rdzv-conf --max_restarts --max-restarts --monitor_interval --monitor-interval --start_method --role "
        "--log_dir --log-dir -r --redirects -t --tee --local_addr --local-addr --local_ranks_filter",
    ),
    **dict.fromkeys(
        ("accelerate", "accelerate.commands.launch"),
        "--config_file --num_processes --num_machines --machine_rank --main_process_ip --main_process_port "
        "--mixed_precision --gpu_ids --dynamo_backend --num_cpu_threads_per_process",
    ),
    **dict.fromkeys(
        ("deepspeed", "deepspeed.launcher.runner"),
        "-H --hostfile -i --include -e --exclude --num_nodes --num_gpus --master_port --master_addr --launcher",
    ),
    **dict.fromkeys(("uv", "poetry", "pipenv", "pdm", "hatch"), "--with --python -p --project --extra --env-file"),
    **dict.fromkeys(("conda", "mamba", "micromamba"), "-n -p --name --prefix --cwd"),
}
#: The word after a launcher that is not the program yet: `accelerate launch`, `uv run`, `perf record`.
_SUBCOMMANDS: Final[Mapping[str, tuple[str, ...]]] = {
    "accelerate": ("launch",),
    "perf": ("record", "stat", "trace"),
    "nsys": ("profile", "launch"),
    "flux": ("run", "submit"),
    **dict.fromkeys(("rocprof-compute", "omniperf"), ("profile",)),
    **dict.fromkeys(("uv", "poetry", "pipenv", "pdm", "hatch"), ("run",)),
    **dict.fromkeys(("conda", "mamba", "micromamba"), ("run",)),
}
#: Launchers whose first non-option word is their own number or mask.
_WITH_A_VALUE_FIRST: Final = ("timeout", "taskset", "chrt")
_PYTHON_VALUES: Final = ("-X", "-W", "--check-hash-based-pycs")
#: Python modules that run a script given to them.
_RUNNING_MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "cProfile": ("-o", "-s"),
    "profile": ("-o", "-s"),
    "pdb": ("-c",),
    "trace": ("-f", "-C"),
    "coverage": (),
}


def named(tables: Mapping[str, pl.DataFrame], by_user: str | None, files: str | None) -> tuple[str | None, Evidence]:
    """Return the workload's name and the source of that name.

    `tables` are a capture's tables, `by_user` is the user's name for it, and `files` the name of its folder or file.
    """
    if by_user is not None:
        return by_user, Evidence("workload", "present", "called so by who took the capture in")
    stated = tables["environment"].filter(pl.col("key") == "workload_name").get_column("value").drop_nulls()
    if len(stated) and (name := _safe(str(stated[0]))) is not None:
        return name, Evidence("workload", "present", "the name that its user gave to the profiler")
    for command in _commands(tables):
        if (name := _safe(program_of(command))) is not None:
            return name, Evidence("workload", "present", "the program of the process's command line")
    reason = "the capture states neither a name nor a command line that tells the program"
    if files is None:
        return None, Evidence("workload", "absent", reason)
    plain = _ENDINGS.sub("", files) or files
    return plain, Evidence("workload", "partial", f"{reason}: called as its files are")


def program_of(command: str) -> str | None:
    """Return the program of a command line: `train.py`, `bench`, `vllm.entrypoints.openai.api_server`.

    Launchers, profilers, shells and interpreters are skipped. None if the command line is inline code, a shell or
    empty.
    """
    return _program(_words(command[:_LONGEST_COMMAND]), _DEEPEST)


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # unclosed quote: the words were joined without their quotes
        return command.split()


def _program(words: Sequence[str], depth: int) -> str | None:
    rest = list(words)
    while rest and (_ASSIGNMENT.match(rest[0]) or rest[0] in ("exec", "command")):
        rest.pop(0)
    if not rest or not depth:
        return None
    name, rest = _base(rest[0]), rest[1:]
    if _PYTHON.fullmatch(name):
        return _of_python(rest, depth)
    if name in _SHELLS:
        return _of_shell(rest, depth)
    if name in _STARTERS:
        return _program(_behind(name, rest), depth - 1)
    return name or None


def _behind(starter: str, words: Sequence[str]) -> list[str]:
    """Return the words of the program that a launcher starts."""
    if "--" in words and (starter.startswith(("roc", "omni")) or words[0] == "--"):
        return list(words[words.index("--") + 1 :])
    taking = {option.partition(":")[0]: int(option.partition(":")[2] or 1) for option in _STARTERS[starter].split()}
    rest = list(words)
    values = int(starter in _WITH_A_VALUE_FIRST)
    while rest:
        word = rest[0]
        if word == "--":
            return rest[1:]
        if word in ("-m", "--module") and starter.startswith(("torch", "accelerate", "deepspeed")):
            return ["python", "-m", *rest[1:]]
        if word in taking:
            rest = rest[1 + taking[word] :]
        elif word.startswith("-") or word in _SUBCOMMANDS.get(starter, ()) or _ASSIGNMENT.match(word):
            rest = rest[1:]
        elif values:
            values, rest = values - 1, rest[1:]
        else:
            break
    if starter in ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed"):
        return ["python", *rest]
    return rest


def _of_python(words: Sequence[str], depth: int) -> str | None:
    """Return the script or module that an interpreter runs; None for inline code or if there is none."""
    rest = list(words)
    while rest and rest[0].startswith("-") and not _asks_for(rest[0], "c") and not _asks_for(rest[0], "m"):
        rest = rest[2 if rest[0] in _PYTHON_VALUES else 1 :]
    if not rest or not depth or _asks_for(rest[0], "c"):
        return None
    first, *behind = rest
    if not _asks_for(first, "m"):
        # A launcher found on the path may be a script of this Python: `python3 /opt/bin/torchrun …`.
        return _program(rest, depth - 1) if _base(first) in _STARTERS else _base(first) or None
    module = behind[0] if behind else ""
    if module in _STARTERS:
        return _program(behind, depth - 1)
    if module in _RUNNING_MODULES:
        return _of_python(_without_options(behind[1:], _RUNNING_MODULES[module]), depth - 1)
    return module.removesuffix(".__main__") or None


def _asks_for(word: str, letter: str) -> bool:
    """Return whether a word ends in this one-letter option: `-m`, but also `-um`."""
    return word.startswith("-") and not word.startswith("--") and word.endswith(letter) and "X" not in word


def _without_options(words: Sequence[str], taking: Sequence[str]) -> list[str]:
    """Return the words after a module's own options."""
    rest = list(words)
    while rest and (rest[0].startswith("-") or rest[0] == "run") and rest[0] != "-m":
        rest = rest[2 if rest[0] in taking else 1 :]
    return rest


def _of_shell(words: Sequence[str], depth: int) -> str | None:
    """Return the script, or the last command of `-c` that is not a shell builtin; earlier ones only prepare for it."""
    rest = list(words)
    while rest and rest[0].startswith("-") and not _asks_for(rest[0], "c"):
        rest.pop(0)
    if not rest or not depth:
        return None
    if not _asks_for(rest[0], "c"):
        return _base(rest[0]) or None
    # A profiler may have lost the quotes: the words then follow `-c` one by one.
    code = rest[1] if len(rest) > 1 and " " in rest[1] else " ".join(rest[1:])
    for one in reversed(_BETWEEN_COMMANDS.split(code)):
        command = _words(one)
        if command and _base(command[0]) not in _WORDS_OF_THE_SHELL:
            return _program(command, depth - 1)
    return None


def _commands(tables: Mapping[str, pl.DataFrame]) -> list[str]:
    """Return the distinct command lines of the processes, those with the most kernels first."""
    processes = tables["processes"].select("process_id", "command").drop_nulls("command")
    ran = tables["dispatches"].group_by("process_id").agg(kernels=pl.len())
    order = processes.join(ran, on="process_id", how="left").sort(
        pl.col("kernels").fill_null(0), "process_id", descending=[True, False]
    )
    return list(dict.fromkeys(order.get_column("command").to_list()))


def _base(word: str) -> str:
    return PurePosixPath(word.replace("\\", "/")).name


def _safe(name: str | None) -> str | None:
    """Return the name if it can be shown: printable, not too long, and without a secret."""
    if name is None or REDACTED in name or not name.isprintable() or not name.strip(" .-"):
        return None
    clean = safe_name(name.strip())
    return clean[:_LONGEST_NAME] if REDACTED not in clean else None
