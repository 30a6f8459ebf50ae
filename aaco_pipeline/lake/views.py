"""Helper views for common questions, declared once for SQL, `aaco tables` and the data dictionary.

`aaco_pipeline.lake.sql` runs SQL; tables are declared in `aaco_pipeline.lake.tables`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class HelperView:
    """A common question as a view over the contracts' views.

    `tables` are all tables it reads, `columns` its columns with their meanings; the name ends in the unit.
    """

    name: str
    meaning: str
    tables: tuple[str, ...]
    columns: Mapping[str, str]
    select: str


_SESSION: Final = {"session_id": "Session."}
_OF_SESSION: Final = {
    "started_at": "When it began.",
    "model_name": "What was measured.",
    "backend": "As in `sessions`.",
}
_ON_PLANES: Final = (
    *("iterations", "iteration_gaps", "api_calls", "dispatches", "kernels", "memory_copies", "thread_states"),
    *("kernel_events", "kernel_losses", "gpu_samples", "system_samples", "clock_domains"),
)
_PLANE: Final = {
    "plane": "`iteration`, `gap`, `host call`, `kernel`, `copy`, `thread state`, `events lost`, `gpu sample`, "
    "`host sample`, or a kind of `kernel_events`.",
    "lane": "Where: the pass, a thread, a CPU, a device or the host.",
    "name": "What it was; of a state also what for and by whom, of a sample what was read.",
}
_UNCERTAINTY: Final = "How far it may lie elsewhere on the axis; 0 of what the axis's own clock timed."

#: In dependency order: a view may use those before it.
HELPER_VIEWS: Final = (
    HelperView(
        "latest_sessions",
        "One row per session, newest first, with the median and 90th-percentile latency of its unprofiled pass.",
        ("sessions", "session_metrics"),
        {
            **_SESSION,
            **_OF_SESSION,
            "provider": "As in `sessions`.",
            "batch_size": "As in `sessions`.",
            "precision": "As in `sessions`.",
            "host": "As in `sessions`.",
            "latency_p50_ns": "Median latency of measured iterations; null without them.",
            "latency_p90_ns": "90th percentile of the same.",
        },
        """
        SELECT s.session_id, s.started_at, s.model_name, s.backend, s.provider, s.batch_size, s.precision, s.host,
               max(m.value) FILTER (m.metric = 'latency_p50') AS latency_p50_ns,
               max(m.value) FILTER (m.metric = 'latency_p90') AS latency_p90_ns
        FROM sessions AS s
        LEFT JOIN session_metrics AS m
          ON m.session_id = s.session_id AND m."pass" = 'latency' AND m.phase = 'measure'
        GROUP BY ALL
        ORDER BY s.session_id DESC
        """,
    ),
    HelperView(
        "kernel_history",
        "One row per kernel and session: how often it ran and how long it took, comparable by name and fingerprint.",
        ("sessions", "kernels", "kernel_stats"),
        {
            "name": "The kernel.",
            "fingerprint": "As in `kernels`.",
            **_SESSION,
            **_OF_SESSION,
            "batch_size": "As in `sessions`.",
            "dispatch_count": "How often it ran.",
            "total_ns": "All its time.",
            "mean_ns": "Mean of a dispatch.",
            "p50_ns": "Median of a dispatch.",
            "share_ratio": "As in `kernel_stats`.",
        },
        """
        SELECT k.name, k.fingerprint, s.session_id, s.started_at, s.model_name, s.backend, s.batch_size,
               t.dispatch_count, t.total_ns, t.mean_ns, t.p50_ns, t.share_ratio
        FROM kernel_stats AS t
        JOIN kernels AS k USING (session_id, kernel_id)
        JOIN sessions AS s USING (session_id)
        ORDER BY k.name, s.session_id, k.kernel_id
        """,
    ),
    HelperView(
        "planes",
        "One row per time interval of any plane on the session's axis: iterations and the gaps between them, host "
        "calls, kernels and copies, threads' states, interrupts, calls and faults, lost events, samples of GPUs and "
        "the host. What went on meanwhile is a join by time.",
        _ON_PLANES,
        {
            **_SESSION,
            **_PLANE,
            "start_ns": "When it began, on the session's axis.",
            "end_ns": "When it ended; the same for what has no extent, or whose end was not recorded.",
            "uncertainty_ns": _UNCERTAINTY,
        },
        """
        WITH uncertain AS (SELECT session_id, max(uncertainty_ns) AS uncertainty_ns FROM clock_domains GROUP BY ALL)
        SELECT p.*, CASE WHEN p.plane IN ('host call', 'kernel', 'copy') THEN u.uncertainty_ns ELSE 0 END
               AS uncertainty_ns
        FROM (
          SELECT session_id, 'iteration' AS plane, "pass" AS lane, concat(phase, ' ', iteration) AS name, start_ns,
                 end_ns FROM iterations
          UNION ALL SELECT session_id, 'gap', "pass", concat('before ', before_iteration), start_ns, end_ns
            FROM iteration_gaps
          UNION ALL SELECT session_id, 'host call', concat('thread ', thread_id), name, start_ns, end_ns FROM api_calls
          UNION ALL SELECT d.session_id, 'kernel', concat('device ', d.device_id), k.name, d.start_ns, d.end_ns
            FROM dispatches AS d LEFT JOIN kernels AS k USING (session_id, kernel_id)
          UNION ALL SELECT session_id, 'copy', concat('device ', device_id), direction, start_ns, end_ns
            FROM memory_copies
          UNION ALL SELECT session_id, 'thread state', concat('thread ', thread_id),
                 concat_ws(' by ', concat_ws(' on ', state, wait), by_name), start_ns, end_ns FROM thread_states
          UNION ALL SELECT session_id, kind, concat_ws(', ', 'cpu ' || cpu, 'thread ' || thread_id),
                 CASE kind WHEN 'cpu_frequency' THEN value || ' kHz' WHEN 'signal' THEN 'signal ' || value
                 ELSE name END, time_ns, time_ns + coalesce(duration_ns, 0) FROM kernel_events
            WHERE kind IN ('interrupt', 'softirq', 'syscall', 'page_fault', 'block_io', 'gpu_job', 'fence_wait',
                           'signal', 'cpu_frequency')
          UNION ALL SELECT session_id, 'events lost', 'cpu ' || cpu, buffer, start_ns, end_ns FROM kernel_losses
          UNION ALL SELECT session_id, 'gpu sample', concat('device ', device_id),
                 concat_ws(', ', power_w || ' W', gfx_clock_mhz || ' MHz', array_to_string(throttle_reasons, ' ')),
                 time_ns, time_ns FROM gpu_samples
          UNION ALL SELECT session_id, 'host sample', 'host',
                 concat_ws(', ', 'CPUs busy ' || round(cpu_ratio, 3), round(clock_mhz) || ' MHz'),
                 time_ns, time_ns FROM system_samples
        ) AS p LEFT JOIN uncertain AS u USING (session_id)
        ORDER BY p.session_id, p.start_ns, p.plane, p.lane, p.name
        """,
    ),
    HelperView(
        "iteration_planes",
        "What the machine did during each iteration: one row per iteration and whatever of `planes` lies in it or "
        "reaches into it, except iterations and gaps. Ask for few iterations of a long session: each is compared with "
        "all that the session recorded.",
        _ON_PLANES,
        {
            **_SESSION,
            "pass": "Pass of the iteration.",
            "iteration": "Number of the iteration within its pass.",
            "phase": "`warmup` or `measure`.",
            **_PLANE,
            "occurrences": "How many of them there were.",
            "during_ns": "How much of the iteration they took, each clipped to it, summed; 0 of what has no extent.",
            "uncertainty_ns": _UNCERTAINTY,
        },
        """
        SELECT i.session_id, i."pass", i.iteration, i.phase, p.plane, p.lane, p.name, count(*) AS occurrences,
               CAST(sum(least(p.end_ns, i.end_ns) - greatest(p.start_ns, i.start_ns)) AS BIGINT) AS during_ns,
               max(p.uncertainty_ns) AS uncertainty_ns
        FROM iterations AS i
        JOIN planes AS p
          ON p.session_id = i.session_id AND p.start_ns < i.end_ns
         AND (p.end_ns > i.start_ns OR p.start_ns = i.start_ns) AND p.plane NOT IN ('iteration', 'gap')
        GROUP BY ALL
        ORDER BY i.session_id, i."pass", i.iteration, p.plane, p.lane, p.name
        """,
    ),
)
