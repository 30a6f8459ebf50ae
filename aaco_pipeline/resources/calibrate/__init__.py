"""Measure this machine's performance ceilings."""
