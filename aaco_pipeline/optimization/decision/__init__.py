"""The timing rule: from paired durations to whether a candidate is faster than its baseline by at least a threshold.

`pairs` is what a measurement gives, `interleaving` takes one from workers, `plan` is what is declared before anything
is measured, `bounds` the interval over layouts, `rule` the decision, `outcome` its record. docs/timing_rule.md says why
it is so.
"""
