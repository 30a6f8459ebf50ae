"""What was run, where, and what is known of it: sessions, environment, devices, processes, clocks and evidence.

Anything measured or derived does not belong here; it lives in the module of the part of the lake that measured it.
"""

from typing import Final

from aaco_pipeline.lake.contracts import Table, column

TABLES: Final[tuple[Table, ...]] = (
    Table(
        name="sessions",
        section="What was run",
        meaning=(
            "One row is one session: a fresh measured process in one environment, or a capture taken in. Filled by "
            "the stage capture."
        ),
        columns=(
            column(
                "source_kind",
                "string",
                "name",
                False,
                "How the session came about: `live` when this project ran the workload, `capture` when it took in a "
                "capture made elsewhere.",
            ),
            column(
                "source_format",
                "string",
                "name",
                True,
                "Name of the foreign format the raw capture was recognised as; null when no foreign capture was read.",
            ),
            column(
                "workload",
                "string",
                "name",
                True,
                "Name of the workload as the user or the capture gave it; null when neither did.",
            ),
            column(
                "model_name",
                "string",
                "name",
                True,
                "Name of the model that was run, normally its file name without the suffix; null when the capture "
                "does not name one.",
            ),
            column(
                "model_sha256",
                "string",
                "text",
                True,
                "SHA-256 of the model file in lower-case hex; null when the model file was not at hand.",
            ),
            column(
                "backend",
                "string",
                "name",
                True,
                "Inference runtime that executed the model, such as `onnxruntime`; null when the capture does not say.",
            ),
            column(
                "provider",
                "string",
                "name",
                True,
                "Execution provider or device path inside the backend that ran the work, such as "
                "`CPUExecutionProvider`, where device 0 is the CPU; null when unknown.",
            ),
            column(
                "precision",
                "string",
                "name",
                True,
                "Number format the model was run in, such as `fp16`; null when neither the user nor the model states "
                "it.",
            ),
            column(
                "batch_size",
                "int64",
                "count",
                True,
                "Inferences carried out together in one iteration; null when unknown.",
            ),
            column(
                "threads",
                "int32",
                "count",
                True,
                "Intra-op threads asked of the inference runtime; null when none were asked for or the session was "
                "not run here.",
            ),
            column(
                "seed",
                "int64",
                "id",
                True,
                "Seed of the generated inputs; null when the inputs were given or the session was not run here.",
            ),
            column(
                "allow_fallback",
                "bool",
                "bool",
                True,
                "True when operators the requested provider cannot run were allowed onto another one; null when the "
                "session was not run here.",
            ),
            column(
                "prompt_tokens",
                "int32",
                "count",
                True,
                "Tokens of each request's prompt; null when the workload generates no tokens.",
                since=2,
            ),
            column(
                "output_tokens",
                "int32",
                "count",
                True,
                "Tokens generated for each request, the first one included; null when the workload generates none.",
                since=2,
            ),
            column(
                "campaign_id",
                "string",
                "id",
                True,
                "Campaign in which this session is compared with others; null when it belongs to none.",
            ),
            column(
                "arm",
                "string",
                "name",
                True,
                "Side of the campaign: `candidate`, `baseline` or `canary`; null outside a campaign.",
            ),
            column(
                "block",
                "int32",
                "id",
                True,
                "Block of the campaign's design; sessions of one block ran close together in time and are compared "
                "within it; null outside a campaign.",
            ),
            column(
                "started_at",
                "timestamp",
                "timestamp",
                True,
                "When the session began, in UTC by the wall clock; null when the capture carries no wall-clock time.",
            ),
            column(
                "host",
                "string",
                "name",
                True,
                "Name of the host that ran the workload; null when the capture does not say.",
            ),
            column(
                "fingerprint",
                "string",
                "text",
                True,
                "Hash of the `environment` rows with in_fingerprint; sessions with equal values ran on the same "
                "stack; null when no such row is known.",
            ),
            column(
                "capture_digest",
                "string",
                "text",
                True,
                "SHA-256 over the raw capture's files; taking in a capture whose digest the lake already holds "
                "returns that session; null when nothing raw was kept.",
            ),
        ),
        version=2,
        sort_by=("session_id",),
    ),
    Table(
        name="environment",
        section="What was run",
        meaning=(
            "One row is one fact about the machine and software the session ran on, secrets excepted. Filled by the "
            "stage session_environment."
        ),
        columns=(
            column(
                "category",
                "string",
                "name",
                False,
                "Group of facts the key belongs to, such as `driver`, `rocm`, `firmware`, `library`, `kernel`, "
                "`governor`, `container`, `git`, `package` or `cache`.",
            ),
            column("key", "string", "name", False, "Name of the fact, unique within its category."),
            column(
                "value",
                "string",
                "text",
                True,
                "The fact as text, as the tool or file that stated it wrote it; null when it was looked for and could "
                "not be read.",
            ),
            column(
                "in_fingerprint",
                "bool",
                "bool",
                False,
                "True when the fact is hashed into `sessions.fingerprint`, so that a change of it makes another stack.",
            ),
        ),
        sort_by=(
            "category",
            "key",
        ),
    ),
    Table(
        name="devices",
        section="What was run",
        meaning=(
            "One row is one device that the session could use; on the CPU provider device 0 is the CPU. Filled by the "
            "stage session_environment."
        ),
        columns=(
            column("device_id", "int32", "id", False, "Dense number of the device within the session, starting at 0."),
            column("vendor", "string", "name", True, "Maker of the device, such as `AMD`; null when not stated."),
            column(
                "arch",
                "string",
                "name",
                True,
                "Instruction-set architecture the compiler targets, such as `gfx942`; null when not stated.",
            ),
            column("product", "string", "name", True, "Marketing name of the device; null when not stated."),
            column(
                "compute_units",
                "int64",
                "count",
                True,
                "Compute units active on the device as partitioned, over all its XCCs; physical cores on a CPU; null "
                "when not stated.",
            ),
            column(
                "xcc_count",
                "int64",
                "count",
                True,
                "Accelerator complex dies (XCCs) behind this device as partitioned; null when not stated or on a CPU.",
            ),
            column(
                "simd_per_cu",
                "int64",
                "count",
                True,
                "SIMD units in one compute unit; null when not stated or on a CPU.",
            ),
            column(
                "wavefront_size",
                "int64",
                "count",
                True,
                "Work-items in one wavefront, 32 or 64; null when not stated or on a CPU.",
            ),
            column(
                "max_clock_mhz",
                "float64",
                "MHz",
                True,
                "Highest engine clock the device advertises; null when not stated.",
            ),
            column(
                "memory_clock_mhz",
                "float64",
                "MHz",
                True,
                "Highest memory clock the device advertises, before any data-rate multiplier; null when not stated.",
            ),
            column(
                "memory_bytes",
                "int64",
                "bytes",
                True,
                "Size of the device's own memory as partitioned, of main memory on a CPU; null when not stated.",
            ),
            column(
                "memory_bus_bits",
                "int64",
                "bits",
                True,
                "Width of the memory bus as partitioned; null when not stated.",
            ),
            column(
                "l2_bytes",
                "int64",
                "bytes",
                True,
                "Size of the L2 cache of one XCC, or of one core on a CPU; null when not stated.",
            ),
            column(
                "lds_bytes",
                "int64",
                "bytes",
                True,
                "Local data share of one compute unit; null when not stated or on a CPU.",
            ),
            column(
                "partition_mode",
                "string",
                "name",
                True,
                "Compute and memory partition mode as the driver names it, such as `SPX/NPS1`; null when not stated.",
            ),
            column(
                "power_cap_w",
                "float64",
                "W",
                True,
                "Power limit in force when the session ran; null when it could not be read.",
            ),
            column(
                "handle",
                "string",
                "id",
                True,
                "The device's own identifier in the capture (UUID, PCI address or agent handle) as text; never a key "
                "across sessions.",
            ),
        ),
        sort_by=("device_id",),
    ),
    Table(
        name="processes",
        section="What was run",
        meaning=(
            "One row is one operating-system process whose activities the session holds. Filled by the stage "
            "session_environment, and by readers of captures made elsewhere."
        ),
        columns=(
            column(
                "process_id", "int32", "id", False, "Dense number of the process within the session, starting at 0."
            ),
            column(
                "guid",
                "string",
                "id",
                True,
                "Identifier that the capture gives the process, as text; never a key across sessions; null when the "
                "format has none.",
            ),
            column("host", "string", "name", True, "Host the process ran on; null when the capture does not say."),
            column(
                "pid",
                "int64",
                "id",
                True,
                "Process number given by the operating system; null when the capture does not say.",
            ),
            column(
                "rank",
                "int32",
                "id",
                True,
                "Rank of the process in a distributed job; null when there is none or it is not stated.",
            ),
            column(
                "command",
                "string",
                "text",
                True,
                "Command line of the process with secrets removed; null when the capture does not hold it.",
            ),
        ),
        sort_by=("process_id",),
    ),
    Table(
        name="clock_domains",
        section="What was run",
        meaning=(
            "One row says how one source's clock maps onto the session's axis. Filled by each stage that reads a "
            "source with a clock of its own."
        ),
        columns=(
            column(
                "domain",
                "string",
                "name",
                False,
                "Name of the clock, such as `monotonic`, `boottime`, `realtime` or a device counter; the row "
                "`realtime` exists when wall-clock is known.",
            ),
            column(
                "offset_ns",
                "int64",
                "ns",
                True,
                "Nanoseconds to add to a reading of this clock to get a time on the session's axis; null when the "
                "clock could not be tied to it.",
            ),
            column(
                "uncertainty_ns",
                "int64",
                "ns",
                True,
                "Half-width of the interval the true offset lies in; zero for the clock that defines the axis; null "
                "when unknown.",
            ),
            column(
                "anchor",
                "string",
                "text",
                True,
                "What ties the clock to the axis, such as a pair of readings taken together or a mapping stated by "
                "the capture; null when nothing does.",
            ),
        ),
        sort_by=("domain",),
    ),
    Table(
        name="evidence",
        section="What was run",
        meaning=(
            "One row says what one stage had, or lacked, for one item, and why. Filled by every stage before it works."
        ),
        columns=(
            column("stage", "string", "name", False, "Stage that states the evidence."),
            column(
                "item",
                "string",
                "name",
                False,
                "Thing the stage looked for: a table, a file, a counter or a fact; unique within its stage.",
            ),
            column(
                "status",
                "string",
                "name",
                False,
                "`present` when complete, `partial` when some is missing, `absent` when there is none, `invalid` when "
                "it is there and cannot be trusted.",
            ),
            column(
                "reason",
                "string",
                "text",
                True,
                "Why the status is not `present`, in words that name the cause; null when there is nothing to explain.",
            ),
            column(
                "source",
                "string",
                "text",
                True,
                "File in the session's raw folder, or the tool or device, that the item came from; null when there "
                "was none.",
            ),
            column(
                "rows",
                "int64",
                "count",
                True,
                "Records the item gave; zero when it was read and empty, null when it was not read.",
            ),
            column(
                "sha256",
                "string",
                "text",
                True,
                "SHA-256 of the raw file the item came from; null when it is not one file.",
            ),
        ),
        sort_by=(
            "stage",
            "item",
        ),
    ),
)
