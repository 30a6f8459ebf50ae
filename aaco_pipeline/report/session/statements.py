"""SQL statements that read the parts of a session's document from the lake.

They only select and order; what the rows mean is put into words elsewhere.
"""

from collections.abc import Mapping
from typing import Final

#: Rows of the lists that are cut short.
LISTED_KERNELS: Final = 60
LISTED_INSTRUCTIONS: Final = 3
_TOP_KERNELS: Final = 10
_PRIORITIES: Final = 20
_STALLS: Final = 10

#: Of one resource's lower bounds the one that counts: from a measured ceiling where there is one, the longest format.
_BOUNDS: Final = (
    "(SELECT kernel_id, list(struct_pack(resource := resource, dtype := dtype, lower_bound_ns := lower_bound_ns, "
    "share_ratio := share_ratio, ceiling_source := ceiling_source) ORDER BY lower_bound_ns DESC, resource)[1:2] "
    "AS nearest_bounds FROM (SELECT * FROM resource_bounds WHERE session_id = '{session}' QUALIFY row_number() OVER "
    "(PARTITION BY kernel_id, resource ORDER BY ceiling_source, lower_bound_ns DESC, dtype) = 1) GROUP BY kernel_id)"
)
_LABELS_OF_KERNELS: Final = "(SELECT * FROM bottlenecks WHERE session_id = '{session}' AND scope = 'kernel')"
_WHOLE: Final = "(SELECT * FROM {table} WHERE session_id = '{{session}}' AND dispatch_id IS NULL)"

