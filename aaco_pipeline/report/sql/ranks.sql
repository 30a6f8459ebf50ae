-- The ranks of a distributed job.

-- fragment: judged
(SELECT DISTINCT c.collective_id, a.repetitions FROM [collectives] AS c
  JOIN [dispatches] AS d USING (dispatch_id) JOIN [answers] AS a ON d.device_id = a.device_id AND d.start_ns >=
  a.window_start_ns AND d.end_ns <= a.window_end_ns)

-- statement: rank_waits
-- With collectives, there is a row for each process, even if its waits are unknown.
SELECT c.process_id, any_value(p.rank) AS rank, count(*) AS collectives, max(c.expected_participants) AS
  expected_participants, max(c.participants) AS participants, count(j.collective_id) AS judged_count,
  any_value(j.repetitions) AS repetitions, count(c.wait_ns) FILTER (j.collective_id IS NOT NULL) AS
  compared_count, coalesce(count_if(c.is_straggler AND j.collective_id IS NOT NULL), 0) AS last_count,
  sum(c.wait_ns) FILTER (j.collective_id IS NOT NULL) AS wait_ns, sum(c.arrival_spread_ns) FILTER
  (c.is_straggler AND j.collective_id IS NOT NULL) AS behind_first_ns, any_value(k.reason) AS clock_reason
FROM [collectives] AS c
LEFT JOIN {judged} AS j USING (collective_id)
LEFT JOIN (SELECT process_id, rank FROM processes WHERE session_id = '{session}') AS p USING (process_id)
LEFT JOIN (SELECT process_id, reason FROM rank_clocks WHERE session_id = '{session}') AS k USING (process_id)
GROUP BY c.process_id
ORDER BY rank NULLS LAST, c.process_id

-- statement: rank_times
SELECT d.process_id, p.rank, t.device_id, t.window_end_ns - t.window_start_ns AS window_ns, t.busy_ns,
  t.compute_ns, t.exposed_communication_ns, t.exposed_copy_ns, t.busy_bound
FROM (SELECT * FROM timeline WHERE session_id = '{session}' AND iteration IS NULL AND window_rule =
  'first_to_last_activity') AS t
JOIN (SELECT DISTINCT process_id, device_id FROM dispatches WHERE session_id = '{session}') AS d USING
  (device_id)
LEFT JOIN (SELECT process_id, rank FROM processes WHERE session_id = '{session}') AS p USING (process_id)
ORDER BY p.rank NULLS LAST, d.process_id, t.device_id

-- statement: ranks_missing
SELECT mend
FROM completeness_findings
WHERE session_id = '{session}' AND finding = 'ranks_missing'
ORDER BY ALL
