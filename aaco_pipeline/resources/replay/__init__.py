"""Reserving a captured dispatch's addresses in a fresh process, to see whether they can be had."""