#: The short document.
SUMMARY: Final[Mapping[str, str]] = {
    "session": "SELECT * FROM sessions WHERE session_id = '{session}'",
    "metrics": (
        'SELECT metric, "pass", phase, value, unit, n, ci_low, ci_high FROM session_metrics '
        "WHERE session_id = '{session}' ORDER BY ALL"
    ),
    "timeline": (
        "SELECT device_id, window_rule, window_end_ns - window_start_ns AS window_ns, busy_ns, active_ratio, "
        "busy_bound, overlapped_ns, activity_count FROM timeline "
        "WHERE session_id = '{session}' AND iteration IS NULL AND window_rule = 'first_to_last_activity' "
        "ORDER BY ALL"
    ),
    "program_runs": "SELECT * EXCLUDE (session_id) FROM program_runs WHERE session_id = '{session}' ORDER BY run",
    # Of the runs that count, and of each name all its ranges: those of warm-up stand with the iterations left out.
    "phases": (
        "WITH timed AS (SELECT run FROM program_runs "
        "WHERE session_id = '{session}' AND \"pass\" = 'latency' AND phase = 'measure'), "
        "measured AS (SELECT run, iteration, latency_ns FROM iterations "
        "WHERE session_id = '{session}' AND \"pass\" = 'latency' AND phase = 'measure') "
        "SELECT m.name, count(*) AS times, count(DISTINCT m.run) AS runs, "
        "CAST(median(m.end_ns - m.start_ns) AS BIGINT) AS median_ns, max(m.end_ns - m.start_ns) AS longest_ns, "
        "CAST(sum(m.end_ns - m.start_ns) / count(DISTINCT m.run) AS BIGINT) AS run_ns, "
        "sum(m.end_ns - m.start_ns) FILTER (i.iteration IS NOT NULL) "
        "/ (SELECT sum(latency_ns) FROM measured) AS iterations_ratio "
        "FROM (SELECT * FROM program_marks WHERE session_id = '{session}' AND kind = 'phase') AS m "
        "JOIN timed USING (run) LEFT JOIN measured AS i ON i.run = m.run AND i.iteration = m.iteration "
        "GROUP BY m.name ORDER BY run_ns DESC, m.name"
    ),
    "top_kernels": (
        "SELECT k.name, k.short_name AS operator, k.library, t.dispatch_count, t.total_ns, t.mean_ns, t.share_ratio "
        "FROM kernel_stats AS t JOIN kernels AS k USING (session_id, kernel_id) "
        f"WHERE session_id = '{{session}}' ORDER BY t.total_ns DESC, k.kernel_id LIMIT {_TOP_KERNELS}"
    ),
    "stalls": (
        "SELECT k.name, k.short_name AS operator, s.dispatch_id, s.capture, s.reason, s.stall_cycles, s.samples, "
        "s.share_ratio, sum(s.stall_cycles) OVER trace AS trace_cycles, sum(s.samples) OVER trace AS trace_samples "
        "FROM (SELECT * FROM att_stalls WHERE session_id = '{session}') AS s "
        "LEFT JOIN (SELECT * FROM kernels WHERE session_id = '{session}') AS k USING (kernel_id) "
        "WINDOW trace AS (PARTITION BY s.kernel_id, s.dispatch_id, s.capture) "
        "ORDER BY trace_cycles DESC NULLS LAST, trace_samples DESC NULLS LAST, s.kernel_id, s.dispatch_id, s.capture, "
        f"s.stall_cycles DESC NULLS LAST, s.samples DESC NULLS LAST, s.reason LIMIT {_STALLS}"
    ),
    "missing": (
        "SELECT DISTINCT item, status, reason FROM evidence "
        "WHERE session_id = '{session}' AND status <> 'present' ORDER BY status DESC, item, reason"
    ),
    "answers": "SELECT * EXCLUDE (session_id) FROM answers WHERE session_id = '{session}' ORDER BY ALL",
    "time_shares": (
        "SELECT * EXCLUDE (session_id) FROM time_shares WHERE session_id = '{session}' "
        "ORDER BY device_id, time_ns DESC, share, reason NULLS FIRST"
    ),
    "time_by_limit": (
        "SELECT b.label, sum(t.share_ratio) AS share_ratio, max(t.total_ns) AS heaviest_ns, "
        "arg_max(k.short_name, t.total_ns) AS operator, arg_max(r.efficiency_ratio, t.total_ns) AS efficiency_ratio "
        "FROM (SELECT * FROM kernel_stats WHERE session_id = '{session}') AS t "
        "JOIN (SELECT * FROM kernels WHERE session_id = '{session}') AS k USING (kernel_id) "
        f"LEFT JOIN {_WHOLE.format(table='roofline')} AS r USING (kernel_id) "
        f"LEFT JOIN {_LABELS_OF_KERNELS} AS b USING (kernel_id) "
        "GROUP BY b.label ORDER BY share_ratio DESC, b.label"
    ),
    "kinds_of_work": (
        "SELECT w.* EXCLUDE (session_id), k.short_name AS kernel, w.time_ns / sum(w.time_ns) OVER () AS whole_ratio "
        "FROM kinds_of_work AS w "
        "LEFT JOIN (SELECT * FROM kernels WHERE session_id = '{session}') AS k USING (kernel_id) "
        "WHERE w.session_id = '{session}' ORDER BY w.time_ns DESC, w.kind"
    ),
    "bottleneck": (
        "SELECT label, score, runner_up, recommendation, evidence, missing AS missing_signals FROM bottlenecks "
        "WHERE session_id = '{session}' AND scope = 'session' ORDER BY ALL"
    ),
    "place": "SELECT * EXCLUDE (session_id) FROM history_places WHERE session_id = '{session}' ORDER BY ALL",
    "changes": "SELECT * EXCLUDE (session_id) FROM session_changes WHERE session_id = '{session}' ORDER BY rank",
    "optimization_priority": (
        "SELECT k.kernel_id, k.name, k.short_name AS operator, b.label, b.score, b.recommendation, "
        "b.missing AS missing_signals, t.share_ratio, "
        "w.saved_ns, w.speedup_ratio, r.bound, r.efficiency_ratio, x.criticality, x.critical_ns, x.saves_at_most_ns, "
        "x.proposers "
        "FROM (SELECT * FROM kernels WHERE session_id = '{session}') AS k "
        "LEFT JOIN (SELECT * FROM kernel_stats WHERE session_id = '{session}') AS t USING (kernel_id) "
        "LEFT JOIN (SELECT kernel_id, max(saved_ns) AS saved_ns, "
        "first(speedup_ratio ORDER BY saved_ns DESC, speedup_ratio) AS speedup_ratio FROM what_if "
        "WHERE session_id = '{session}' GROUP BY kernel_id) AS w USING (kernel_id) "
        f"LEFT JOIN {_WHOLE.format(table='roofline')} AS r USING (kernel_id) "
        f"LEFT JOIN {_LABELS_OF_KERNELS} AS b USING (kernel_id) "
        "LEFT JOIN (SELECT * FROM kernels_to_fix WHERE session_id = '{session}') AS x USING (kernel_id) "
        "ORDER BY x.rank NULLS LAST, w.saved_ns DESC NULLS LAST, t.share_ratio DESC NULLS LAST, k.kernel_id "
        f"LIMIT {_PRIORITIES}"
    ),
}

