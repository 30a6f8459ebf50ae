"""A benchmark over its nights: levels and where they change, trends and where they lead, one run against them all.

Two arms of one campaign are `verdicts`; here nights that were days apart are looked at together.
"""
