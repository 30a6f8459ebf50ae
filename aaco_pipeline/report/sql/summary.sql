-- The short document of a session.

-- fragment: whole_roofline
[roofline:whole]

-- fragment: labels_of_kernels
(SELECT * FROM bottlenecks WHERE session_id = '{session}' AND scope = 'kernel')

-- statement: session
SELECT *
FROM sessions
WHERE session_id = '{session}'

-- statement: metrics
SELECT metric, "pass", phase, value, unit, n, ci_low, ci_high
FROM session_metrics
WHERE session_id = '{session}'
ORDER BY ALL

-- statement: timeline
SELECT device_id, window_rule, window_end_ns - window_start_ns AS window_ns, busy_ns, active_ratio, busy_bound,
  overlapped_ns, activity_count
FROM timeline
WHERE session_id = '{session}' AND iteration IS NULL AND window_rule = 'first_to_last_activity'
ORDER BY ALL

-- statement: program_runs
SELECT * EXCLUDE (session_id)
FROM program_runs
WHERE session_id = '{session}'
ORDER BY run

-- statement: phases
-- Only measured runs, but all ranges of each name: warm-up ranges are listed with the excluded iterations.
WITH timed AS (SELECT run FROM program_runs WHERE session_id = '{session}' AND "pass" = 'latency' AND phase =
  'measure'), measured AS (SELECT run, iteration, latency_ns FROM iterations
  WHERE session_id = '{session}' AND "pass" = 'latency' AND phase = 'measure') SELECT m.name, count(*) AS times,
  count(DISTINCT m.run) AS runs, CAST(median(m.end_ns - m.start_ns) AS BIGINT) AS median_ns, max(m.end_ns -
  m.start_ns) AS longest_ns, CAST(sum(m.end_ns - m.start_ns) / count(DISTINCT m.run) AS BIGINT) AS run_ns,
  sum(m.end_ns - m.start_ns) FILTER (i.iteration IS NOT NULL) / (SELECT sum(latency_ns)
  FROM measured) AS iterations_ratio
FROM (SELECT * FROM program_marks WHERE session_id = '{session}' AND kind = 'phase') AS m
JOIN timed USING (run)
LEFT JOIN measured AS i ON i.run = m.run AND i.iteration = m.iteration
GROUP BY m.name
ORDER BY run_ns DESC, m.name

-- statement: top_kernels
SELECT k.name, k.short_name AS operator, k.library, t.dispatch_count, t.total_ns, t.mean_ns, t.share_ratio
FROM kernel_stats AS t
JOIN kernels AS k USING (session_id, kernel_id)
WHERE session_id = '{session}'
ORDER BY t.total_ns DESC, k.kernel_id
LIMIT 10

-- statement: stalls
SELECT k.name, k.short_name AS operator, s.dispatch_id, s.capture, s.reason, s.stall_cycles, s.samples,
  s.share_ratio, sum(s.stall_cycles) OVER trace AS trace_cycles, sum(s.samples) OVER trace AS trace_samples
FROM [att_stalls] AS s
LEFT JOIN [kernels] AS k USING (kernel_id)
WINDOW trace AS (PARTITION BY s.kernel_id, s.dispatch_id, s.capture)
ORDER BY trace_cycles DESC NULLS LAST, trace_samples DESC NULLS LAST, s.kernel_id, s.dispatch_id, s.capture,
  s.stall_cycles DESC NULLS LAST, s.samples DESC NULLS LAST, s.reason
LIMIT 10

-- statement: missing
SELECT DISTINCT item, status, reason
FROM evidence
WHERE session_id = '{session}' AND status <> 'present'
ORDER BY status DESC, item, reason

-- statement: answers
SELECT * EXCLUDE (session_id)
FROM answers
WHERE session_id = '{session}'
ORDER BY ALL

-- statement: time_shares
SELECT * EXCLUDE (session_id)
FROM time_shares
WHERE session_id = '{session}'
ORDER BY device_id, time_ns DESC, share, reason NULLS FIRST

-- statement: time_by_limit
SELECT b.label, sum(t.share_ratio) AS share_ratio, max(t.total_ns) AS heaviest_ns, arg_max(k.short_name,
  t.total_ns) AS operator, arg_max(r.efficiency_ratio, t.total_ns) AS efficiency_ratio
FROM [kernel_stats] AS t
JOIN [kernels] AS k USING (kernel_id)
LEFT JOIN {whole_roofline} AS r USING (kernel_id)
LEFT JOIN {labels_of_kernels} AS b USING (kernel_id)
GROUP BY b.label
ORDER BY share_ratio DESC, b.label

-- statement: kinds_of_work
SELECT w.* EXCLUDE (session_id), k.short_name AS kernel, w.time_ns / sum(w.time_ns) OVER () AS whole_ratio
FROM kinds_of_work AS w
LEFT JOIN [kernels] AS k USING (kernel_id)
WHERE w.session_id = '{session}'
ORDER BY w.time_ns DESC, w.kind

-- statement: bottleneck
SELECT label, score, runner_up, recommendation, evidence, missing AS missing_signals
FROM bottlenecks
WHERE session_id = '{session}' AND scope = 'session'
ORDER BY ALL

-- statement: place
SELECT * EXCLUDE (session_id)
FROM history_places
WHERE session_id = '{session}'
ORDER BY ALL

-- statement: changes
SELECT * EXCLUDE (session_id)
FROM session_changes
WHERE session_id = '{session}'
ORDER BY rank

-- statement: optimization_priority
SELECT k.kernel_id, k.name, k.short_name AS operator, b.label, b.score, b.recommendation, b.missing AS
  missing_signals, t.share_ratio, w.saved_ns, w.speedup_ratio, r.bound, r.efficiency_ratio, x.criticality,
  x.critical_ns, x.saves_at_most_ns, x.proposers
FROM [kernels] AS k
LEFT JOIN [kernel_stats] AS t USING (kernel_id)
LEFT JOIN (SELECT kernel_id, max(saved_ns) AS saved_ns, first(speedup_ratio ORDER BY saved_ns DESC,
    speedup_ratio) AS speedup_ratio FROM what_if WHERE session_id = '{session}'
  GROUP BY kernel_id) AS w USING (kernel_id)
LEFT JOIN {whole_roofline} AS r USING (kernel_id)
LEFT JOIN {labels_of_kernels} AS b USING (kernel_id)
LEFT JOIN [kernels_to_fix] AS x USING (kernel_id)
ORDER BY x.rank NULLS LAST, w.saved_ns DESC NULLS LAST, t.share_ratio DESC NULLS LAST, k.kernel_id
LIMIT 20