#: What is read besides of a session that was measured for a campaign.
OF_CAMPAIGN: Final[Mapping[str, str]] = {
    "campaign_verdicts": (
        "SELECT campaign_id, baseline, candidate, metric, verdict, effect_ratio, ci_low, ci_high FROM verdicts "
        "WHERE role = 'primary' AND campaign_id = (SELECT campaign_id FROM sessions WHERE session_id = '{session}') "
        "ORDER BY candidate, metric"
    ),
}

#: What the long document has on top of the short one.
SECTIONS: Final[Mapping[str, str]] = {
    "iterations": (
        'SELECT "pass", iteration, phase, start_ns, end_ns, latency_ns, cpu_time_ns, run_delay_ns FROM iterations '
        "WHERE session_id = '{session}' ORDER BY \"pass\", iteration"
    ),
    "kernels": (
        "SELECT k.kernel_id, k.name, k.short_name AS operator, k.family, k.library, t.dispatch_count, t.total_ns, "
        "t.mean_ns, t.min_ns, t.p50_ns, t.p99_ns, t.max_ns, t.share_ratio "
        "FROM kernel_stats AS t JOIN kernels AS k USING (session_id, kernel_id) "
        "WHERE session_id = '{session}' ORDER BY t.total_ns DESC, k.kernel_id"
    ),
    "operators": (
        "SELECT k.short_name AS operator, count(*) AS kernels, sum(t.dispatch_count) AS dispatch_count, "
        "sum(t.total_ns) AS total_ns, sum(t.total_ns) // sum(t.dispatch_count) AS mean_ns, "
        "sum(t.share_ratio ORDER BY k.kernel_id) AS share_ratio "
        "FROM kernel_stats AS t JOIN kernels AS k USING (session_id, kernel_id) "
        "WHERE session_id = '{session}' GROUP BY k.short_name ORDER BY total_ns DESC, operator"
    ),
    "model_operators": (
        'SELECT n.node_id, coalesce(n.name, o.operator) AS name, n.op_type, o."match", '
        "sum(o.dispatch_count) AS dispatch_count, "
        "sum(o.total_ns) AS total_ns, sum(o.total_ns) / sum(sum(o.total_ns)) OVER () AS share_ratio, "
        "n.flops, n.read_bytes, n.written_bytes, n.flops / nullif(n.read_bytes + n.written_bytes, 0) "
        "AS flops_per_byte, n.shape_source "
        "FROM (SELECT * FROM operator_kernels WHERE session_id = '{session}') AS o "
        "FULL JOIN (SELECT * FROM model_nodes WHERE session_id = '{session}') AS n USING (session_id, node_id) "
        'GROUP BY ALL ORDER BY total_ns DESC NULLS LAST, n.node_id, name, "match"'
    ),
    "session_parts": (
        "SELECT * EXCLUDE (session_id) FROM session_parts WHERE session_id = '{session}' ORDER BY device_id, start_ns"
    ),
    "operator_shapes": (
        "SELECT * EXCLUDE (session_id), (kernel_ns + copy_ns) / nullif(sum(kernel_ns + copy_ns) OVER (), 0) "
        "AS share_of_time FROM operator_shapes WHERE session_id = '{session}' "
        "ORDER BY kernel_ns + copy_ns DESC, operator, shapes, types, detail, device_id, flops, least_bytes, reason"
    ),
    "collective_rates": (
        "SELECT name, size_bytes, expected_participants, remark, count(*) AS parts, "
        "sum(duration_ns) AS total_ns, median(duration_ns) AS median_ns, median(bus_bytes_per_s) AS bus_bytes_per_s, "
        "median(share_ratio) AS share_ratio FROM collectives WHERE session_id = '{session}' "
        "AND bus_bytes_per_s IS NOT NULL GROUP BY ALL ORDER BY total_ns DESC, name, size_bytes, "
        "expected_participants, remark"
    ),
    "path_categories": (
        "SELECT scope, window_ns, path_ns, unexplained_ns, category, category_ns, category_ns / window_ns "
        "AS window_ratio FROM critical_path_summary WHERE session_id = '{session}' AND scope = 'session' "
        "AND category_ns > 0 ORDER BY category_ns DESC, category"
    ),
    "path_kernels": (
        "SELECT k.short_name AS name, k.family, count(*) AS dispatch_count, sum(d.self_ns) AS critical_ns, "
        "max(c.criticality) AS criticality FROM (SELECT * FROM critical_path WHERE session_id = '{session}' "
        "AND activity_kind = 'dispatch' AND is_critical) AS c "
        "JOIN (SELECT * FROM dispatches WHERE session_id = '{session}') AS d ON d.dispatch_id = c.activity_id "
        "JOIN (SELECT * FROM kernels WHERE session_id = '{session}') AS k USING (kernel_id) "
        "GROUP BY k.short_name, k.family ORDER BY critical_ns DESC, name, k.family LIMIT 10"
    ),
    "savings": (
        "SELECT if(length(k.name) <= 80, k.name, k.short_name) AS name, w.speedup_ratio, w.critical_ns, w.saved_ns, "
        "w.saved_ratio FROM what_if AS w JOIN kernels AS k USING (session_id, kernel_id) "
        "WHERE session_id = '{session}' ORDER BY w.saved_ns DESC, k.kernel_id, w.speedup_ratio"
    ),
    "gap_causes": (
        "SELECT device_id, cause, count(*) AS gaps, sum(end_ns - start_ns) AS idle_ns, max(end_ns - start_ns) "
        "AS longest_ns FROM gaps WHERE session_id = '{session}' GROUP BY device_id, cause "
        "ORDER BY device_id, idle_ns DESC, cause"
    ),
    "scaling": (
        "SELECT c.* EXCLUDE (campaign_id) FROM scaling AS c JOIN sessions AS s USING (campaign_id) "
        "WHERE s.session_id = '{session}' ORDER BY c.point"
    ),
    "system_samples": "SELECT * EXCLUDE (session_id) FROM system_samples WHERE session_id = '{session}' ORDER BY ALL",
    "gpu_samples": "SELECT * EXCLUDE (session_id) FROM gpu_samples WHERE session_id = '{session}' ORDER BY ALL",
    "devices": "SELECT * EXCLUDE (session_id) FROM devices WHERE session_id = '{session}' ORDER BY device_id",
    "processes": "SELECT * EXCLUDE (session_id) FROM processes WHERE session_id = '{session}' ORDER BY process_id",
    "environment": (
        "SELECT category, key, value, in_fingerprint FROM environment WHERE session_id = '{session}' ORDER BY ALL"
    ),
    "clock_domains": (
        "SELECT domain, offset_ns, uncertainty_ns, anchor FROM clock_domains WHERE session_id = '{session}' "
        "ORDER BY ALL"
    ),
    "evidence": (
        # An earlier version published evidence of the views, too: whether one was made changes nothing of what it says.
        "SELECT stage, item, status, reason, source, rows FROM evidence WHERE session_id = '{session}' "
        "AND stage NOT IN ('perfetto_trace', 'report') ORDER BY status, stage, item, reason, source, rows"
    ),
    "limits": (
        "SELECT k.kernel_id, k.name, k.short_name AS operator, t.share_ratio, t.total_ns, r.bound, r.efficiency_ratio, "
        "r.achieved_flops_per_s, r.flops_by_type, r.dram_arithmetic_intensity, r.fabric_arithmetic_intensity, "
        "r.l2_arithmetic_intensity, r.vl1d_arithmetic_intensity, r.lds_arithmetic_intensity, r.quality_flags, "
        "n.nearest_bounds, o.theoretical_ratio, o.achieved_ratio, o.limiter, b.label, b.runner_up, b.score, "
        "b.missing AS missing_signals, w.saved_ns "
        "FROM (SELECT * FROM kernels WHERE session_id = '{session}') AS k "
        "LEFT JOIN (SELECT * FROM kernel_stats WHERE session_id = '{session}') AS t USING (kernel_id) "
        f"LEFT JOIN {_WHOLE.format(table='roofline')} AS r USING (kernel_id) "
        f"LEFT JOIN {_BOUNDS} AS n USING (kernel_id) "
        f"LEFT JOIN {_WHOLE.format(table='occupancy')} AS o USING (kernel_id) "
        f"LEFT JOIN {_LABELS_OF_KERNELS} AS b USING (kernel_id) "
        "LEFT JOIN (SELECT kernel_id, max(saved_ns) AS saved_ns FROM what_if WHERE session_id = '{session}' "
        "GROUP BY kernel_id) AS w USING (kernel_id) "
        f"ORDER BY t.total_ns DESC NULLS LAST, k.kernel_id LIMIT {LISTED_KERNELS}"
    ),
    "ceilings": (
        # Arithmetic that no kernel did has no roof worth drawing.
        "SELECT c.* EXCLUDE (session_id) FROM ceilings AS c WHERE c.session_id = '{session}' "
        "AND c.source <> 'fitted' AND (c.unit <> 'flop/s' OR EXISTS (SELECT 1 FROM resource_bounds AS b "
        "WHERE b.session_id = '{session}' AND b.work > 0 AND b.resource = c.resource AND b.dtype = c.dtype)) "
        "ORDER BY c.device_id, c.resource, c.dtype, c.source"
    ),
    "instructions": (
        "SELECT i.* EXCLUDE (session_id) FROM (SELECT * FROM att_instructions WHERE session_id = '{session}') AS i "
        "JOIN (SELECT kernel_id, dispatch_id, capture FROM att_instructions WHERE session_id = '{session}' "
        "GROUP BY kernel_id, dispatch_id, capture "
        "ORDER BY sum(stall_cycles) DESC NULLS LAST, sum(samples) DESC NULLS LAST, "
        f"kernel_id, dispatch_id, capture LIMIT {LISTED_INSTRUCTIONS}) AS most "
        "ON i.kernel_id IS NOT DISTINCT FROM most.kernel_id AND i.dispatch_id IS NOT DISTINCT FROM most.dispatch_id "
        "AND i.capture IS NOT DISTINCT FROM most.capture "
        "ORDER BY i.kernel_id, i.dispatch_id, i.capture, i.code_object_id, i.address, i.line, i.instruction"
    ),
    "stall_reasons": (
        "SELECT * EXCLUDE (session_id) FROM att_stalls WHERE session_id = '{session}' "
        "ORDER BY kernel_id, dispatch_id, capture, share_ratio DESC, reason"
    ),
}

