"""Alerts from nightly verdicts: suspected, confirmed in a second time slot, acknowledged, resolved.

`night` makes the events of a night; `events` derives the state of alerts from them.
"""
