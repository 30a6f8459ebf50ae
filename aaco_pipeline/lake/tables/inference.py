"""What the inference runs themselves measured: every iteration, and the figures computed over a whole session.

Device activity does not belong here; it lives in `trace`, and what is derived from it per device or kernel in
`analysis`.
"""

from typing import Final

from aaco_pipeline.lake.declaration import (
    BOOL,
    COUNT,
    FLOAT64,
    ID,
    INT32,
    INT64,
    NAME,
    NS,
    STRING,
    TRUTH,
    VARIES,
    Table,
    column,
    nullable,
)

# A column is one call of at most three lines.
# fmt: off
TABLES: Final[tuple[Table, ...]] = (
    Table(
        name="iterations", section="Inference",
        meaning="One row is one iteration of one pass over the workload; of a program that marks none, one unprofiled "
                "run. Filled by the stage inference_run.",
        sort_by=("pass", "iteration"), version=2,
        columns=(
            column("pass", STRING, NAME, "`latency` for the run without a profiler attached, `trace` for the run under "
                "the tracer; only `latency` may judge speed."),
            column("iteration", INT32, ID, "Dense number of the iteration within its pass, warm-up included, starting "
                "at 0."),
            column("phase", STRING, NAME, "`warmup` for iterations excluded from every figure, `measure` for those "
                "that count."),
            nullable("start_ns", INT64, NS, "When the iteration was handed to the runtime, on the session's axis; null "
                "when only its latency is known."),
            nullable("end_ns", INT64, NS, "When its outputs were ready on the host, on the session's axis; null when "
                "only its latency is known."),
            nullable("latency_ns", INT64, NS, "Host time from handing over the inputs to having the outputs, device "
                "work and waits included; null when it was not timed."),
            nullable("cpu_time_ns", INT64, NS, "CPU time all threads of the process used during the iteration; may "
                "exceed latency_ns; null when not read, as by a loop that reads it in blocks (`iteration_blocks`)."),
            nullable("run_delay_ns", INT64, NS, "Time the process's threads were runnable but waited for a CPU during "
                "the iteration; null when not read, or when the kernel does not report it."),
            nullable("run", INT32, ID, "Run of the program that it belongs to, in `program_runs`, a process each; "
                "null for a model, whose pass is one process.", since=2),
            nullable("token_index", INT32, ID, "Position of the generated token this iteration produced, starting at "
                "0; null for workloads that generate none."),
        ),
    ),
    Table(
        name="iteration_gaps", section="Inference",
        meaning="One row is the time before, between or after iterations of a pass that this project's loop ran; "
                "iterations and gaps together are the whole pass. Filled by the stage inference_run.",
        sort_by=("pass", "before_iteration"),
        columns=(
            column("pass", STRING, NAME, "Pass the gap lies in, `latency` or `trace`."),
            column("before_iteration", INT32, ID, "Number of the iteration that follows the gap; one more than the "
                "last iteration's for the time after that."),
            column("phase", STRING, NAME, "Phase of the iteration before the gap, `warmup` or `measure`; of the first "
                "one for the time before that."),
            column("start_ns", INT64, NS, "When the iteration before it ended, or when the pass began, on the "
                "session's axis."),
            column("end_ns", INT64, NS, "When the next iteration began, or when the pass ended, on the session's "
                "axis."),
            column("duration_ns", INT64, NS, "end_ns less start_ns: time that is in no latency."),
            column("reads_counters", BOOL, TRUTH, "True when the loop read CPU time or run-queue delay in it, where "
                "the kernel may take the CPU away."),
        ),
    ),
    Table(
        name="iteration_blocks", section="Inference",
        meaning="One row is a block of iterations, of one phase and one after the other, over which the process's "
                "counters were read. Filled by the stage inference_run.",
        sort_by=("pass", "block"),
        columns=(
            column("pass", STRING, NAME, "Pass the block lies in, `latency` or `trace`."),
            column("block", INT32, ID, "Dense number of the block within its pass, starting at 0."),
            column("phase", STRING, NAME, "Phase of its iterations, `warmup` or `measure`."),
            column("first_iteration", INT32, ID, "Number of its first iteration."),
            column("iterations", INT64, COUNT, "How many iterations it holds."),
            column("start_ns", INT64, NS, "When the counters were read before its first iteration, on the session's "
                "axis; the end of the block before it."),
            column("end_ns", INT64, NS, "When they were read after its last iteration, on the session's axis."),
            column("cpu_time_ns", INT64, NS, "CPU time all threads of the process used from start_ns to end_ns."),
            nullable("run_delay_ns", INT64, NS, "Time the process's threads were runnable but waited for a CPU from "
                "start_ns to end_ns; null when the kernel does not report it."),
        ),
    ),
    Table(
        name="session_metrics", section="Inference",
        meaning="One row is one figure about the whole session. Filled by the stage inference_run, by timeline for "
                "figures that need the trace, and by model_graph for those that need the model.",
        sort_by=("metric", "pass", "phase"),
        columns=(
            column("metric", STRING, NAME, "Name of the figure, such as `latency_p50`, `throughput`, "
                "`launch_tax_score` or `active_ratio`; the docs hold each formula."),
            nullable("pass", STRING, NAME, "Pass the figure is taken from, `latency` or `trace`; null when it is taken "
                "from both or from neither."),
            nullable("phase", STRING, NAME, "Iterations the figure is taken over, `warmup` or `measure`; null when it "
                "is not taken over iterations."),
            nullable("value", FLOAT64, VARIES, "The figure in the unit of its row; null when it could not be computed, "
                "and `evidence` says why."),
            column("unit", STRING, NAME, "Unit of value, ci_low and ci_high, such as `ns`, `ratio` or `inference/s`."),
            nullable("n", INT64, COUNT, "Observations behind the figure; null when it is not an estimate over "
                "observations."),
            nullable("ci_low", FLOAT64, VARIES, "Lower end of the confidence interval of value within this session; "
                "null when none was computed; it never serves to compare sessions."),
            nullable("ci_high", FLOAT64, VARIES, "Upper end of the confidence interval of value within this session; "
                "null when none was computed; it never serves to compare sessions."),
        ),
    ),
)