#: What a timeline is drawn from, by table: perhaps a great many rows, which are read as columns (`report.timeline`).
TIMELINE: Final[Mapping[str, str]] = {
    "dispatches": (
        "SELECT dispatch_id, kernel_id, process_id, thread_id, device_id, queue_id, stream_id, start_ns, end_ns, "
        "parent_dispatch_id, below_resolution, iteration FROM dispatches "
        "WHERE session_id = '{session}' AND end_ns >= start_ns ORDER BY start_ns, dispatch_id"
    ),
    "memory_copies": (
        "SELECT copy_id, direction, size_bytes, device_id, start_ns, end_ns FROM memory_copies "
        "WHERE session_id = '{session}' AND end_ns >= start_ns ORDER BY start_ns, copy_id"
    ),
    "gaps": (
        "SELECT device_id, cause, doubt, start_ns, end_ns FROM gaps "
        "WHERE session_id = '{session}' ORDER BY start_ns, device_id"
    ),
    "api_calls": (
        "SELECT call_id, domain, name, process_id, thread_id, start_ns, end_ns FROM api_calls "
        "WHERE session_id = '{session}' AND end_ns >= start_ns ORDER BY start_ns, call_id"
    ),
}

#: The stages whose tables a report shows, with what a reader lacks when one has published nothing.
STAGES: Final = (
    ("capture", "the workload and how it ran"),
    ("session_environment", "the environment, the devices and the clocks"),
    ("inference_run", "the iterations and their figures"),
    ("kernel_trace", "the kernels and when they ran"),
    ("completeness", "what the recording lacks"),
    ("timeline", "the kernels' shares and the device's busy time"),
    ("critical_path", "the critical path"),
    ("model_graph", "the model's operators, their work and their traffic"),
    ("roofline", "how close each kernel came to the roofline, and its occupancy"),
    ("att_enrichment", "the instructions wavefronts stalled on"),
    ("classification", "what limits the session and its kernels"),
    ("regression", "where it lies among earlier sessions, and what changed"),
    ("telemetry", "host and device samples during the iterations"),
)


