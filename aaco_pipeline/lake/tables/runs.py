"""The runs themselves: sessions, environment, devices and clocks, the model's graph, iterations, and recorded programs.

Events of a run are `trace`, periodic samples `telemetry`, and figures derived from either `analysis`.
"""

from typing import Final

from aaco_pipeline.lake.declaration import (
    BITS,
    BOOL,
    BYTES,
    COUNT,
    DATE,
    FLOAT64,
    FLOP,
    ID,
    INT32,
    INT64,
    INT64S,
    MHZ,
    NAME,
    NS,
    STRING,
    STRINGS,
    TEXT,
    TIMESTAMP,
    TRUTH,
    VARIES,
    WATT,
    Table,
    column,
    nullable,
)

# A column is one call of at most three lines.
# fmt: off
TABLES: Final[tuple[Table, ...]] = (
    Table(
        name="sessions", section="What was run",
        meaning="One row is one session: a fresh measured process in one environment, or a capture taken in. Filled by "
                "the stage capture.",
        sort_by=("session_id",), version=4,
        columns=(
            column("source_kind", STRING, NAME, "How the session came about: `live` when this project ran the "
                "workload, `capture` when it took in a capture made elsewhere."),
            nullable("source_format", STRING, NAME, "Name of the foreign format the raw capture was recognised as; "
                "null when no foreign capture was read."),
            nullable("workload", STRING, NAME, "Name of the workload as the user or the capture gave it; null when "
                "neither did."),
            nullable("workload_kind", STRING, NAME, "`model` for one that this project's runner ran, `program` for one "
                "that `aaco record` ran; null for a capture made elsewhere.", since=4),
            nullable("failure", STRING, TEXT, "Which run of a program failed and how, as `run_2 was ended by SIGSEGV`: "
                "such a session is compared with none; null when all ended well, and for anything else.", since=4),
            nullable("model_name", STRING, NAME, "Name of the model that was run, normally its file name without the "
                "suffix; null when the capture does not name one."),
            nullable("model_sha256", STRING, TEXT, "SHA-256 of the model file in lower-case hex; null when the model "
                "file was not at hand."),
            nullable("artefact_sha256", STRING, TEXT, "What tells one model from another with all its weights: the "
                "SHA-256 of its file or, where weights lie beside it, of the list of all their SHA-256; null when the "
                "session was not run here.", since=3),
            nullable("backend", STRING, NAME, "Inference runtime that executed the model, such as `onnxruntime`; null "
                "when the capture does not say."),
            nullable("provider", STRING, NAME, "Execution provider or device path inside the backend that ran the "
                "work, such as `CPUExecutionProvider`, where device 0 is the CPU; null when unknown."),
            nullable("precision", STRING, NAME, "Number format the model was run in, such as `fp16`; null when neither "
                "the user nor the model states it."),
            nullable("batch_size", INT64, COUNT, "Inferences carried out together in one iteration; null when "
                "unknown."),
            nullable("threads", INT32, COUNT, "Intra-op threads asked of the inference runtime; null when none were "
                "asked for or the session was not run here."),
            nullable("seed", INT64, ID, "Seed of the generated inputs; null when the inputs were given or the session "
                "was not run here."),
            nullable("allow_fallback", BOOL, TRUTH, "True when operators the requested provider cannot run were "
                "allowed onto another one; null when the session was not run here."),
            nullable("prompt_tokens", INT32, COUNT, "Tokens of each request's prompt; null when the workload generates "
                "no tokens.", since=2),
            nullable("output_tokens", INT32, COUNT, "Tokens generated for each request, the first one included; null "
                "when the workload generates none.", since=2),
            nullable("campaign_id", STRING, ID, "Campaign in which this session is compared with others; null when it "
                "belongs to none."),
            nullable("arm", STRING, NAME, "Side of the campaign: `candidate`, `baseline` or `canary`; null outside a "
                "campaign."),
            nullable("block", INT32, ID, "Block of the campaign's design; sessions of one block ran close together in "
                "time and are compared within it; null outside a campaign."),
            nullable("started_at", TIMESTAMP, DATE, "When the session began, in UTC by the wall clock; null when the "
                "capture carries no wall-clock time."),
            nullable("host", STRING, NAME, "Name of the host that ran the workload; null when the capture does not "
                "say."),
            nullable("fingerprint", STRING, TEXT, "Hash of the `environment` rows with in_fingerprint; sessions with "
                "equal values ran on the same stack; null when no such row is known."),
            nullable("capture_digest", STRING, TEXT, "SHA-256 over the raw capture's files; taking in a capture whose "
                "digest the lake already holds returns that session; null when nothing raw was kept."),
        ),
    ),
    Table(
        name="environment", section="What was run",
        meaning="One row is one fact about the machine and software the session ran on, secrets excepted. Filled by "
                "the stage session_environment.",
        sort_by=("category", "key"),
        columns=(
            column("category", STRING, NAME, "Group of facts the key belongs to, such as `driver`, `rocm`, `firmware`, "
                "`library`, `kernel`, `governor`, `container`, `git`, `package` or `cache`."),
            column("key", STRING, NAME, "Name of the fact, unique within its category."),
            nullable("value", STRING, TEXT, "The fact as text, as the tool or file that stated it wrote it; null when "
                "it was looked for and could not be read."),
            column("in_fingerprint", BOOL, TRUTH, "True when the fact is hashed into `sessions.fingerprint`, so that a "
                "change of it makes another stack."),
        ),
    ),
    Table(
        name="devices", section="What was run",
        meaning="One row is one device that the session could use; on the CPU provider device 0 is the CPU. Filled by "
                "the stage session_environment.",
        sort_by=("device_id",), version=2,
        columns=(
            column("device_id", INT32, ID, "Dense number of the device within the session, starting at 0."),
            nullable("vendor", STRING, NAME, "Maker of the device, such as `AMD`; null when not stated."),
            nullable("arch", STRING, NAME, "Instruction-set architecture the compiler targets, such as `gfx942`; null "
                "when nothing tells it."),
            nullable("arch_source", STRING, NAME, "What tells `arch`: `user` (stated with the capture or afterwards), "
                "`capture`, `product` (its name), `kernel names` (the target that they name: a hint); null without."),
            nullable("product", STRING, NAME, "Marketing name of the device; null when not stated."),
            nullable("compute_units", INT64, COUNT, "Compute units active on the device as partitioned, over all its "
                "XCCs; physical cores on a CPU; null when not stated."),
            nullable("xcc_count", INT64, COUNT, "Accelerator complex dies (XCCs) behind this device as partitioned; "
                "null when not stated or on a CPU."),
            nullable("simd_per_cu", INT64, COUNT, "SIMD units in one compute unit; null when not stated or on a CPU."),
            nullable("wavefront_size", INT64, COUNT, "Work-items in one wavefront, 32 or 64; null when not stated or "
                "on a CPU."),
            nullable("max_clock_mhz", FLOAT64, MHZ, "Highest engine clock the device advertises; null when not "
                "stated."),
            nullable("memory_clock_mhz", FLOAT64, MHZ, "Highest memory clock the device advertises, before any "
                "data-rate multiplier; null when not stated."),
            nullable("memory_bytes", INT64, BYTES, "Size of the device's own memory as partitioned, of main memory on "
                "a CPU; null when not stated."),
            nullable("memory_bus_bits", INT64, BITS, "Width of the memory bus as partitioned; null when not stated."),
            nullable("l2_bytes", INT64, BYTES, "Size of the L2 cache of one XCC, or of one core on a CPU; null when "
                "not stated."),
            nullable("lds_bytes", INT64, BYTES, "Local data share of one compute unit; null when not stated or on a "
                "CPU."),
            nullable("partition_mode", STRING, NAME, "Compute and memory partition mode as the driver names it, such "
                "as `SPX/NPS1`; null when not stated."),
            nullable("power_cap_w", FLOAT64, WATT, "Power limit in force when the session ran; null when it could not "
                "be read."),
            nullable("handle", STRING, ID, "The device's own identifier in the capture (UUID, PCI address or agent "
                "handle) as text; never a key across sessions."),
        ),
    ),
    Table(
        name="processes", section="What was run",
        meaning="One row is one operating-system process whose activities the session holds. Filled by the stage "
                "session_environment, and by readers of captures made elsewhere.",
        sort_by=("process_id",),
        columns=(
            column("process_id", INT32, ID, "Dense number of the process within the session, starting at 0."),
            nullable("guid", STRING, ID, "Identifier that the capture gives the process, as text; never a key across "
                "sessions; null when the format has none."),
            nullable("host", STRING, NAME, "Host the process ran on; null when the capture does not say."),
            nullable("pid", INT64, ID, "Process number given by the operating system; null when the capture does not "
                "say."),
            nullable("rank", INT32, ID, "Rank of the process in a distributed job; null when there is none or it is "
                "not stated."),
            nullable("command", STRING, TEXT, "Command line of the process with secrets removed; null when the capture "
                "does not hold it."),
        ),
    ),
    Table(
        name="clock_domains", section="What was run",
        meaning="One row says how one source's clock maps onto the session's axis. Filled by each stage that reads a "
                "source with a clock of its own.",
        sort_by=("domain",),
        columns=(
            column("domain", STRING, NAME, "Name of the clock, such as `monotonic`, `boottime`, `realtime` or a device "
                "counter; the row `realtime` exists when wall-clock is known."),
            nullable("offset_ns", INT64, NS, "Nanoseconds to add to a reading of this clock to get a time on the "
                "session's axis; null when the clock could not be tied to it."),
            nullable("uncertainty_ns", INT64, NS, "Half-width of the interval the true offset lies in; zero for the "
                "clock that defines the axis; null when unknown."),
            nullable("anchor", STRING, TEXT, "What ties the clock to the axis, such as a pair of readings taken "
                "together or a mapping stated by the capture; null when nothing does."),
        ),
    ),
    Table(
        name="evidence", section="What was run",
        meaning="One row says what one stage had, or lacked, for one item, and why. Filled by every stage before it "
                "works.",
        sort_by=("stage", "item"),
        columns=(
            column("stage", STRING, NAME, "Stage that states the evidence."),
            column("item", STRING, NAME, "Thing the stage looked for: a table, a file, a counter or a fact; unique "
                "within its stage."),
            column("status", STRING, NAME, "`present` when complete, `partial` when some is missing, `absent` when "
                "there is none, `invalid` when it is there and cannot be trusted."),
            nullable("reason", STRING, TEXT, "Why the status is not `present`, in words that name the cause; null when "
                "there is nothing to explain."),
            nullable("source", STRING, TEXT, "File in the session's raw folder, or the tool or device, that the item "
                "came from; null when there was none."),
            nullable("rows", INT64, COUNT, "Records the item gave; zero when it was read and empty, null when it was "
                "not read."),
            nullable("sha256", STRING, TEXT, "SHA-256 of the raw file the item came from; null when it is not one "
                "file."),
        ),
    ),
    Table(
        name="model_nodes", section="Model",
        meaning="One row is one operator of the model graph with the work its shapes imply. Filled by the stage "
                "model_graph.",
        sort_by=("node_id",),
        columns=(
            column("node_id", INT32, ID, "Dense number of the operator in the graph's topological order, starting at "
                "0."),
            column("name", STRING, NAME, "Name of the operator in the model; made from op_type and node_id where the "
                "model gives none."),
            column("op_type", STRING, NAME, "Operator type, such as `Conv` or `MatMul`."),
            column("domain", STRING, NAME, "Operator-set domain that defines the type; `ai.onnx` for the default one."),
            column("inputs", STRINGS, NAME, "Tensors the operator reads, weights included, in the order of its "
                "signature; an omitted optional input is an empty name."),
            column("outputs", STRINGS, NAME, "Tensors the operator writes, in the order of its signature."),
            nullable("flops", FLOAT64, FLOP, "Floating-point operations of one execution by formula, a multiply-add "
                "counted as two; null when a shape is unknown or there is no formula for the type."),
            nullable("read_bytes", INT64, BYTES, "Bytes of all inputs, weights included, each counted once; the least "
                "one execution must read; null when a shape is unknown."),
            nullable("written_bytes", INT64, BYTES, "Bytes of all outputs, each counted once; the least one execution "
                "must write; null when a shape is unknown."),
            nullable("shape_source", STRING, NAME, "What the shapes behind flops and bytes come from, such as the "
                "model's own declaration, shape inference or the inputs of the run; null when shapes are unknown."),
        ),
    ),
    Table(
        name="model_edges", section="Model",
        meaning="One row is one tensor passed from one operator to another, or across the graph's border. Filled by "
                "the stage model_graph.",
        sort_by=("from_node_id", "to_node_id", "tensor"),
        columns=(
            nullable("from_node_id", INT32, ID, "Operator that writes the tensor; null when it is an input or a weight "
                "of the graph."),
            nullable("to_node_id", INT32, ID, "Operator that reads the tensor; null when it is an output of the "
                "graph."),
            column("tensor", STRING, NAME, "Name of the tensor in the model."),
            nullable("dtype", STRING, NAME, "Element type of the tensor, such as `float16`; null when the model does "
                "not say."),
            nullable("shape", INT64S, COUNT, "Extent of each dimension, outermost first, with null for an unknown one; "
                "empty for a scalar; null when the rank is unknown."),
        ),
    ),
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
            column("wall_ns", INT64, NS, "end_ns less start_ns: what a user waits."),
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
