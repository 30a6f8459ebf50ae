-- One kernel of a session.

-- fragment: costs
count(*) AS instructions, sum(hits) AS hits, sum(latency_cycles) AS latency_cycles, sum(stall_cycles) AS
  stall_cycles, sum(idle_cycles) AS idle_cycles, sum(charged_stall_cycles) AS charged_stall_cycles, sum(samples)
  AS samples

-- statement: session
SELECT *
FROM sessions
WHERE session_id = '{session}'

-- statement: kernel
SELECT k.* EXCLUDE (session_id), t.dispatch_count, t.total_ns, t.mean_ns, t.min_ns, t.p50_ns, t.p99_ns,
  t.max_ns, t.share_ratio
FROM kernels AS k
LEFT JOIN kernel_stats AS t USING (session_id, kernel_id)
WHERE session_id = '{session}' AND kernel_id = {kernel}

-- statement: bottleneck
SELECT label, score, runner_up, recommendation, evidence, missing AS missing_signals
FROM bottlenecks
WHERE session_id = '{session}' AND kernel_id = {kernel} AND scope = 'kernel'
ORDER BY ALL

-- statement: roofline
SELECT * EXCLUDE (session_id)
FROM roofline
WHERE session_id = '{session}' AND kernel_id = {kernel} AND dispatch_id IS NULL
ORDER BY ALL

-- statement: resource_bounds
SELECT * EXCLUDE (session_id, kernel_id)
FROM resource_bounds
WHERE session_id = '{session}' AND kernel_id = {kernel}
ORDER BY lower_bound_ns DESC, resource, dtype, ceiling_source

-- statement: occupancy
SELECT * EXCLUDE (session_id)
FROM occupancy
WHERE session_id = '{session}' AND kernel_id = {kernel} AND dispatch_id IS NULL
ORDER BY ALL

-- statement: counter_metrics
SELECT * EXCLUDE (session_id, kernel_id)
FROM counter_metrics
WHERE session_id = '{session}' AND kernel_id = {kernel}
ORDER BY ALL

-- statement: critical_path
SELECT count(*) AS dispatch_count, count_if(c.is_critical) AS critical_count, sum(d.self_ns) FILTER
  (c.is_critical) AS critical_ns, max(c.criticality) AS criticality
FROM (SELECT * FROM critical_path WHERE session_id = '{session}' AND activity_kind = 'dispatch') AS c
JOIN (SELECT dispatch_id, self_ns FROM dispatches WHERE session_id = '{session}' AND kernel_id = {kernel}) AS d
  ON d.dispatch_id = c.activity_id
HAVING count(*) > 0

-- statement: what_if
SELECT * EXCLUDE (session_id, kernel_id)
FROM what_if
WHERE session_id = '{session}' AND kernel_id = {kernel}
ORDER BY speedup_ratio

-- statement: operators
SELECT coalesce(n.name, o.operator) AS name, coalesce(n.op_type, o.outermost_operator) AS op_type,
  o.dispatch_count, o.total_ns, o."match", o.score
FROM (SELECT * FROM operator_kernels WHERE session_id = '{session}' AND kernel_id = {kernel}) AS o
LEFT JOIN [model_nodes] AS n USING (node_id)
ORDER BY o.total_ns DESC, name, op_type, o.dispatch_count, o."match", o.score

-- statement: instructions
SELECT * EXCLUDE (session_id)
FROM att_instructions
WHERE session_id = '{session}' AND kernel_id = {kernel}
ORDER BY dispatch_id, capture, code_object_id, address, line, instruction

-- statement: instruction_classes
SELECT dispatch_id, capture, instruction_class, {costs}
FROM att_instructions
WHERE session_id = '{session}' AND kernel_id = {kernel}
GROUP BY ALL
ORDER BY dispatch_id, capture, stall_cycles DESC NULLS LAST, samples DESC NULLS LAST, instruction_class

-- statement: source_lines
SELECT dispatch_id, capture, source, {costs}
FROM att_instructions
WHERE session_id = '{session}' AND kernel_id = {kernel} AND source IS NOT NULL
GROUP BY ALL
ORDER BY dispatch_id, capture, stall_cycles DESC NULLS LAST, samples DESC NULLS LAST, source

-- statement: stall_reasons
SELECT * EXCLUDE (session_id)
FROM att_stalls
WHERE session_id = '{session}' AND kernel_id = {kernel}
ORDER BY dispatch_id, capture, share_ratio DESC, reason

-- statement: names
SELECT k.kernel_id, k.name, k.short_name, k.symbol
FROM kernels AS k
LEFT JOIN kernel_stats AS t USING (session_id, kernel_id)
WHERE session_id = '{session}'
ORDER BY t.total_ns DESC NULLS LAST, kernel_id
