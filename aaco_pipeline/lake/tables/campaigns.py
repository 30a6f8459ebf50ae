"""What sets of sessions show together without a verdict: how a workload scales, and how much identical code differs.

Verdicts on sets of sessions are `judgement`.
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
    PER_S,
    RATIO,
    STRING,
    TRUTH,
    Table,
    column,
    nullable,
)

# A column is one call of at most three lines.
# fmt: off
TABLES: Final[tuple[Table, ...]] = (
    Table(
        name="scaling", section="Judgement",
        meaning="One row is one session of a sweep: one batch size and prompt length of a scaling curve. Filled by the "
                "stage sweep of `aaco sweep`.",
        sort_by=("point",), scope="campaign",
        columns=(
            column("point", INT32, ID, "Place on the curve: by prompt length, then by batch size, from 0."),
            column("session_id", STRING, ID, "Session that was measured at this point, in `sessions`."),
            column("batch_size", INT64, COUNT, "Inferences or requests carried out together."),
            nullable("prompt_tokens", INT32, COUNT, "Tokens of each prompt; null when no tokens are generated."),
            nullable("output_tokens", INT32, COUNT, "Tokens generated for each request; null when none are."),
            column("time_ns", INT64, NS, "Median time of one iteration, or of one request where tokens are generated, "
                "unprofiled."),
            nullable("time_ci_low_ns", INT64, NS, "Lower end of the 95 % interval of time_ns within that session; null "
                "when it has too few iterations."),
            nullable("time_ci_high_ns", INT64, NS, "Upper end of the 95 % interval of time_ns within that session; "
                "null when it has too few iterations."),
            nullable("time_to_first_token_ns", INT64, NS, "Median time to the first token; null without tokens."),
            nullable("time_per_output_token_ns", INT64, NS, "Median over requests of the time per token after the "
                "first; null without tokens."),
            column("throughput_per_s", FLOAT64, PER_S, "Batch size, times output tokens where there are any, divided "
                "by time_ns, a second."),
            nullable("throughput_ci_low_per_s", FLOAT64, PER_S, "The same from time_ci_high_ns, if it is known."),
            nullable("throughput_ci_high_per_s", FLOAT64, PER_S, "The same from time_ci_low_ns, if it is known."),
            column("throughput_unit", STRING, NAME, "What is counted: `inference/s` or `token/s`."),
            column("speedup_ratio", FLOAT64, RATIO, "Throughput over that of the smallest batch of the prompt."),
            column("efficiency_ratio", FLOAT64, RATIO, "speedup_ratio over how many times the smallest batch this one "
                "is; 1 is perfect scaling."),
            column("is_knee", BOOL, TRUTH, "True where the curve lies farthest above its chord, and by a tenth of its "
                "range or more."),
            column("is_saturated", BOOL, TRUTH, "True for the smallest batch with 95 % of the best throughput, unless "
                "it is the largest measured."),
        ),
    ),
    Table(
        name="aa_ledger", section="Judgement",
        meaning="One row is one metric of one comparison of identical code, such as a baseline with its placebo in the "
                "same blocks: what a verdict's threshold and confidence are measured on. Filled by the stage "
                "regression.",
        sort_by=("workload", "metric"), scope="campaign",
        columns=(
            column("workload", STRING, NAME, "What was run in both arms, as in `sessions`."),
            nullable("host", STRING, NAME, "Host that both arms ran on, as in `sessions`; null when not recorded."),
            column("metric", STRING, NAME, "Metric that was compared, as in `verdicts`."),
            column("design", STRING, NAME, "How the arms ran, as in `verdicts`."),
            column("blocks", INT64, COUNT, "Blocks that were run at this look; comparisons of other numbers say "
                "nothing about this one."),
            column("sessions_per_block", INT64, COUNT, "Sessions of each arm in a block."),
            column("effect_ratio", FLOAT64, RATIO, "One arm divided by the other, both of identical code; what differs "
                "from 1 is noise."),
            column("level", FLOAT64, RATIO, "Two-sided error that the plan allowed at this look."),
            column("p_value", FLOAT64, RATIO, "Two-sided p of the t test that nothing changed; at most level where "
                "identical code was called different."),
        ),
    ),
)
