"""Rooflines of kernels and operators, from counters, shapes and models."""
