-- Data for the pages of the most important kernels.

-- fragment: traced
(SELECT kernel_id, coalesce(sum(stall_cycles), sum(samples)) AS lost
  FROM att_stalls WHERE session_id = '{session}' GROUP BY kernel_id)

-- fragment: to_fix
(SELECT DISTINCT w.kernel_id, true AS is_first FROM [answers] AS a
  JOIN [kinds_of_work] AS w USING (kind) WHERE w.kernel_id IS NOT NULL)

-- fragment: paged
-- The kernels that have a page: those to fix first, the heaviest, then traced ones without times.
-- `is_first` marks the kernel of the kind of work to fix first.
(SELECT k.kernel_id, coalesce(f.is_first, false) AS is_first FROM [kernels] AS k
  LEFT JOIN [kernel_stats] AS t USING (kernel_id) LEFT JOIN {traced} AS a USING (kernel_id)
  LEFT JOIN [roofline:whole] AS r USING (kernel_id) LEFT JOIN {to_fix} AS f USING (kernel_id)
  WHERE t.kernel_id IS NOT NULL OR a.kernel_id IS NOT NULL OR r.kernel_id IS NOT NULL ORDER BY is_first DESC,
  t.total_ns DESC NULLS LAST, a.lost DESC NULLS LAST, k.kernel_id LIMIT {paged_kernels})

-- fragment: trace
-- A kernel's dispatch or thread trace with the largest loss: traces are never added up.
(SELECT kernel_id, dispatch_id, capture FROM att_instructions WHERE session_id = '{session}' AND kernel_id IN
  (SELECT kernel_id FROM {paged}) GROUP BY kernel_id, dispatch_id, capture
  QUALIFY row_number() OVER (PARTITION BY kernel_id ORDER BY sum(stall_cycles) DESC NULLS LAST, sum(samples)
    DESC NULLS LAST, dispatch_id, capture) = 1)

-- fragment: counted
-- The dispatches counted in `kernel_stats`, without warm-up; `analysis.kernels.statistics` has the rule.
(SELECT * FROM dispatches WHERE session_id = '{session}' AND ((SELECT count(*)
      FROM iterations WHERE session_id = '{session}' AND "pass" = 'trace') < 2 OR iteration IN (SELECT iteration
      FROM iterations WHERE session_id = '{session}' AND "pass" = 'trace' AND phase = 'measure') OR process_id
    NOT IN (SELECT process_id FROM dispatches WHERE session_id = '{session}' AND iteration IS NOT NULL) AND
    (SELECT count(DISTINCT process_id) FROM dispatches WHERE session_id = '{session}') > 1))

-- fragment: shape
grid_x, grid_y, grid_z, workgroup_x, workgroup_y, workgroup_z, grid_work_items, workgroup_work_items,
  lds_allocated_bytes, scratch_bytes

-- statement: shown_kernels
SELECT k.* EXCLUDE (session_id, fingerprint, short_name), k.short_name AS operator, p.is_first,
  t.dispatch_count, t.total_ns, t.mean_ns, t.min_ns, t.p50_ns, t.p99_ns, t.max_ns, t.share_ratio, r.* EXCLUDE
  (session_id, kernel_id, dispatch_id, duration_ns), r.duration_ns AS counted_ns, c.counted, o.* EXCLUDE
  (session_id, kernel_id, dispatch_id), b.label, b.runner_up, b.score, b.evidence, b.missing AS missing_signals,
  b.recommendation
FROM {paged} AS p
JOIN [kernels] AS k USING (kernel_id)
LEFT JOIN [kernel_stats] AS t USING (kernel_id)
LEFT JOIN [roofline:whole] AS r USING (kernel_id)
LEFT JOIN (SELECT kernel_id, count(*) AS counted FROM roofline WHERE session_id = '{session}' AND dispatch_id IS
  NOT NULL GROUP BY kernel_id) AS c USING (kernel_id)
LEFT JOIN [occupancy:whole] AS o USING (kernel_id)
LEFT JOIN (SELECT * FROM bottlenecks WHERE session_id = '{session}' AND scope = 'kernel') AS b USING (kernel_id)
ORDER BY t.total_ns DESC NULLS LAST, k.kernel_id

-- statement: kernel_launches
SELECT kernel_id, {shape}, count(*) AS dispatch_count, sum(self_ns) AS total_ns, count(*) OVER (PARTITION BY
  kernel_id) AS launch_shapes
FROM [dispatches]
WHERE kernel_id IN (SELECT kernel_id FROM {paged}) AND coalesce(workgroup_x, workgroup_work_items, grid_x,
  grid_work_items, lds_allocated_bytes, scratch_bytes) IS NOT NULL
GROUP BY kernel_id, {shape}
QUALIFY row_number() OVER (PARTITION BY kernel_id ORDER BY total_ns DESC NULLS LAST, {shape}) <= 4
ORDER BY kernel_id, total_ns DESC NULLS LAST, {shape}

-- statement: kernel_durations
SELECT kernel_id, sum(dispatches)::BIGINT AS dispatch_count, any_value(quartile_1_ns) AS quartile_1_ns,
  any_value(quartile_3_ns) AS quartile_3_ns, list(struct_pack(dispatches := dispatches, least_ns := least_ns,
    most_ns := most_ns) ORDER BY stretch) AS stretches
