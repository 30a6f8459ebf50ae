"""Signals and rules that name what limits a session and its kernels."""
