"""What a recorded program's iterations are: its whole runs, or what it marked in them."""

import polars as pl


def of_one_unit(iterations: pl.DataFrame, runs: pl.DataFrame) -> pl.DataFrame:
    """The iterations whose latencies may be held against each other.

    Of a program that marks nothing the unprofiled iterations are whole `runs` (table `program_runs`), and those of the
    traced run, known by the ranges that a profiler recorded, are parts of one: these are left out.
    """
    keys = ["run", "start_ns", "end_ns"]
    unprofiled = iterations.filter(pl.col("pass") == "latency")
    whole = unprofiled.join(runs.select(keys), on=keys, how="semi").height
    return iterations if not whole else unprofiled