FROM (SELECT kernel_id, stretch, count(*) AS dispatches, min(self_ns) AS least_ns, max(self_ns) AS most_ns,
  any_value(quartile_1_ns) AS quartile_1_ns, any_value(quartile_3_ns) AS quartile_3_ns
  FROM (SELECT kernel_id, self_ns, ntile(96) OVER (PARTITION BY kernel_id ORDER BY start_ns, dispatch_id) AS
    stretch, quantile_disc(self_ns, 0.25) OVER (PARTITION BY kernel_id) AS quartile_1_ns, quantile_disc(self_ns,
      0.75) OVER (PARTITION BY kernel_id) AS quartile_3_ns FROM {counted}
    WHERE self_ns IS NOT NULL AND kernel_id IN (SELECT kernel_id FROM {paged}))
  GROUP BY kernel_id, stretch)
GROUP BY kernel_id
ORDER BY kernel_id

-- statement: kernel_outliers
SELECT kernel_id, count(*) AS dispatch_count, max(duration_ns) AS longest_ns, any_value(warm_median_ns) AS
  warm_median_ns, list_sort(list_distinct(flatten(list(possible_causes)))) AS possible_causes
FROM [outlier_dispatches]
WHERE kernel_id IN (SELECT kernel_id FROM {paged})
GROUP BY kernel_id
ORDER BY kernel_id

-- statement: kernel_bounds
SELECT * EXCLUDE (session_id)
FROM [resource_bounds]
WHERE kernel_id IN (SELECT kernel_id FROM {paged})
ORDER BY kernel_id, lower_bound_ns DESC, resource, dtype, ceiling_source

-- statement: kernel_metrics
SELECT kernel_id, metric, unit, value, quality_flags
FROM counter_metrics
WHERE session_id = '{session}' AND value IS NOT NULL AND (metric LIKE '%busy_ratio%' OR metric LIKE
  '%hit_ratio%' OR metric IN ('issuing_ratio', 'issue_wait_ratio', 'dependency_wait_ratio')) AND kernel_id IN
  (SELECT kernel_id FROM {paged})
ORDER BY kernel_id, metric

-- statement: kernel_operators
SELECT o.kernel_id, coalesce(n.name, o.operator) AS name, coalesce(n.op_type, o.outermost_operator) AS op_type,
  o.dispatch_count, o.total_ns, o."match", s.shapes, s.detail, s.shape_count, count(*) OVER (PARTITION BY
  o.kernel_id) AS operator_count
FROM (SELECT * FROM [operator_kernels] WHERE kernel_id IN (SELECT kernel_id
    FROM {paged}) AND "match" <> 'unattributed') AS o
LEFT JOIN [model_nodes] AS n USING (node_id)
LEFT JOIN (SELECT operator, first(shapes ORDER BY kernel_ns DESC, shapes) AS shapes, first(detail ORDER BY
    kernel_ns DESC, shapes) AS detail, count(DISTINCT shapes) AS shape_count
  FROM operator_shapes WHERE session_id = '{session}' GROUP BY operator) AS s ON s.operator = o.operator
QUALIFY row_number() OVER (PARTITION BY o.kernel_id ORDER BY o.total_ns DESC, name, op_type, o.node_id) <= 6
ORDER BY o.kernel_id, o.total_ns DESC, name, op_type, o.node_id

-- statement: kernel_instructions
SELECT i.kernel_id, i.dispatch_id, i.capture, i.line, i.address, i.instruction, i.instruction_class, i.hits,
  i.stall_cycles, i.charged_stall_cycles, i.samples, i.source, sum(coalesce(i.stall_cycles, i.samples)) OVER
  (PARTITION BY i.kernel_id) AS lost
FROM [att_instructions] AS i
JOIN {trace} AS m ON i.kernel_id = m.kernel_id AND i.dispatch_id IS NOT DISTINCT
FROM m.dispatch_id AND i.capture IS NOT DISTINCT
FROM m.capture
QUALIFY row_number() OVER (PARTITION BY i.kernel_id ORDER BY greatest(coalesce(stall_cycles, samples, 0),
    coalesce(charged_stall_cycles, 0)) DESC, i.code_object_id, i.address, i.line) <= 8
ORDER BY i.kernel_id, greatest(coalesce(stall_cycles, samples, 0), coalesce(charged_stall_cycles, 0)) DESC,
  i.code_object_id, i.address, i.line

-- statement: kernel_lines
SELECT i.kernel_id, i.source, sum(i.stall_cycles)::BIGINT AS stall_cycles, sum(i.samples)::BIGINT AS samples
FROM [att_instructions] AS i
JOIN {trace} AS m ON i.kernel_id = m.kernel_id AND i.dispatch_id IS NOT DISTINCT
FROM m.dispatch_id AND i.capture IS NOT DISTINCT
FROM m.capture
WHERE i.source IS NOT NULL
GROUP BY i.kernel_id, i.source
QUALIFY row_number() OVER (PARTITION BY i.kernel_id ORDER BY coalesce(sum(i.stall_cycles), sum(i.samples)) DESC
  NULLS LAST, i.source) <= 6
ORDER BY i.kernel_id, coalesce(sum(i.stall_cycles), sum(i.samples)) DESC NULLS LAST, i.source
