"""Sampling host, process and GPUs beside a run."""
