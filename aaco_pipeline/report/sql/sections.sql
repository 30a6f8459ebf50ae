-- Parts of the long document that the short one lacks.

-- fragment: bounds
-- The decisive lower bound of each resource: from a measured ceiling if there is one, for the longest format.
(SELECT kernel_id, list(struct_pack(resource := resource, dtype := dtype, lower_bound_ns := lower_bound_ns,
      share_ratio := share_ratio, ceiling_source := ceiling_source) ORDER BY lower_bound_ns DESC, resource)[1:2]
  AS nearest_bounds FROM (SELECT * FROM resource_bounds WHERE session_id = '{session}'
    QUALIFY row_number() OVER (PARTITION BY kernel_id, resource ORDER BY ceiling_source, lower_bound_ns DESC,
      dtype) = 1) GROUP BY kernel_id)

-- fragment: labels_of_kernels
(SELECT * FROM bottlenecks WHERE session_id = '{session}' AND scope = 'kernel')

-- statement: iterations
SELECT "pass", iteration, phase, start_ns, end_ns, latency_ns, cpu_time_ns, run_delay_ns
FROM iterations
WHERE session_id = '{session}'
ORDER BY "pass", iteration

-- statement: kernels
SELECT k.kernel_id, k.name, k.short_name AS operator, k.family, k.library, t.dispatch_count, t.total_ns,
  t.mean_ns, t.min_ns, t.p50_ns, t.p99_ns, t.max_ns, t.share_ratio
FROM kernel_stats AS t
JOIN kernels AS k USING (session_id, kernel_id)
WHERE session_id = '{session}'
ORDER BY t.total_ns DESC, k.kernel_id

-- statement: operators
SELECT k.short_name AS operator, count(*) AS kernels, sum(t.dispatch_count) AS dispatch_count, sum(t.total_ns)
  AS total_ns, sum(t.total_ns) // sum(t.dispatch_count) AS mean_ns, sum(t.share_ratio ORDER BY k.kernel_id) AS
  share_ratio
FROM kernel_stats AS t
JOIN kernels AS k USING (session_id, kernel_id)
WHERE session_id = '{session}'
GROUP BY k.short_name
ORDER BY total_ns DESC, operator

-- statement: model_operators
SELECT n.node_id, coalesce(n.name, o.operator) AS name, n.op_type, o."match", sum(o.dispatch_count) AS
  dispatch_count, sum(o.total_ns) AS total_ns, sum(o.total_ns) / sum(sum(o.total_ns)) OVER () AS share_ratio,
  n.flops, n.read_bytes, n.written_bytes, n.flops / nullif(n.read_bytes + n.written_bytes, 0) AS flops_per_byte,
  n.shape_source
FROM [operator_kernels] AS o
FULL JOIN [model_nodes] AS n USING (session_id, node_id)
GROUP BY ALL
ORDER BY total_ns DESC NULLS LAST, n.node_id, name, "match"

-- statement: session_parts
SELECT * EXCLUDE (session_id)
FROM session_parts
WHERE session_id = '{session}'
ORDER BY device_id, start_ns

-- statement: operator_shapes
SELECT * EXCLUDE (session_id), (kernel_ns + copy_ns) / nullif(sum(kernel_ns + copy_ns) OVER (), 0) AS
  share_of_time
FROM operator_shapes
WHERE session_id = '{session}'
ORDER BY kernel_ns + copy_ns DESC, operator, shapes, types, detail, device_id, flops, least_bytes, reason

-- statement: collective_rates
SELECT name, size_bytes, expected_participants, remark, count(*) AS parts, sum(duration_ns) AS total_ns,
  median(duration_ns) AS median_ns, median(bus_bytes_per_s) AS bus_bytes_per_s, median(share_ratio) AS
  share_ratio
FROM collectives
WHERE session_id = '{session}' AND bus_bytes_per_s IS NOT NULL
GROUP BY ALL
ORDER BY total_ns DESC, name, size_bytes, expected_participants, remark

-- statement: path_categories
SELECT scope, window_ns, path_ns, unexplained_ns, category, category_ns, category_ns / window_ns AS window_ratio
FROM critical_path_summary
WHERE session_id = '{session}' AND scope = 'session' AND category_ns > 0
ORDER BY category_ns DESC, category

-- statement: path_kernels
SELECT k.short_name AS name, k.family, count(*) AS dispatch_count, sum(d.self_ns) AS critical_ns,
  max(c.criticality) AS criticality
FROM (SELECT * FROM critical_path WHERE session_id = '{session}' AND activity_kind = 'dispatch' AND is_critical)
  AS c
JOIN [dispatches] AS d ON d.dispatch_id = c.activity_id
JOIN [kernels] AS k USING (kernel_id)
GROUP BY k.short_name, k.family
ORDER BY critical_ns DESC, name, k.family
LIMIT 10

-- statement: savings
SELECT if(length(k.name) <= 80, k.name, k.short_name) AS name, w.speedup_ratio, w.critical_ns, w.saved_ns,
  w.saved_ratio
