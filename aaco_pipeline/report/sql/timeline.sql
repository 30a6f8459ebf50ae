-- Data for a timeline, by table: there may be very many rows, so they are read as columns.

-- statement: dispatches
SELECT dispatch_id, kernel_id, process_id, thread_id, device_id, queue_id, stream_id, start_ns, end_ns,
  parent_dispatch_id, below_resolution, iteration
FROM dispatches
WHERE session_id = '{session}' AND end_ns >= start_ns
ORDER BY start_ns, dispatch_id

-- statement: memory_copies
SELECT copy_id, direction, size_bytes, device_id, start_ns, end_ns
FROM memory_copies
WHERE session_id = '{session}' AND end_ns >= start_ns
ORDER BY start_ns, copy_id

-- statement: gaps
SELECT device_id, cause, doubt, start_ns, end_ns
FROM gaps
WHERE session_id = '{session}'
ORDER BY start_ns, device_id

-- statement: api_calls
SELECT call_id, domain, name, process_id, thread_id, start_ns, end_ns
FROM api_calls
WHERE session_id = '{session}' AND end_ns >= start_ns
ORDER BY start_ns, call_id
