"""Searches for a faster kernel, or configuration of a model: what was asked and found, every attempt with evidence."""

from typing import Final

from aaco_pipeline.lake.declaration import (
    BOOL,
    BYTES,
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
    STRINGS,
    TEXT,
    TIMESTAMP,
    TRUTH,
    VERSION,
    Table,
    column,
    nullable,
)

# A column is one call of at most three lines.
# fmt: off
TABLES: Final[tuple[Table, ...]] = (
    Table(
        name="optimizations", section="Judgement",
        meaning="One row is one search for a faster kernel, or a faster configuration of a model: what was asked, "
                "written before anything is built, and what was found once it has ended. Filled by the stage "
                "optimization.",
        sort_by=("began_at",), scope="campaign", version=2,
        columns=(
            column("began_at", TIMESTAMP, DATE, "When the search began."),
            column("source_name", STRING, NAME, "Name of the source's file, without its folder; of a model its "
                "name, or its file's."),
            nullable("kernel", STRING, NAME, "Kernel that was to be made faster; null for a model."),
            nullable("session", STRING, ID, "Session whose evidence chose the kernel or was given to the proposers, "
                "in `sessions`; null for a source that came without one."),
            column("target", STRING, NAME, "Where candidates were built and run: `cpu`, `cuda`, `amd` or "
                "`amd-emulated`; of a model its backend."),
            column("executed_on", STRING, NAME, "Device, or `cpu-emulation`: the kernel's source compiled for the CPU "
                "and run there. Of a model the processor, or the execution provider of another device."),
            column("speedup_applies_to", STRING, NAME, "What a gain says something of: the device it was measured on. "
                "A gain on `cpu` says nothing of a GPU."),
            column("threshold_ratio", FLOAT64, RATIO, "Least gain that counts, as a difference from 1."),
            column("alpha", FLOAT64, RATIO, "Chance, over the whole search, that a candidate that gains no more than "
                "the threshold is accepted."),
            column("budget_ns", INT64, NS, "Time that the search might take."),
            column("most_attempts", INT32, COUNT, "Candidates that the search might try."),
            column("seed", INT64, ID, "From which layouts, orders and inputs were drawn."),
            column("source_sha256", STRING, TEXT, "SHA-256 of the source as it was; of a model as in "
                "`sessions.artefact_sha256`."),
            nullable("harness_sha256", STRING, TEXT, "SHA-256 of the harness' file; null for a model."),
            column("journal", STRING, TEXT, "The journal's file, relative to the lake: every decision with what it "
                "was made from; `aaco optimize --replay SEARCH` decides it again."),
            nullable("spent_ns", INT64, NS, "Time that it took; null until it has ended, or when it was killed."),
            nullable("ended_by", STRING, NAME, "`searched` when nothing was left to propose, `time` or `attempts` when "
                "they were spent, `baseline` when the source fails its own harness or a model's outputs differ from "
                "run to run, `noise` when the host is too noisy to decide; null until it has ended."),
            nullable("reason", STRING, TEXT, "Why it ended, in words; null until it has."),
            nullable("result_sha256", STRING, TEXT, "SHA-256 of the source with all that was accepted, which is that "
                "of the source where nothing was, or it did not hold as a whole; null until it has ended."),
            nullable("patch", STRING, TEXT, "The accepted changes as a unified diff, relative to the lake; null when "
                "none was accepted, or not yet."),
            nullable("is_applied", BOOL, TRUTH, "Whether the source's file was replaced; null until it has ended."),
            nullable("speedup_ratio", FLOAT64, RATIO, "Duration of the source as it was divided by that of the source "
                "with all that was accepted; null when nothing was, or it did not hold as a whole.", since=2),
            nullable("ci_low", FLOAT64, RATIO, "Lower end of the confidence interval of speedup_ratio; null when that "
                "is.", since=2),
            nullable("ci_high", FLOAT64, RATIO, "Upper end of the confidence interval of speedup_ratio; null when that "
                "is.", since=2),
            nullable("speedup_of", STRING, NAME, "What speedup_ratio is: the `confirmation` of the one accepted "
                "change, of several as a `whole`, or the `product` of theirs where the whole was not timed.", since=2),
            nullable("whole_decision", STRING, NAME, "What became of timing several accepted changes as a whole: "
                "`accepted`, `rejected` or `undecided`; null when it was not done.", since=2),
            nullable("whole_reason", STRING, TEXT, "Why it was so decided, in words; null when it was not.", since=2),
            nullable("effect_scope", STRING, NAME, "Base of critical_share_ratio and shorter_ratio: an `iteration` "
                "of the session, or its `recording` where none is marked; null without one, and for a model.", since=2),
            nullable("critical_share_ratio", FLOAT64, RATIO, "Part of it that the kernel takes on the critical path, "
                "median over measured iterations: no gain saves more; null when it is not known.", since=2),
            nullable("shorter_ratio", FLOAT64, RATIO, "Part that it would be shorter by, were the kernel speedup_ratio "
                "times as fast: the path computed anew, not measured; null with effect_reason.", since=2),
            nullable("shorter_low_ratio", FLOAT64, RATIO, "The same for ci_low of the gain; null when that is.",
                since=2),
            nullable("shorter_high_ratio", FLOAT64, RATIO, "The same for ci_high of the gain; null when that is.",
                since=2),
            nullable("effect_reason", STRING, TEXT, "Why shorter_ratio is null, such as a gain on another architecture "
                "than the session's; null when it is known, or there is no session.", since=2),
            nullable("run_options", STRING, TEXT, "Of a model, the options of `aaco run` that measure it with all that "
                "was accepted, batches aside; null for a kernel, and until it has ended.", since=2),
        ),
    ),
    Table(
        name="optimization_attempts", section="Judgement",
        meaning="One row is one attempt to make a kernel or a model faster, kept or not. Filled by the stage "
                "optimization.",
        sort_by=("attempt", "kernel"), scope="campaign", version=3,
        columns=(
            column("attempt", INT32, ID, "Dense number of the attempt within the search, in the order they were made, "
                "starting at 0."),
            nullable("kernel", STRING, NAME, "Name of the kernel that was to be made faster; null for a model."),
            column("transformation", STRING, TEXT, "What was changed, by the name of the transformation and its "
                "parameters; of a model the options of `aaco run`."),
            column("proposer", STRING, NAME, "Who proposed it: a search strategy, or a language model by its name and "
                "version."),
            nullable("guard", STRING, TEXT, "Guard that stopped the attempt or, when none did, the last one it passed; "
                "null when it never reached one."),
            column("decision", STRING, NAME, "`accepted`, `rejected`, or `undecided` when the time was spent or the "
                "host is too noisy."),
            column("reason", STRING, TEXT, "Why it was so decided, in words that name the guard, the figure or the "
                "fault."),
            nullable("speedup_ratio", FLOAT64, RATIO, "Duration before divided by duration after; above 1 is faster, "
                "the inverse of an effect_ratio; null when it was not measured."),
            nullable("ci_low", FLOAT64, RATIO, "Lower end of the confidence interval of speedup_ratio; null when it "
                "was not measured, or by too few layouts for one."),
            nullable("ci_high", FLOAT64, RATIO, "Upper end of the confidence interval of speedup_ratio; null when it "
                "was not measured, or by too few layouts for one."),
            nullable("executed_on", STRING, NAME, "Device architecture, or emulation, on which the attempt ran; null "
                "when it was never executed."),
            nullable("compiler", STRING, VERSION, "Compiler with version that built the attempt; null when it was not "
                "built."),
            nullable("source_sha256", STRING, TEXT, "SHA-256 of the attempt's source; null when no source came about."),
            nullable("binary_sha256", STRING, TEXT, "SHA-256 of the kernel's machine code, without addresses that a "
                "layout moves; null when it was not built."),
            nullable("vgprs_before", INT64, COUNT, "Vector registers per work-item, accumulation registers included, "
                "before the change; null when not stated by the compiler."),
            nullable("vgprs_after", INT64, COUNT, "Vector registers per work-item, accumulation registers included, "
                "after the change; null when it was not built."),
            nullable("sgprs_before", INT64, COUNT, "Scalar registers per wavefront before the change; null when not "
                "stated by the compiler."),
            nullable("sgprs_after", INT64, COUNT, "Scalar registers per wavefront after the change; null when it was "
                "not built."),
            nullable("lds_bytes_before", INT64, BYTES, "Static local data share per workgroup before the change; null "
                "when not stated by the compiler."),
            nullable("lds_bytes_after", INT64, BYTES, "Static local data share per workgroup after the change; null "
                "when it was not built."),
            nullable("scratch_bytes_before", INT64, BYTES, "Scratch memory per work-item before the change; null when "
                "not stated by the compiler."),
            nullable("scratch_bytes_after", INT64, BYTES, "Scratch memory per work-item after the change; null when it "
                "was not built."),
            nullable("resources_of", STRING, NAME, "Architecture that registers, LDS and scratch memory are of, as a "
                "compiler states them, executed there or not; null when none did.", since=2),
            nullable("measured_in", STRING, NAME, "Processes that speedup_ratio is of: `confirmation`, or `search` for "
                "an attempt that was not confirmed, where having chosen it makes it too large.", since=2),
            nullable("speedup_applies_to", STRING, NAME, "What speedup_ratio says something of: the device that it was "
                "measured on; null when it was not measured.", since=2),
            nullable("flags", STRINGS, TEXT, "The compiler's flags; null when it was not built.", since=2),
            nullable("baseline_sha256", STRING, TEXT, "SHA-256 of the source that it was compared with: the one as it "
                "was, or the last that was accepted.", since=2),
            nullable("bit_exact", BOOL, TRUTH, "Whether outputs had to equal the baseline's bit by bit.", since=2),
            nullable("pairs", INT64, COUNT, "Timed pairs of search and confirmation, of a model pairs of sessions; "
                "null when it was not timed.", since=2),
            nullable("layouts", INT64, COUNT, "Layouts of code that they were timed in, each with fresh processes, of "
                "a model blocks of sessions; null when it was not timed.", since=2),
            nullable("alpha", FLOAT64, RATIO, "Part of the search's alpha that this attempt might spend; null when it "
                "was not timed.", since=2),
            nullable("spent_ns", INT64, NS, "Time that the attempt took.", since=2),
            nullable("ratio_of", STRING, NAME, "Of what speedup_ratio is the ratio of times: a `call` of a kernel, an "
                "`iteration` of a model, or, where batches differ, one `item` of it; null before version 3.", since=3),
            nullable("campaigns", STRINGS, TEXT, "Campaigns whose sessions it was decided from, in the order they were "
                "measured; null for a kernel, whose pairs are in the journal.", since=3),
        ),
    ),
)