FROM what_if AS w
JOIN kernels AS k USING (session_id, kernel_id)
WHERE session_id = '{session}'
ORDER BY w.saved_ns DESC, k.kernel_id, w.speedup_ratio

-- statement: gap_causes
SELECT device_id, cause, count(*) AS gaps, sum(end_ns - start_ns) AS idle_ns, max(end_ns - start_ns) AS
  longest_ns
FROM gaps
WHERE session_id = '{session}'
GROUP BY device_id, cause
ORDER BY device_id, idle_ns DESC, cause

-- statement: scaling
SELECT c.* EXCLUDE (campaign_id)
FROM scaling AS c
JOIN sessions AS s USING (campaign_id)
WHERE s.session_id = '{session}'
ORDER BY c.point

-- statement: system_samples
SELECT * EXCLUDE (session_id)
FROM system_samples
WHERE session_id = '{session}'
ORDER BY ALL

-- statement: gpu_samples
SELECT * EXCLUDE (session_id)
FROM gpu_samples
WHERE session_id = '{session}'
ORDER BY ALL

-- statement: devices
SELECT * EXCLUDE (session_id)
FROM devices
WHERE session_id = '{session}'
ORDER BY device_id

-- statement: processes
SELECT * EXCLUDE (session_id)
FROM processes
WHERE session_id = '{session}'
ORDER BY process_id

-- statement: environment
SELECT category, key, value, in_fingerprint
FROM environment
WHERE session_id = '{session}'
ORDER BY ALL

-- statement: clock_domains
SELECT domain, offset_ns, uncertainty_ns, anchor
FROM clock_domains
WHERE session_id = '{session}'
ORDER BY ALL

-- statement: evidence
-- Earlier versions also published evidence for views, which has no effect on the document.
SELECT stage, item, status, reason, source, rows
FROM evidence
WHERE session_id = '{session}' AND stage NOT IN ('perfetto_trace', 'report')
ORDER BY status, stage, item, reason, source, rows

-- statement: limits
SELECT k.kernel_id, k.name, k.short_name AS operator, t.share_ratio, t.total_ns, r.bound, r.efficiency_ratio,
  r.achieved_flops_per_s, r.flops_by_type, r.dram_arithmetic_intensity, r.fabric_arithmetic_intensity,
  r.l2_arithmetic_intensity, r.vl1d_arithmetic_intensity, r.lds_arithmetic_intensity, r.quality_flags,
  n.nearest_bounds, o.theoretical_ratio, o.achieved_ratio, o.limiter, b.label, b.runner_up, b.score, b.missing
  AS missing_signals, w.saved_ns
FROM [kernels] AS k
LEFT JOIN [kernel_stats] AS t USING (kernel_id)
LEFT JOIN [roofline:whole] AS r USING (kernel_id)
LEFT JOIN {bounds} AS n USING (kernel_id)
LEFT JOIN [occupancy:whole] AS o USING (kernel_id)
LEFT JOIN {labels_of_kernels} AS b USING (kernel_id)
LEFT JOIN (SELECT kernel_id, max(saved_ns) AS saved_ns FROM what_if
  WHERE session_id = '{session}' GROUP BY kernel_id) AS w USING (kernel_id)
ORDER BY t.total_ns DESC NULLS LAST, k.kernel_id
LIMIT {listed_kernels}

-- statement: ceilings
-- Roofs of arithmetic that no kernel used are not drawn.
SELECT c.* EXCLUDE (session_id)
FROM ceilings AS c
WHERE c.session_id = '{session}' AND c.source <> 'fitted' AND (c.unit <> 'flop/s' OR EXISTS (SELECT 1
    FROM resource_bounds AS b WHERE b.session_id = '{session}' AND b.work > 0 AND b.resource = c.resource AND
    b.dtype = c.dtype))
ORDER BY c.device_id, c.resource, c.dtype, c.source

-- statement: instructions
SELECT i.* EXCLUDE (session_id)
FROM [att_instructions] AS i
JOIN (SELECT kernel_id, dispatch_id, capture FROM att_instructions
  WHERE session_id = '{session}' GROUP BY kernel_id, dispatch_id, capture ORDER BY sum(stall_cycles) DESC NULLS
  LAST, sum(samples) DESC NULLS LAST, kernel_id, dispatch_id, capture LIMIT {listed_instructions}) AS most ON
  i.kernel_id IS NOT DISTINCT
FROM most.kernel_id AND i.dispatch_id IS NOT DISTINCT
FROM most.dispatch_id AND i.capture IS NOT DISTINCT
FROM most.capture
ORDER BY i.kernel_id, i.dispatch_id, i.capture, i.code_object_id, i.address, i.line, i.instruction

-- statement: stall_reasons
SELECT * EXCLUDE (session_id)
FROM att_stalls
WHERE session_id = '{session}'
ORDER BY kernel_id, dispatch_id, capture, share_ratio DESC, reason
