"""Alerts from nightly verdicts: suspected, confirmed in a second time slot, acknowledged, resolved.

`night` creates a night's events; `events` derives the state of alerts from them.
"""
