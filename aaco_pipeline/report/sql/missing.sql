-- Reasons why a part of a session is empty.

-- statement: spikes
SELECT DISTINCT item, status, reason
FROM evidence
WHERE session_id = '{session}' AND status <> 'present' AND (stage = 'kernel_plane' OR stage =
  'iteration_delays')
ORDER BY ALL

-- statement: shapes
SELECT DISTINCT item, status, reason
FROM evidence
WHERE session_id = '{session}' AND stage = 'roofline' AND item = 'work by operators'' shapes' AND status <>
  'present'
ORDER BY ALL
