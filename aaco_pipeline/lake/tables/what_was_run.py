"""What was run, where, and what is known of it: sessions, environment, devices, processes, clocks and evidence.

Anything measured or derived does not belong here; it lives in the module of the part of the lake that measured it.
"""

from typing import Final

from aaco_pipeline.lake.declaration import (
    BITS,
    BOOL,
    BYTES,
    COUNT,
    DATE,
    FLOAT64,
    ID,
    INT32,
    INT64,
    MHZ,
    NAME,
    NS,
    STRING,
    TEXT,
    TIMESTAMP,
    TRUTH,
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
)
