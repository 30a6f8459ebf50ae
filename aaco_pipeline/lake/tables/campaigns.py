"""What sets of sessions show together without a verdict: how a workload scales.

Verdicts on sets of sessions are `judgement`.
"""

from typing import Final

from aaco_pipeline.lake.contracts import Table, column

_INTERVAL: Final = "within that session; null when it has too few iterations"

TABLES: Final[tuple[Table, ...]] = (
    Table(
        name="scaling",
        section="Judgement",
        scope="campaign",
        meaning=(
            "One row is one session of a sweep: one batch size and prompt length of a scaling curve. Filled by the "
            "stage sweep of `aaco sweep`."
        ),
        columns=(
            column("point", "int32", "id", False, "Place on the curve: by prompt length, then by batch size, from 0."),
            column("session_id", "string", "id", False, "Session that was measured at this point, in `sessions`."),
            column("batch_size", "int64", "count", False, "Inferences or requests carried out together."),
            column(
                "prompt_tokens", "int32", "count", True, "Tokens of each prompt; null when no tokens are generated."
            ),
            column("output_tokens", "int32", "count", True, "Tokens generated for each request; null when none are."),
            column(
                "time_ns",
                "int64",
                "ns",
                False,
                "Median time of one iteration, or of one request where tokens are generated, unprofiled.",
            ),
            column("time_ci_low_ns", "int64", "ns", True, f"Lower end of the 95 % interval of time_ns {_INTERVAL}."),
            column("time_ci_high_ns", "int64", "ns", True, f"Upper end of the 95 % interval of time_ns {_INTERVAL}."),
            column(
                "time_to_first_token_ns", "int64", "ns", True, "Median time to the first token; null without tokens."
            ),
            column(
                "time_per_output_token_ns",
                "int64",
                "ns",
                True,
                "Median over requests of the time per token after the first; null without tokens.",
            ),
            column(
                "throughput_per_s",
                "float64",
                "1/s",
                False,
                "Batch size, times output tokens where there are any, divided by time_ns, a second.",
            ),
            column("throughput_ci_low_per_s", "float64", "1/s", True, "The same from time_ci_high_ns, if it is known."),
            column("throughput_ci_high_per_s", "float64", "1/s", True, "The same from time_ci_low_ns, if it is known."),
            column("throughput_unit", "string", "name", False, "What is counted: `inference/s` or `token/s`."),
            column(
                "speedup_ratio", "float64", "ratio", False, "Throughput over that of the smallest batch of the prompt."
            ),
            column(
                "efficiency_ratio",
                "float64",
                "ratio",
                False,
                "speedup_ratio over how many times the smallest batch this one is; 1 is perfect scaling.",
            ),
            column(
                "is_knee",
                "bool",
                "bool",
                False,
                "True where the curve lies farthest above its chord, and by a tenth of its range or more.",
            ),
            column(
                "is_saturated",
                "bool",
                "bool",
                False,
                "True for the smallest batch with 95 % of the best throughput, unless it is the largest measured.",
            ),
        ),
        sort_by=("point",),
    ),
)
