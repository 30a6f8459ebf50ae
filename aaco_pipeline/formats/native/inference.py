"""Build tables from a session's raw documents: its sessions, processes, devices, iterations and clocks.

`aaco_pipeline.formats.native` reads and checks the documents.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final

import polars as pl

from aaco_pipeline.formats.capture_tables import Findings, presence, table_of
from aaco_pipeline.formats.parsing.json_document import as_table
from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.lake.evidence import Evidence, Status
from aaco_pipeline.lake.validation import to_contract

FORMAT: Final = "aaco-inference"
FORMAT_VERSION: Final = 2
PROFILE_FILE: Final = "onnxruntime_profile.json.gz"
#: The model's graph, and the runtime's optimized graph, both without weights.
MODEL_FILE: Final = "model.onnx"
OPTIMIZED_FILE: Final = "optimized_model.onnx"
#: A larger change of CLOCK_REALTIME against CLOCK_MONOTONIC within a pass is a step rather than slewing.
CLOCK_STEP_NS: Final = 1_000_000
#: The unprofiled pass, which every capture has, and the pass profiled by the runtime.
PASSES: Final = ("latency", "trace")
#: The profile truncates times to whole microseconds.
_PROFILE_TICK_NS: Final = 1_000


@dataclass(frozen=True)
class ProfilerPass:
    """One run of the session's program under rocprofv3: its request, and the slowdown.

    `kind` is base, counters or thread_trace; `folder` contains the tool's files; `document` was written by the measured
    process. `distortion` is the median latency divided by the unprofiled pass's; its times are never used as the
    session's latencies.
    """

    name: str
    kind: str
    folder: Path
    command: tuple[str, ...]
    counters: tuple[str, ...]
    kernel: str | None
    median_latency_ns: float
    distortion: float | None
    document: Mapping[str, Any]

    @property
    def boot_clock(self) -> tuple[int, int] | None:
        """Return the offset from CLOCK_BOOTTIME, the tool's clock, to CLOCK_MONOTONIC, and its uncertainty.

        Both in ns; the uncertainty covers both readings, and any suspend of the host between them. None without
        readings.
        """
        before, after = self.document.get("boot_clock_before"), self.document.get("boot_clock_after")
        if before is None or after is None:
            return None
        offset = int(before["monotonic_ns"] - before["boottime_ns"])
        moved = abs(int(after["monotonic_ns"] - after["boottime_ns"]) - offset)
        return offset, int(before["uncertainty_ns"]) + int(after["uncertainty_ns"]) + moved


@dataclass(frozen=True)
class InferenceCapture:
    """A session's raw documents, read and checked for the fields that the tables need.

    The session's axis is the host's CLOCK_MONOTONIC, with zero at the unprofiled pass's first clock reading. `passes`
    has the unprofiled pass and, unless only latency was measured, the one profiled by the runtime. `profiler_passes`
    are those under rocprofv3, in order; empty if no profile was requested.
    """

    folder: Path
    capture: Mapping[str, Any]
    host: Mapping[str, Any]
    passes: Mapping[str, Mapping[str, Any]]
    profiler_passes: tuple[ProfilerPass, ...] = ()

    @property
    def axis_zero_monotonic_ns(self) -> int:
        return int(self.passes["latency"]["clocks_before"]["monotonic_ns"])

    @property
    def is_traced(self) -> bool:
        """Return whether the runtime profiled a pass and left its profile."""
        return "trace" in self.passes and self.passes["trace"]["profile"] is not None

    @property
    def tokens_per_request(self) -> int | None:
        """Return the number of tokens generated per request; None if an iteration is a complete inference."""
        tokens: int | None = self.passes["latency"].get("output_tokens")
        return tokens

    def sessions(self, fingerprint: str, capture_digest: str) -> pl.DataFrame:
        """Build the one row of `sessions`."""
        launch = self.capture["launch"]
        inputs = self.passes["latency"]["inputs"]
        floats = sorted({i["dtype"] for i in inputs.values() if i["dtype"].startswith(("float", "bfloat"))})
        firsts = {i["shape"][0] for i in inputs.values() if i["shape"]}
        started = self.passes["latency"]["clocks_before"]["realtime_ns"]
        model, of_model = self.capture["model"], floats[0] if len(floats) == 1 else None
        row = {
            "source_kind": "live",
            "source_format": FORMAT,
            "workload": "generation" if self.tokens_per_request else "inference",
            "workload_kind": "model",
            "model_name": model["name"],
            "model_sha256": model["sha256"],
            "artefact_sha256": model.get("artefact_sha256"),
            "provider": self.capture["provider"],
            "precision": launch["precision"] if launch["precision"] != "model" else of_model,
            "batch_size": firsts.pop() if len(firsts) == 1 else launch["batch_size"],
            "started_at": datetime.fromtimestamp(started / 1e9, UTC),
            "host": self.fact("host", "name"),
            "fingerprint": fingerprint,
            "capture_digest": capture_digest,
            "threads": self.capture["threads"],
            "prompt_tokens": self.passes["latency"].get("prompt_tokens"),
            "output_tokens": self.tokens_per_request,
            **{key: launch[key] for key in ("backend", "campaign_id", "arm", "block", "seed", "allow_fallback")},
        }
        return table_of("sessions", [row])

    def processes(self) -> pl.DataFrame:
        """Build one row per measured process: 0 ran the unprofiled pass, 1 the profiled one, if any."""
        host, model = self.fact("host", "name"), self.capture["model"]["name"]
        pids = ((name, one["process_id"]) for name, one in self.passes.items())
        rows = (
            {"process_id": number, "host": host, "pid": pid, "command": f"aaco {name} pass of {model}"}
            for number, (name, pid) in enumerate(pids)
        )
        return table_of("processes", rows)

    def devices(self) -> pl.DataFrame:
        """List the devices that the session could use: device 0 is the CPU."""
        rows = partial(pl.DataFrame, self.host["devices"], infer_schema_length=None)
        return as_table("devices", rows, self.folder / "host.json")

    def iterations(self) -> pl.DataFrame:
        """Build the iterations of both passes on the session's axis, with warm-up marked.

        The pass `trace` is the one whose kernels the session shows: the one under rocprofv3 if that was requested.
        """
        frames = [self._iterations(name, one) for name, one in self._iterated().items()]
        return to_contract("iterations", pl.concat(frames))

    def iteration_blocks(self) -> pl.DataFrame:
        """Build the process's usage over blocks of iterations; empty for a loop that read it per iteration."""
        schema = polars_types("iteration_blocks")
        blocks = [self._blocks(name, one) for name, one in self._iterated().items()]
        return pl.concat([pl.DataFrame(schema=schema), *blocks])

    def clock_domains(self) -> pl.DataFrame:
        """Map the host's clocks and the profile's clock onto the session's axis."""
        latency = self.passes["latency"]["clocks_before"]
        zero = self.axis_zero_monotonic_ns
        rows = [
            {
                "domain": "monotonic",
                "offset_ns": -zero,
                "uncertainty_ns": 0,
                "anchor": "CLOCK_MONOTONIC of the host; zero is the start of the unprofiled pass",
            },
            {
                "domain": "realtime",
                "offset_ns": latency["monotonic_ns"] - latency["realtime_ns"] - zero,
                "uncertainty_ns": latency["uncertainty_ns"],
                "anchor": "bracketed readings of CLOCK_REALTIME and CLOCK_MONOTONIC before the unprofiled pass",
            },
        ]
        if self.is_traced:
            trace = self.passes["trace"]["clocks_before"]
            rows.append(
                {
                    "domain": "onnxruntime_profile",
                    "offset_ns": self.profile_axis_start_ns(),
                    "uncertainty_ns": trace["uncertainty_ns"] + abs(self.clock_drift_ns("trace")) + _PROFILE_TICK_NS,
                    "anchor": "the runtime's own wall-clock start of profiling, mapped by the readings of the pass",
                }
            )
        return table_of("clock_domains", rows)

    def profile_axis_start_ns(self) -> int:
        """Return the position of the profile's time zero on the session's axis; only for traced sessions."""
        trace = self.passes["trace"]
        clocks = trace["clocks_before"]
        since = int(trace["profile"]["start_realtime_ns"]) - int(clocks["realtime_ns"])
        return since + int(clocks["monotonic_ns"]) - self.axis_zero_monotonic_ns

    def clock_drift_ns(self, name: str) -> int:
        """Return how far CLOCK_REALTIME moved against CLOCK_MONOTONIC during a pass."""
        before, after = self.passes[name]["clocks_before"], self.passes[name]["clocks_after"]
        return int((after["realtime_ns"] - after["monotonic_ns"]) - (before["realtime_ns"] - before["monotonic_ns"]))

    def inference_evidence(self) -> tuple[Evidence, ...]:
        """Report the data that the passes have and lack."""
        findings = Findings()
        for name in self.passes:
            self._say_pass(findings, name)
        if "trace" not in self.passes:
            reason = "this session was measured for its latency alone: others of its campaign are traced"
            findings.say("trace pass", "absent", reason, source="capture.json")
        latency, asked = self.passes["latency"], self.capture["provider"]
        if "blocks" not in latency:
            reason = (
                "measured by an earlier loop, which read CPU time around each iteration: preemption and throttling "
                "could strike there, in no latency; `iteration_gaps` shows them; to compare with its like only"
            )
            findings.say("measurement loop", "partial", reason, source="latency.json")
        placement = latency["placement"]
        elsewhere = {name: count for name, count in placement["node_counts"].items() if name != asked}
        if elsewhere or asked not in placement["active"]:
            where = ", ".join(f"{count} nodes on {provider}" for provider, count in sorted(elsewhere.items()))
            reason = f"{asked} was asked for; fallback was allowed: {where}"
            findings.say("execution provider", "partial", reason, source=asked)
        else:
            findings.say("execution provider", "present", source=asked)
        findings.say("io binding", "present", source=latency["io_binding"])
        self._say_slot(findings)
        for one in self.profiler_passes:
            self._say_profiler_pass(findings, one)
        return tuple(findings.evidence)

    def _say_slot(self, findings: Findings) -> None:
        """Report the lock that prevented other measurements on the host, and its limits."""
        slot = self.capture.get("measurement_slot")
        if slot is None:
            return
        reason = None
        if slot["container"] is not None:
            shared = PurePosixPath(slot["file"]).parent
            reason = (
                f"in a container ({slot['container']}): measurements in other containers of this host are not kept "
                f"apart, unless they share its {shared}"
            )
        findings.say("measurement slot", "present", reason, source=slot["file"])

    def _say_pass(self, findings: Findings, name: str) -> None:
        one, source = self.passes[name], f"{name}.json"
        cut = one["iterations"] < one["iterations_asked"]
        reason = (
            f"{one['iterations']} of {one['iterations_asked']} iterations, so that the profile stays below the "
            "runtime's cap on events"
        )
        count = one["warmup"] + one["iterations"]
        findings.say(f"{name} pass", "partial" if cut else "present", reason if cut else None, count, source)
        delays = [block["run_delay_ns"] for block in one["blocks"]] if "blocks" in one else one["run_delay_ns"]
        if unread := delays.count(None):
            status: Status = "absent" if unread == len(delays) else "partial"
            parts = "blocks" if "blocks" in one else "iterations"
            reason = f"{unread} {parts} have none: /proc/self/task/*/schedstat could not be read"
            findings.say(f"run-queue delay of the {name} pass", status, reason, source=source)
        if "blocks" in one:
            reason = "read in blocks (`iteration_blocks`): around each iteration, the reading itself lets delays strike"
            findings.say(f"CPU time and run-queue delay of the {name} pass", "present", reason, len(delays), source)
        drift = self.clock_drift_ns(name)
        if abs(drift) > CLOCK_STEP_NS:
            reason = (
                f"CLOCK_REALTIME moved {drift} ns against CLOCK_MONOTONIC during the pass; wall-clock times are "
                "uncertain by as much, latencies are not concerned"
            )
            findings.say(f"wall clock of the {name} pass", "partial", reason, source=source)

    def _say_profiler_pass(self, findings: Findings, one: ProfilerPass) -> None:
        """Report a pass under rocprofv3 with its distortion, and markers that could not be set."""
        source = one.folder.relative_to(self.folder).as_posix()
        ratio = "unknown" if one.distortion is None else f"{one.distortion:.3g}"
        told = f"median latency {one.median_latency_ns:.0f} ns, {ratio} times that of the unprofiled pass"
        count = one.document["warmup"] + one.document["iterations"]
        findings.say(f"rocprofv3 {one.name} pass", "present", told, count, source)
        markers = one.document.get("markers")
        if markers is not None:
            there = markers["library"] is not None
            reason = markers["missing"] or f"set with {markers['library']}"
            findings.say("iteration markers", presence(there), reason, count if there else None, source)

    def fact(self, category: str, key: str) -> str | None:
        """Return one fact about the host by category and key; None if unknown."""
        for one in self.host["facts"]:
            if (one["category"], one["key"]) == (category, key):
                value: str | None = one["value"]
                return value
        return None

    def _iterated(self) -> dict[str, Mapping[str, Any]]:
        """Return the document of each pass whose iterations are shown."""
        base = next((one.document for one in self.profiler_passes if one.kind == "base"), None)
        return {**self.passes, **({} if base is None else {"trace": base})}

    def _iterations(self, name: str, one: Mapping[str, Any]) -> pl.DataFrame:
        unread = [None] * len(one["start_monotonic_ns"])
        frame = pl.DataFrame(
            {
                "start_ns": one["start_monotonic_ns"],
                "end_ns": one["end_monotonic_ns"],
                "cpu_time_ns": one.get("cpu_time_ns", unread),
                "run_delay_ns": one.get("run_delay_ns", unread),
            },
            schema_overrides={"cpu_time_ns": pl.Int64, "run_delay_ns": pl.Int64},
        ).with_row_index("iteration")
        zero = self.axis_zero_monotonic_ns
        tokens = self.tokens_per_request
        token_index = pl.lit(None) if tokens is None else pl.col("iteration") % tokens
        return frame.with_columns(
            pl.lit(name).alias("pass"),
            pl.col("start_ns", "end_ns") - zero,
            phase=pl.when(pl.col("iteration") < one["warmup"]).then(pl.lit("warmup")).otherwise(pl.lit("measure")),
            token_index=token_index,
            latency_ns=pl.col("end_ns") - pl.col("start_ns"),
        )

    def _blocks(self, name: str, one: Mapping[str, Any]) -> pl.DataFrame:
        zero = self.axis_zero_monotonic_ns
        rows: list[dict[str, Any]] = []
        first = 0
        for block in one.get("blocks", ()):
            span = {f"{end}_ns": block[f"{end}_monotonic_ns"] - zero for end in ("start", "end")}
            phase = "warmup" if first < one["warmup"] else "measure"
            used = {key: block[key] for key in ("iterations", "cpu_time_ns", "run_delay_ns")}
            rows.append({"pass": name, "block": len(rows), "phase": phase, "first_iteration": first, **span, **used})
            first += block["iterations"]
        return pl.DataFrame(rows, schema=polars_types("iteration_blocks"))
