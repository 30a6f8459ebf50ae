"""From the verdicts of nights to alerts: suspected, confirmed in a second time slot, acknowledged, resolved.

`events` says what an alert's events add up to, `slots` whether a second time slot confirms a first one, `sorting` what
a finding is before code is blamed for it, `night` what a night's table says, `missing` which nights said nothing.
"""
