"""Signals and rules that identify what limits a session and its kernels."""