#: So many kernels have a page of their own: what is to be fixed first, the heaviest, then traced ones without times.
PAGED_KERNELS: Final = 16
#: Stretches of a kernel's dispatches, in the order in which they began, that its plot tells apart.
_STRETCHES: Final = 96
_LAUNCHES: Final = 4
_OPERATORS: Final = 6
_INSTRUCTIONS: Final = 8
_LINES: Final = 6

_OF_SESSION: Final = "(SELECT * FROM {table} WHERE session_id = '{{session}}')"


def _of(table: str, whole: bool = False) -> str:
    return (_WHOLE if whole else _OF_SESSION).format(table=table)


_TRACED: Final = (
    "(SELECT kernel_id, coalesce(sum(stall_cycles), sum(samples)) AS lost FROM att_stalls "
    "WHERE session_id = '{session}' GROUP BY kernel_id)"
)
_TO_FIX: Final = (
    f"(SELECT DISTINCT w.kernel_id, true AS is_first FROM {_of('answers')} AS a JOIN {_of('kinds_of_work')} AS w "
    "USING (kind) WHERE w.kernel_id IS NOT NULL)"
)
#: The kernels that have a page; `is_first` is that of the kind of work that the answer would fix first.
_PAGED: Final = (
    "(SELECT k.kernel_id, coalesce(f.is_first, false) AS is_first "
    f"FROM {_of('kernels')} AS k LEFT JOIN {_of('kernel_stats')} AS t USING (kernel_id) "
    f"LEFT JOIN {_TRACED} AS a USING (kernel_id) LEFT JOIN {_of('roofline', True)} AS r USING (kernel_id) "
    f"LEFT JOIN {_TO_FIX} AS f USING (kernel_id) "
    "WHERE t.kernel_id IS NOT NULL OR a.kernel_id IS NOT NULL OR r.kernel_id IS NOT NULL "
    "ORDER BY is_first DESC, t.total_ns DESC NULLS LAST, a.lost DESC NULLS LAST, k.kernel_id "
    f"LIMIT {PAGED_KERNELS})"
)
#: Of a kernel's dispatch or thread trace the one that lost most: traces are never added up.
_TRACE: Final = (
    "(SELECT kernel_id, dispatch_id, capture FROM att_instructions WHERE session_id = '{session}' "
    f"AND kernel_id IN (SELECT kernel_id FROM {_PAGED}) GROUP BY kernel_id, dispatch_id, "
    "capture QUALIFY row_number() OVER (PARTITION BY kernel_id ORDER BY sum(stall_cycles) DESC NULLS LAST, "
    "sum(samples) DESC NULLS LAST, dispatch_id, capture) = 1)"
)
_SAME_TRACE: Final = (
    "ON i.kernel_id = m.kernel_id AND i.dispatch_id IS NOT DISTINCT FROM m.dispatch_id "
    "AND i.capture IS NOT DISTINCT FROM m.capture"
)
#: The dispatches that `kernel_stats` sums up, warm-up left out; the rule is `analysis.kernels.statistics`.
_COUNTED: Final = (
    "(SELECT * FROM dispatches WHERE session_id = '{session}' AND ((SELECT count(*) FROM iterations "
    "WHERE session_id = '{session}' AND \"pass\" = 'trace') < 2 OR iteration IN (SELECT iteration FROM iterations "
    "WHERE session_id = '{session}' AND \"pass\" = 'trace' AND phase = 'measure') OR process_id NOT IN ("
    "SELECT process_id FROM dispatches WHERE session_id = '{session}' AND iteration IS NOT NULL) AND (SELECT "
    "count(DISTINCT process_id) FROM dispatches WHERE session_id = '{session}') > 1))"
)
_SHAPE: Final = (
    "grid_x, grid_y, grid_z, workgroup_x, workgroup_y, workgroup_z, grid_work_items, workgroup_work_items, "
    "lds_allocated_bytes, scratch_bytes"
)
_LOST: Final = "greatest(coalesce(stall_cycles, samples, 0), coalesce(charged_stall_cycles, 0))"
_PLACE: Final = f"{_LOST} DESC, i.code_object_id, i.address, i.line"

