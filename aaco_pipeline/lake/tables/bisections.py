"""Searches for the build that brought a change: what was asked, what is known of each build, and what was measured."""

from typing import Final

from aaco_pipeline.lake.declaration import (
    COUNT,
    DATE,
    FLOAT64,
    ID,
    INT32,
    INT64,
    NAME,
    NS,
    RATIO,
    STRING,
    TEXT,
    TIMESTAMP,
    Table,
    column,
    nullable,
)

# A column is one call of at most three lines.
# fmt: off
TABLES: Final[tuple[Table, ...]] = (
    Table(
        name="bisections", section="Judgement",
        meaning="One row is one search for the build that brought a change: what was asked, written before the first "
                "session, and the answer once there is one. Filled by the stage bisection.",
        sort_by=("began_at",), scope="campaign",
        columns=(
            column("began_at", TIMESTAMP, DATE, "When it was asked."),
            column("workload", STRING, NAME, "Model that is measured, as the first build calls it."),
            column("backend", STRING, NAME, "Where the first build runs, a name from configs/backends.yaml."),
            column("builds", INT32, COUNT, "Builds, the first and the last included."),
            nullable("repository", STRING, TEXT, "Folder of the git repository that builds are made from; null when "
                "they were there."),
            nullable("make_command", STRING, TEXT, "Command that makes a build; null when they were there."),
            nullable("make_limit_ns", INT64, NS, "Time that making one build may take; null when they were there."),
            nullable("specification", STRING, TEXT, "The measurement request of every made build as JSON, with "
                "`{output}` in place of what is made; null when they were there."),
            nullable("foretold_blocks", INT32, COUNT, "Blocks that a search for the least detectable change was "
                "foretold to need, half of such searches fewer; null without a history."),
            nullable("foretold_ns", INT64, NS, "Time that sessions and stages of these blocks, and of the two builds "
                "that are told at the end, were foretold to take; null without a history."),
            nullable("foretold_detectable_ratio", FLOAT64, RATIO, "Least difference from 1 between the last and the "
                "first build that was foretold to be found four times in five; null without a history."),
            nullable("answer", STRING, NAME, "`step` when one build brought the change, `range` when it is one of "
                "several, `several steps`, or `no change`; null until it is answered."),
            nullable("after", INT32, ID, "Last build that has nothing of the change; null until it is answered."),
            nullable("until", INT32, ID, "First build that has all of it; of `no change` the last build."),
            nullable("likeliest", INT32, ID, "Build that most likely brought it; null where none is the likeliest."),
            nullable("probability", FLOAT64, RATIO, "Chance of that, given that there is one step; null without one."),
            nullable("effect_ratio", FLOAT64, RATIO, "Last build's time divided by the first one's, from all builds "
                "behind the step; above 1 is slower."),
            nullable("ci_low", FLOAT64, RATIO, "Lower end of the 95 % interval of effect_ratio."),
            nullable("ci_high", FLOAT64, RATIO, "Upper end of the 95 % interval of effect_ratio."),
            nullable("pair_campaign", STRING, ID, "Campaign that holds build `until` against build `after`, with "
                "traces for the causes; null when nothing changed, or not yet."),
        ),
    ),
    Table(
        name="bisection_builds", section="Judgement",
        meaning="One row is one build of a search, in their order. Filled by the stage bisection.",
        sort_by=("build",), scope="campaign",
        columns=(
            column("build", INT32, ID, "Place in the order, from 0: the build that all others are measured beside."),
            column("label", STRING, TEXT, "What it is called: its SPEC, or its revision in short."),
            nullable("revision", STRING, ID, "Commit that it is made from; null when it was there."),
            nullable("title", STRING, TEXT, "First line of that commit's message; null when it was there."),
            nullable("specification", STRING, TEXT, "The measurement request of its sessions, as JSON; null until it "
                "is made."),
            nullable("artefact", STRING, TEXT, "The model's file that it runs, relative to the lake where that keeps "
                "it; null until it is made."),
            nullable("artefact_sha256", STRING, TEXT, "SHA-256 of that file."),
            column("state", STRING, NAME, "`planned`, `made`, `measured`, `failed` to be made or run; at the end "
                "`good` as the first or `bad` as the last, or `skipped` when the answer needed nothing of it."),
            nullable("reason", STRING, TEXT, "Why it failed; null when it did not."),
            column("blocks", INT32, COUNT, "Blocks that it was measured in beside the first build."),
            nullable("effect_ratio", FLOAT64, RATIO, "Its time divided by the first one's: mean over blocks without "
                "the outer tenths; null when it was not measured."),
            nullable("ci_low", FLOAT64, RATIO, "Lower end of the 95 % interval of effect_ratio."),
            nullable("ci_high", FLOAT64, RATIO, "Upper end of the 95 % interval of effect_ratio."),
        ),
    ),
    Table(
        name="bisection_steps", section="Judgement",
        meaning="One row is one thing that was measured of a search: some blocks of one build beside the first, a "
                "campaign of its own. Filled by the stage bisection, each before its first session.",
        sort_by=("step",), scope="campaign",
        columns=(
            column("step", INT32, ID, "Place in the order in which they were measured, from 0."),
            column("build", INT32, ID, "Build that was measured, in `bisection_builds`."),
            column("blocks", INT32, COUNT, "Blocks that were asked for."),
            column("campaign", STRING, ID, "The campaign, in `campaigns`."),
        ),
    ),
)
