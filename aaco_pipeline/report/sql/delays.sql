-- Why iterations took longer.

-- statement: quietness
SELECT count(*) AS iterations, count(*) FILTER (g.grade = 'clean') AS clean, count(*) FILTER (g.grade =
  'disturbed') AS disturbed, count(*) FILTER (g.grade = 'unknown') AS unknown, mode(g.disturbed_by) AS
  disturbed_by, count(*) FILTER (g.is_spike) AS spikes
FROM iteration_grades AS g
JOIN iterations AS i USING (session_id, "pass", iteration)
WHERE g.session_id = '{session}' AND g."pass" = 'latency' AND i.phase = 'measure'
ORDER BY ALL

-- statement: spikes
SELECT g.iteration, i.latency_ns, g.excess_ns, g.spike_cause, g.explained_ns, g.grade, g.disturbed_by,
  d.occurrences, d.grade AS evidence_grade, d.by_kind, d.by_name, d.by_thread_id, i.start_ns
FROM iteration_grades AS g
JOIN iterations AS i USING (session_id, "pass", iteration)
LEFT JOIN iteration_delays AS d ON d.session_id = g.session_id AND d."pass" = g."pass" AND d.iteration =
  g.iteration AND d.cause = CASE g.spike_cause WHEN 'on_cpu_longer' THEN 'on_cpu' ELSE g.spike_cause END
WHERE g.session_id = '{session}' AND g."pass" = 'latency' AND g.is_spike AND i.phase = 'measure'
ORDER BY g.excess_ns DESC, g.iteration

-- statement: delay_causes
SELECT cause, iterations, spikes, total_ns, variance_share_ratio, tail_share_ratio, p99_without_ns, ci_low_ns,
  ci_high_ns
FROM delay_figures
WHERE session_id = '{session}' AND "pass" = 'latency'
ORDER BY spikes DESC, coalesce(variance_share_ratio, 0) DESC, cause

-- statement: grades
SELECT g.iteration, g.is_spike, g.spike_cause, g.excess_ns, g.grade, g.disturbed_by, g.disturbed_ns
FROM iteration_grades AS g
JOIN iterations AS i USING (session_id, "pass", iteration)
WHERE g.session_id = '{session}' AND g."pass" = 'latency' AND i.phase = 'measure' AND (g.is_spike OR g.grade <>
  'clean')
ORDER BY g.iteration
