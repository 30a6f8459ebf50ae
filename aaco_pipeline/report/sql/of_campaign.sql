-- Additional data for a session that belongs to a campaign.

-- statement: campaign_verdicts
SELECT campaign_id, baseline, candidate, metric, verdict, effect_ratio, ci_low, ci_high
FROM verdicts
WHERE role = 'primary' AND campaign_id = (SELECT campaign_id FROM sessions
  WHERE session_id = '{session}')
ORDER BY candidate, metric