KERNEL_PAGES: Final[Mapping[str, str]] = {
    "shown_kernels": (
        "SELECT k.* EXCLUDE (session_id, fingerprint, short_name), k.short_name AS operator, p.is_first, "
        "t.dispatch_count, t.total_ns, t.mean_ns, t.min_ns, t.p50_ns, t.p99_ns, t.max_ns, t.share_ratio, "
        "r.* EXCLUDE (session_id, kernel_id, dispatch_id, duration_ns), r.duration_ns AS counted_ns, c.counted, "
        "o.* EXCLUDE (session_id, kernel_id, dispatch_id), b.label, b.runner_up, b.score, b.evidence, "
        "b.missing AS missing_signals, b.recommendation "
        f"FROM {_PAGED} AS p JOIN {_of('kernels')} AS k USING (kernel_id) "
        f"LEFT JOIN {_of('kernel_stats')} AS t USING (kernel_id) LEFT JOIN {_of('roofline', True)} AS r "
        "USING (kernel_id) LEFT JOIN (SELECT kernel_id, count(*) AS counted FROM roofline "
        "WHERE session_id = '{session}' AND dispatch_id IS NOT NULL GROUP BY kernel_id) AS c USING (kernel_id) "
        f"LEFT JOIN {_of('occupancy', True)} AS o USING (kernel_id) LEFT JOIN (SELECT * FROM bottlenecks "
        "WHERE session_id = '{session}' AND scope = 'kernel') AS b USING (kernel_id) "
        "ORDER BY t.total_ns DESC NULLS LAST, k.kernel_id"
    ),
    "kernel_launches": (
        f"SELECT kernel_id, {_SHAPE}, count(*) AS dispatch_count, "
        "sum(self_ns) AS total_ns, count(*) OVER (PARTITION BY kernel_id) AS launch_shapes "
        f"FROM {_of('dispatches')} WHERE kernel_id IN (SELECT kernel_id FROM {_PAGED}) "
        "AND coalesce(workgroup_x, workgroup_work_items, grid_x, grid_work_items, lds_allocated_bytes, scratch_bytes) "
        f"IS NOT NULL GROUP BY kernel_id, {_SHAPE} QUALIFY row_number() OVER (PARTITION BY kernel_id "
        f"ORDER BY total_ns DESC NULLS LAST, {_SHAPE}) <= {_LAUNCHES} "
        f"ORDER BY kernel_id, total_ns DESC NULLS LAST, {_SHAPE}"
    ),
    "kernel_durations": (
        "SELECT kernel_id, sum(dispatches)::BIGINT AS dispatch_count, any_value(quartile_1_ns) AS quartile_1_ns, "
        "any_value(quartile_3_ns) AS quartile_3_ns, list(struct_pack(dispatches := dispatches, least_ns := least_ns, "
        "most_ns := most_ns) ORDER BY stretch) AS stretches FROM (SELECT kernel_id, stretch, count(*) AS dispatches, "
        "min(self_ns) AS least_ns, max(self_ns) AS most_ns, any_value(quartile_1_ns) AS quartile_1_ns, "
        "any_value(quartile_3_ns) AS quartile_3_ns FROM (SELECT kernel_id, self_ns, "
        f"ntile({_STRETCHES}) OVER (PARTITION BY kernel_id ORDER BY start_ns, dispatch_id) AS stretch, "
        "quantile_disc(self_ns, 0.25) OVER (PARTITION BY kernel_id) AS quartile_1_ns, "
        "quantile_disc(self_ns, 0.75) OVER (PARTITION BY kernel_id) AS quartile_3_ns "
        f"FROM {_COUNTED} WHERE self_ns IS NOT NULL "
        f"AND kernel_id IN (SELECT kernel_id FROM {_PAGED})) GROUP BY kernel_id, stretch) "
        "GROUP BY kernel_id ORDER BY kernel_id"
    ),
    "kernel_outliers": (
        "SELECT kernel_id, count(*) AS dispatch_count, max(duration_ns) AS longest_ns, "
        "any_value(warm_median_ns) AS warm_median_ns, "
        "list_sort(list_distinct(flatten(list(possible_causes)))) AS possible_causes "
        f"FROM {_of('outlier_dispatches')} WHERE kernel_id IN (SELECT kernel_id FROM {_PAGED}) "
        "GROUP BY kernel_id ORDER BY kernel_id"
    ),
    "kernel_bounds": (
        f"SELECT * EXCLUDE (session_id) FROM {_of('resource_bounds')} "
        f"WHERE kernel_id IN (SELECT kernel_id FROM {_PAGED}) "
        "ORDER BY kernel_id, lower_bound_ns DESC, resource, dtype, ceiling_source"
    ),
    "kernel_metrics": (
        "SELECT kernel_id, metric, unit, value, quality_flags FROM counter_metrics WHERE session_id = '{session}' "
        "AND value IS NOT NULL AND (metric LIKE '%busy_ratio%' OR metric LIKE '%hit_ratio%' "
        "OR metric IN ('issuing_ratio', 'issue_wait_ratio', 'dependency_wait_ratio')) "
        f"AND kernel_id IN (SELECT kernel_id FROM {_PAGED}) ORDER BY kernel_id, metric"
    ),
    "kernel_operators": (
        "SELECT o.kernel_id, coalesce(n.name, o.operator) AS name, "
        "coalesce(n.op_type, o.outermost_operator) AS op_type, "
        'o.dispatch_count, o.total_ns, o."match", s.shapes, s.detail, s.shape_count, '
        "count(*) OVER (PARTITION BY o.kernel_id) AS operator_count "
        f"FROM (SELECT * FROM {_of('operator_kernels')} WHERE kernel_id IN (SELECT kernel_id FROM {_PAGED}) "
        "AND \"match\" <> 'unattributed') AS o "
        f"LEFT JOIN {_of('model_nodes')} AS n USING (node_id) "
        "LEFT JOIN (SELECT operator, first(shapes ORDER BY kernel_ns DESC, shapes) AS shapes, "
        "first(detail ORDER BY kernel_ns DESC, shapes) AS detail, count(DISTINCT shapes) AS shape_count "
        "FROM operator_shapes WHERE session_id = '{session}' GROUP BY operator) AS s ON s.operator = o.operator "
        "QUALIFY row_number() OVER (PARTITION BY o.kernel_id ORDER BY o.total_ns DESC, name, op_type, o.node_id) "
        f"<= {_OPERATORS} ORDER BY o.kernel_id, o.total_ns DESC, name, op_type, o.node_id"
    ),
    "kernel_instructions": (
        "SELECT i.kernel_id, i.dispatch_id, i.capture, i.line, i.address, i.instruction, i.instruction_class, i.hits, "
        "i.stall_cycles, i.charged_stall_cycles, i.samples, i.source, "
        "sum(coalesce(i.stall_cycles, i.samples)) OVER (PARTITION BY i.kernel_id) AS lost "
        f"FROM {_of('att_instructions')} AS i JOIN {_TRACE} AS m {_SAME_TRACE} "
        f"QUALIFY row_number() OVER (PARTITION BY i.kernel_id ORDER BY {_PLACE}) <= {_INSTRUCTIONS} "
        f"ORDER BY i.kernel_id, {_PLACE}"
    ),
    "kernel_lines": (
        "SELECT i.kernel_id, i.source, sum(i.stall_cycles)::BIGINT AS stall_cycles, sum(i.samples)::BIGINT AS samples "
        f"FROM {_of('att_instructions')} AS i JOIN {_TRACE} AS m {_SAME_TRACE} WHERE i.source IS NOT NULL "
        "GROUP BY i.kernel_id, i.source QUALIFY row_number() OVER (PARTITION BY i.kernel_id "
        "ORDER BY coalesce(sum(i.stall_cycles), sum(i.samples)) DESC NULLS LAST, i.source) "
        f"<= {_LINES} ORDER BY i.kernel_id, coalesce(sum(i.stall_cycles), sum(i.samples)) DESC NULLS LAST, i.source"
    ),
}
