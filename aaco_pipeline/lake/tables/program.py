"""What `aaco record` took of a program: each of its runs, and what the program marked in them.

Their iterations are `inference`'s, as a model's are.
"""

from typing import Final

from aaco_pipeline.lake.declaration import (
    BOOL,
    BYTES,
    COUNT,
    ID,
    INT32,
    INT64,
    NAME,
    NS,
    STRING,
    TEXT,
    TRUTH,
    Table,
    column,
    nullable,
)

# A column is one call of at most three lines.
# fmt: off
TABLES: Final[tuple[Table, ...]] = (
    Table(
        name="program_runs", section="Program",
        meaning="One row is one run of a recorded program, a fresh process each. Filled by the stage inference_run.",
        sort_by=("run",),
        columns=(
            column("run", INT32, ID, "Place of the run in its recording, starting at 0."),
            column("name", STRING, NAME, "What the recording calls it, such as `run_1` or `trace`."),
            column("pass", STRING, NAME, "`latency` without a profiler, `trace` under the tracer, `counters` under a "
                "profiler that counts; only `latency` may judge speed."),
            column("phase", STRING, NAME, "`warmup` for runs excluded from every figure, `measure` for the others."),
            nullable("profiler", STRING, NAME, "Profiler that was beside it; null without one."),
            column("pid", INT64, ID, "Process number given by the operating system."),
            column("start_ns", INT64, NS, "Just before the program was executed, on the session's axis."),
            column("end_ns", INT64, NS, "When its end was waited for, on the session's axis."),
            column("wall_ns", INT64, NS, "end_ns less start_ns: what a person waits."),
            nullable("user_ns", INT64, NS, "CPU time in user mode of the program and the children that it waited for, "
                "from wait4; null when its end was not seen."),
            nullable("system_ns", INT64, NS, "CPU time in the kernel, likewise; null when its end was not seen."),
            nullable("max_rss_bytes", INT64, BYTES, "Most resident memory of any one process of it, from wait4; null "
                "when its end was not seen."),
            nullable("status", INT32, ID, "Exit status; null when a signal ended it."),
            nullable("signal", STRING, NAME, "Signal that ended it, such as `SIGSEGV`; null when it ended by itself."),
            column("timed_out", BOOL, TRUTH, "True when it ran into its time limit and was ended."),
            nullable("failure", STRING, TEXT, "How it failed, in words; null when it ended with status 0."),
            column("left_running", INT64, COUNT, "Processes that still ran when it had ended, and were ended."),
            column("stdout_bytes", INT64, BYTES, "Bytes that it wrote to its standard output."),
            column("stderr_bytes", INT64, BYTES, "Bytes that it wrote to its standard error."),
            nullable("stderr_end", STRING, TEXT, "The last lines of its standard error, at most 5, without secrets; "
                "null when there are none."),
        ),
    ),
    Table(
        name="program_marks", section="Program",
        meaning="One row is one phase or instant that a recorded program marked with `aaco_pipeline.mark` or "
                "aaco_mark.h. Filled by the stage inference_run.",
        sort_by=("run", "start_ns"),
        columns=(
            column("run", INT32, ID, "Run that it was marked in, in `program_runs`."),
            column("kind", STRING, NAME, "`phase` or `instant`: a range of time or one moment."),
            nullable("name", STRING, NAME, "Its name, without secrets; null when it has none or the process had too "
                "many."),
            column("pid", INT64, ID, "Process that marked it, as the operating system numbers it."),
            column("thread_id", INT64, ID, "Thread that marked it, as the operating system numbers it."),
            nullable("iteration", INT32, ID, "Iteration of that run's pass in which it began; null outside of any."),
            column("start_ns", INT64, NS, "When it began, on the session's axis."),
            column("end_ns", INT64, NS, "When it ended; equal to start_ns for an instant."),
        ),
    ),
)
