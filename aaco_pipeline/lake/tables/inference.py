"""What the inference runs themselves measured: every iteration, and the figures computed over a whole session.

Device activity does not belong here; it lives in `trace`, and what is derived from it per device or kernel in
`analysis`.
"""

from typing import Final

from aaco_pipeline.lake.contracts import Table, column

TABLES: Final[tuple[Table, ...]] = (
    Table(
        name="iterations",
        section="Inference",
        meaning=("One row is one iteration of one pass over the workload. Filled by the stage inference_run."),
        columns=(
            column(
                "pass",
                "string",
                "name",
                False,
                "`latency` for the run without a profiler attached, `trace` for the run under the tracer; only "
                "`latency` may judge speed.",
            ),
            column(
                "iteration",
                "int32",
                "id",
                False,
                "Dense number of the iteration within its pass, warm-up included, starting at 0.",
            ),
            column(
                "phase",
                "string",
                "name",
                False,
                "`warmup` for iterations excluded from every figure, `measure` for those that count.",
            ),
            column(
                "start_ns",
                "int64",
                "ns",
                True,
                "When the iteration was handed to the runtime, on the session's axis; null when only its latency is "
                "known.",
            ),
            column(
                "end_ns",
                "int64",
                "ns",
                True,
                "When its outputs were ready on the host, on the session's axis; null when only its latency is known.",
            ),
            column(
                "latency_ns",
                "int64",
                "ns",
                True,
                "Host time from handing over the inputs to having the outputs, device work and waits included; null "
                "when it was not timed.",
            ),
            column(
                "cpu_time_ns",
                "int64",
                "ns",
                True,
                "CPU time all threads of the process used during the iteration; may exceed latency_ns; null when not "
                "read.",
            ),
            column(
                "run_delay_ns",
                "int64",
                "ns",
                True,
                "Time the process's threads were runnable but waited for a CPU during the iteration; null when the "
                "kernel does not report it.",
            ),
            column(
                "token_index",
                "int32",
                "id",
                True,
                "Position of the generated token this iteration produced, starting at 0; null for workloads that "
                "generate none.",
            ),
        ),
        sort_by=(
            "pass",
            "iteration",
        ),
    ),
    Table(
        name="session_metrics",
        section="Inference",
        meaning=(
            "One row is one figure about the whole session. Filled by the stage inference_run, by timeline for figures "
            "that need the trace, and by model_graph for those that need the model."
        ),
        columns=(
            column(
                "metric",
                "string",
                "name",
                False,
                "Name of the figure, such as `latency_p50`, `throughput`, `launch_tax_score` or `active_ratio`; the "
                "docs hold each formula.",
            ),
            column(
                "pass",
                "string",
                "name",
                True,
                "Pass the figure is taken from, `latency` or `trace`; null when it is taken from both or from neither.",
            ),
            column(
                "phase",
                "string",
                "name",
                True,
                "Iterations the figure is taken over, `warmup` or `measure`; null when it is not taken over "
                "iterations.",
            ),
            column(
                "value",
                "float64",
                "varies",
                True,
                "The figure in the unit of its row; null when it could not be computed, and `evidence` says why.",
            ),
            column(
                "unit",
                "string",
                "name",
                False,
                "Unit of value, ci_low and ci_high, such as `ns`, `ratio` or `inference/s`.",
            ),
            column(
                "n",
                "int64",
                "count",
                True,
                "Observations behind the figure; null when it is not an estimate over observations.",
            ),
            column(
                "ci_low",
                "float64",
                "varies",
                True,
                "Lower end of the confidence interval of value within this session; null when none was computed; it "
                "never serves to compare sessions.",
            ),
            column(
                "ci_high",
                "float64",
                "varies",
                True,
                "Upper end of the confidence interval of value within this session; null when none was computed; it "
                "never serves to compare sessions.",
            ),
        ),
        sort_by=(
            "metric",
            "pass",
            "phase",
        ),
    ),
)
